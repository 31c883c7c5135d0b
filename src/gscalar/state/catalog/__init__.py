"""The catalog: an index over all runs' records, in SQLite, that can be built again at any time.

SQLAlchemy takes a quarter of a second to import, so the names below load it when they are asked for: whoever needs only
`gscalar.state.catalog.rows`, such as the commands about series, does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Catalog", "open_catalog", "resolve_run"]

if TYPE_CHECKING:
    from gscalar.state.catalog.catalog import Catalog, open_catalog
    from gscalar.state.catalog.resolving import resolve_run
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from gscalar.state.catalog import catalog, resolving

        return getattr(resolving if name == "resolve_run" else catalog, name)
