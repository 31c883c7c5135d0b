"""What of the catalog is behind the records, told without reading any: nothing here opens a database or a record.

What is stored comes in as arguments, since two readers ask: `gscalar.control.indexer.refresh`, which then reads on, and
the commands that only look (`gscalar.cli.references`), which need no more than this where nothing has changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from gscalar.control.indexing.scanning import scan_records
from gscalar.model.status import Status
from gscalar.state.catalog.rows import RunState
from gscalar.state.home import Home, RunFolder

# Clocks of file systems are coarse, and other ranks may write a little longer than the owner.
_SETTLES_AFTER_NS: Final = 60_000_000_000

IsAlive = Callable[[Mapping[str, Any]], bool]
FileTimes = Mapping[str, tuple[int, int]]


class Need(Enum):
    """What a run's rows need to be as its records say."""

    NOTHING = auto()
    READING = auto()
    SETTLING = auto()  # nothing but the note that it has ended and does not move any more


def judge_run(
    folder: RunFolder,
    mtime_ns: int | None,
    state: RunState | None,
    load_file_times: Callable[[], FileTimes],
    *,
    is_alive: IsAlive | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Need:
    """Return what a run that is there and not deleted needs; `state` None is a run that is not known yet.

    `mtime_ns` is that of the folder of its records, from before this look.
    """
    if state is None:
        return Need.READING
    if state.settled_mtime_ns is not None and state.settled_mtime_ns == mtime_ns:
        return Need.NOTHING
    files = scan_records(folder)
    if files != load_file_times() or _is_orphan(state, is_alive):
        return Need.READING
    if not Status(state.status).ended or mtime_ns is None:
        return Need.NOTHING
    newest_ns = max((each[1] for each in files.values()), default=0)
    return Need.SETTLING if clock_ns() - max(newest_ns, mtime_ns) > _SETTLES_AFTER_NS else Need.NOTHING


def are_current(folder: RunFolder, stored: FileTimes) -> bool:
    """Tell whether all record files of a run are as they were when what is stored of them was read."""
    return all(stored.get(name) == found for name, found in scan_records(folder).items())


def list_runs(home: Home) -> list[str] | None:
    """Return the names of the run folders; None where they cannot be listed, which says nothing of them."""
    try:
        with os.scandir(home.runs) as entries:
            return sorted(each.name for each in entries if not each.name.startswith(".") and each.is_dir())
    except OSError:
        return None


def _is_orphan(state: RunState, is_alive: IsAlive | None) -> bool:
    """Tell whether the owner of a run that seems to go on has died."""
    if state.status != Status.RUNNING or not state.owner:
        return False
    if is_alive is None:
        # It needs psutil, which most commands do not.
        from gscalar.control import liveness

        is_alive = liveness.is_alive
    return not is_alive(state.owner)


def mtime_of(path: Path) -> int | None:
    """Return when a file or folder changed last; None where it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
