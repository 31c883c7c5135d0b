"""From the RUNs on a command line to runs.

A reading command first asks what it can be told without SQLAlchemy, which takes longer to load than all else takes: an
id written out is a folder of the home, and of a catalog that is up to date a few rows are read plainly. Where something
has changed, or is wrong, the catalog is opened, caught up with the records, and asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gscalar.base.errors import UserError
from gscalar.control.indexing.freshness import Need, judge_run, list_runs, mtime_of
from gscalar.state.catalog.glancing import Glance, glance
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home, open_home_to_read


def find_runs(home_flag: str | None, references: Sequence[str]) -> tuple[Home, dict[str, str]]:
    """Return the home, and the names of the runs by id, in the order given. What else is known of them is not asked.

    Raises:
        UserError: `run-not-found`, `ambiguous-run`.
        EnvironmentProblem: `home-not-writable`, and what opening the catalog raises.
    """
    home = open_home_to_read(home_flag)
    names = {each: _read_name(home, each) for each in references}
    known = {run_id: name for run_id, name in names.items() if name is not None}
    if len(known) == len(names):
        return home, known
    found = glance(home, lambda catalog: _look(home, catalog, references, stale=True))
    if found is None:
        found = _ask(home_flag, references, hint="A metric's name goes after --name.")
    return home, {run.id: run.name for run in found}


def load_runs(home_flag: str | None, references: Sequence[str]) -> tuple[Home, list[RunSummary]]:
    """Return the home, and each of the runs once, in the order given, as its records are by now. Raises as above."""
    home = open_home_to_read(home_flag)
    found = glance(home, lambda catalog: _look(home, catalog, references, stale=False))
    return home, _ask(home_flag, references) if found is None else found


def _read_name(home: Home, reference: str) -> str | None:
    """Return the name in the job of the run with this id; None where only the catalog knows."""
    if "/" in reference or reference.startswith(".") or not reference:
        return None
    try:
        job = json.loads(home.run(reference).job_file.read_bytes())
        return str(job["name"]) if job["run"] == reference else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _look(home: Home, catalog: Glance, references: Sequence[str], *, stale: bool) -> list[RunSummary] | None:
    """Return the runs; None where the catalog lacks one of the home or, unless `stale` will do, is behind with them."""
    known, present = catalog.list_runs(), list_runs(home)
    if present is None or not known.keys() >= set(present):
        return None
    # A name may mean a run whose folder is gone.
    if any(not is_deleted and run_id not in present for run_id, is_deleted in known.items()):
        return None
    run_ids = [catalog.resolve(each) for each in references]
    found = list(dict.fromkeys(each for each in run_ids if each is not None))
    if None in run_ids or not (stale or all(_is_current(home, catalog, each) for each in found)):
        return None
    return catalog.load_runs(found)


def _is_current(home: Home, catalog: Glance, run_id: str) -> bool:
    folder, state = home.run(run_id), catalog.load_state(run_id)
    need = judge_run(folder, mtime_of(folder.records), state, lambda: catalog.load_file_times(run_id))
    return need is not Need.READING


def _ask(home_flag: str | None, references: Sequence[str], *, hint: str = "") -> list[RunSummary]:
    """Return the runs, of a catalog that is caught up; `hint` is for who has another word too many."""
    from gscalar.cli.reading import fresh_catalog
    from gscalar.state.catalog import resolve_run, storing

    with fresh_catalog(home_flag) as (_, catalog):
        run_ids = []
        for place, reference in enumerate(references):
            try:
                run_ids.append(resolve_run(catalog, reference))
            except UserError as error:
                if not place or not hint or error.code != "run-not-found":
                    raise
                raise UserError(
                    code=error.code,
                    what=error.what,
                    value=error.value,
                    next_step=f"{error.next_step} {hint}",
                ) from None
        with catalog.read() as connection:
            return storing.load_runs(connection, list(dict.fromkeys(run_ids)))
