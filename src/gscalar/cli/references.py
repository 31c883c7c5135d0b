"""From the RUNs on a command line to ids and names.

An id written out is a folder of the home. Where all are, the catalog is not asked: loading what reads it takes longer
than all else that a command about series does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gscalar.base.errors import UserError
from gscalar.state.home import Home, open_home


def find_runs(home_flag: str | None, references: Sequence[str]) -> tuple[Home, dict[str, str]]:
    """Return the home, and the names of the runs by id, in the order given.

    Raises:
        UserError: `run-not-found`, `ambiguous-run`.
        EnvironmentProblem: `home-not-writable`, and what opening the catalog raises.
    """
    home = open_home(home_flag)
    names = {each: _read_name(home, each) for each in references}
    known = {run_id: name for run_id, name in names.items() if name is not None}
    return (home, known) if len(known) == len(names) else _resolve(home_flag, references)


def _read_name(home: Home, reference: str) -> str | None:
    """Return the name in the job of the run with this id; None where only the catalog knows."""
    if "/" in reference or reference.startswith(".") or not reference:
        return None
    try:
        job = json.loads(home.run(reference).job_file.read_bytes())
        return str(job["name"]) if job["run"] == reference else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _resolve(home_flag: str | None, references: Sequence[str]) -> tuple[Home, dict[str, str]]:
    import sqlalchemy as sa

    from gscalar.cli.reading import fresh_catalog
    from gscalar.state.catalog import resolve_run, schema

    with fresh_catalog(home_flag) as (home, catalog):
        found = {}
        for place, reference in enumerate(references):
            try:
                run_id = resolve_run(catalog, reference)
            except UserError as error:
                if not place or error.code != "run-not-found":
                    raise
                raise UserError(
                    code=error.code,
                    what=error.what,
                    value=error.value,
                    next_step=f"{error.next_step} A metric's name goes after --name.",
                ) from None
            with catalog.read() as connection:
                name = connection.scalar(sa.select(schema.runs.c.name).where(schema.runs.c.id == run_id))
            found[run_id] = str(name)
    return home, found
