"""Ending a run from another process: who is to be asked, and waiting until it has ended.

A supervisor is asked by a file and SIGTERM; it passes the request on to its workers. A run without
a supervisor (a script alone, or under another launcher) is asked at its own processes. The file
alone reaches a supervisor on another host, which looks for it once a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError
from gscalar.control.liveness import is_alive
from gscalar.model.events import Header, RunEnded
from gscalar.model.status import Status
from gscalar.state.files import write_atomic
from gscalar.state.home import Home, RunFolder
from gscalar.state.records import Frame, RecordTail

_POLL_S: Final = 0.1
_SAY_EVERY_S: Final = 5.0


class Writer:
    """Follows the record of one process of the run, to know who it is and whether it has ended the run."""

    def __init__(self, file: Path) -> None:
        self._tail = RecordTail(file)
        self._header: Header | None = None
        self._ending: Status | None = None

    def look(self) -> tuple[Header | None, Status | None]:
        """Return who writes the file now, and the run's end as that process recorded it."""
        with contextlib.suppress(OSError):
            for item in self._tail.poll():
                if not isinstance(item, Frame):
                    continue
                if isinstance(item.event, Header):  # a second one: another process goes on with the file
                    self._header, self._ending = item.event, None
                elif isinstance(item.event, RunEnded):
                    self._ending = Status(item.event.status)
        return self._header, self._ending

    @property
    def alive(self) -> bool:
        """Whether the process may still be there, and has not recorded the run's end."""
        header, ending = self.look()
        if header is None or ending is not None:
            return False
        return is_alive({"host": header.host, "pid": header.pid, "pid_start": header.pid_start})


def cancel_run(home: Home, run_id: str, *, waiting: Callable[[float], None]) -> Status:
    """Ask the run to stop, wait until it has, and return its status. `waiting` gets the seconds so far.

    Raises:
        UserError: `run-not-active`.
    """
    folder = home.run(run_id)
    asked = find_living(folder)
    if not asked:
        raise UserError(
            code="run-not-active",
            what="The run has ended already.",
            value=run_id,
            next_step=f"Look at it with `gscalar show {run_id}`.",
        )
    write_atomic(folder.control / "cancel", b"")
    for writer in asked:
        header, _ = writer.look()
        if header is not None and header.host == socket.gethostname():
            # Another user's process, or one that ended just now; the file is there for the first.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(header.pid, signal.SIGTERM)
    started_s = said_s = time.monotonic()
    while any(writer.alive for writer in asked):
        time.sleep(_POLL_S)
        now_s = time.monotonic()
        if now_s - said_s >= _SAY_EVERY_S:
            said_s = now_s
            waiting(now_s - started_s)
    endings = (writer.look()[1] for writer in asked)
    return next((ending for ending in endings if ending is not None), Status.INTERRUPTED)


def find_living(folder: RunFolder) -> list[Writer]:
    """Return the living process that is to be asked: the newest supervisor, or else the newest workers."""
    for pattern in ("supervisor-a*.rec", "a*-r*.rec"):
        files = sorted(folder.records.glob(pattern))
        newest = max((_attempt_part(file) for file in files), default="")
        living = [writer for file in files if _attempt_part(file) == newest and (writer := Writer(file)).alive]
        if living:
            return living
    return []


def _attempt_part(file: Path) -> str:
    return file.stem.removeprefix("supervisor-").partition("-")[0]
