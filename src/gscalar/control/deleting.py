"""Deleting a run: its folder goes, its id stays taken.

The folder is first renamed to a name that nobody takes for a run, so that a crash in between leaves a
run that is whole or one that is gone. Then the catalog gets a tombstone, then the series go and the disk is freed.
What a crash has left of the folder is swept by the next deletion.
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path
from typing import Final

from gscalar.base.errors import EnvironmentProblem
from gscalar.control.locking import RunLock, run_active
from gscalar.model.status import Status
from gscalar.state.catalog import Catalog, storing
from gscalar.state.home import Home
from gscalar.state.sqlite_files import remove_database

_ASIDE: Final = ".deleted-"


def delete_run(home: Home, catalog: Catalog, run_id: str) -> None:
    """Delete a run that has ended. The catalog must be fresh.

    Raises:
        UserError: `run-active`.
        EnvironmentProblem: `home-not-writable`.
    """
    with catalog.read() as connection:
        state = storing.load_state(connection, run_id)
    if state is not None and state.status == Status.RUNNING:
        raise run_active(run_id)
    folder = home.run(run_id)
    aside = home.runs / f"{_ASIDE}{run_id}-{uuid.uuid4().hex[:8]}"
    try:
        if folder.control.is_dir():
            # A supervisor that is about to go on with the run holds it.
            with RunLock(folder, run_id):
                folder.path.rename(aside)
        else:
            folder.path.rename(aside)
        with catalog.write() as connection:
            storing.mark_deleted(connection, run_id, time.time_ns())
        remove_database(home.series(run_id))
        shutil.rmtree(aside)
    except OSError as error:
        raise EnvironmentProblem(
            code="home-not-writable",
            what=f"The run's folder cannot be deleted: {error.strerror}.",
            value=str(error.filename or folder.path),
            next_step="Make it writable and try again.",
        ) from error
    sweep(home)


def sweep(home: Home) -> None:
    """Free what interrupted deletions have left."""
    for path in home.runs.glob(f"{_ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def num_bytes_of(path: Path) -> int:
    """Return how many bytes the files of a folder hold."""
    return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file())
