"""One run."""

from __future__ import annotations

from typing import Any

from gscalar.model.status import Status
from gscalar.state.catalog import Catalog, storing
from gscalar.state.home import Home
from gscalar.views.describing import describe_run
from gscalar.views.exposure import exposed_split


def show_run(home: Home, catalog: Catalog, run_id: str) -> dict[str, Any]:
    """Return everything about the run with this id (`gscalar.state.catalog.resolve_run` gives it)."""
    with catalog.read() as connection:
        (run,) = storing.load_runs(connection, [run_id])
    return describe_run(home, run) | {"exposed_split": exposed_split(home.run(run_id), run.measured)}


def run_status(catalog: Catalog, run_id: str) -> str:
    """Return the status alone; `interrupted` for a run that is not there any more."""
    with catalog.read() as connection:
        state = storing.load_state(connection, run_id)
    return Status.INTERRUPTED if state is None or state.deleted else state.status
