"""The catalog: an index over all runs' records, in SQLite, that can be built again at any time."""

from __future__ import annotations

from gscalar.state.catalog.catalog import Catalog, open_catalog
from gscalar.state.catalog.resolving import resolve_run

__all__ = ["Catalog", "open_catalog", "resolve_run"]
