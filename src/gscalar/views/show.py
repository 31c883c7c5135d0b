"""One run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gscalar.model.status import Status
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.views.describing import describe_run
from gscalar.views.exposure import exposed_split

if TYPE_CHECKING:
    from gscalar.state.catalog import Catalog


def describe_whole(home: Home, run: RunSummary) -> dict[str, Any]:
    """Return everything about a run: what the catalog has, and what only the ends of its records say."""
    return describe_run(home, run) | {"exposed_split": exposed_split(home.run(run.id), run.measured)}


def show_run(home: Home, catalog: Catalog, run_id: str) -> dict[str, Any]:
    """Return everything about the run with this id (`gscalar.state.catalog.resolve_run` gives it)."""
    # SQLAlchemy takes longer to load than `gscalar show` takes, which mostly does without.
    from gscalar.state.catalog import storing

    with catalog.read() as connection:
        (run,) = storing.load_runs(connection, [run_id])
    return describe_whole(home, run)


def run_status(catalog: Catalog, run_id: str) -> str:
    """Return the status alone; `interrupted` for a run that is not there any more."""
    from gscalar.state.catalog import storing

    with catalog.read() as connection:
        state = storing.load_state(connection, run_id)
    return Status.INTERRUPTED if state is None or state.deleted else state.status
