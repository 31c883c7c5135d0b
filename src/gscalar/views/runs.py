"""Many runs: searched, sorted, cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gscalar.state.catalog import Catalog, storing
from gscalar.state.catalog.searching import find_runs, parse_term, unknown_key
from gscalar.views.describing import describe_run


def list_runs(
    catalog: Catalog,
    *,
    search: Sequence[str] = (),
    sort: str = "-created",
    limit: int | None = None,
    project: str | None = None,
) -> list[dict[str, Any]]:
    """Return the runs that fit, as `show_run` gives them but for `spec`, `environment` and `exposed_split`.

    `search` holds terms as `gscalar.state.catalog.searching` describes them; all must hold.

    Raises:
        UserError: `bad-query`.
    """
    terms = [parse_term(text) for text in search]
    with catalog.read() as connection:
        ids = find_runs(connection, terms, sort=sort, limit=limit, project=project)
        found = storing.load_runs(connection, ids)
    runs = [describe_run(catalog.home, run) for run in found]
    for run in runs:
        del run["spec"], run["environment"]
    return runs


def explain_nothing(catalog: Catalog, search: Sequence[str]) -> list[str]:
    """Return why a search may have found nothing: keys that are in no run at all."""
    with catalog.read() as connection:
        hints = (unknown_key(connection, parse_term(text)) for text in search)
        return [hint for hint in hints if hint is not None]
