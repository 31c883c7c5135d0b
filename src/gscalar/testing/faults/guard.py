"""The guard of one injector: a child that undoes what an injector leaves behind, however that ends.

Run as `python -I -S guard.py`, in a session of its own, with the standard library only. The injector tells it, before
it acts, which processes it will stop and which files it will make, and when they are free or gone again. When the
injector's end of the pipe closes, or nothing is heard for `SILENCE_LIMIT_S` (an injector that is itself stopped), the
guard sends SIGCONT to all that are held and removes all the files, and goes.

What is written to a pipe before a SIGKILL is read after it, so there is no instant at which a process is stopped and
the guard does not get to know. A process is named by pid and start time, and signalled through a pidfd that is opened
before the start time is compared: a pid that was reused meanwhile is never signalled.

Protocol, one JSON object a line: {"hold": [pid, ticks]}, {"free": [pid, ticks]}, {"file": path}, {"gone": path},
{"beat": 1}. Source: pidfd_open(2), proc(5).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from typing import Final

SILENCE_LIMIT_S: Final = 10.0
_CHUNK: Final = 1 << 16
_IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def read_stat(pid: int, proc: str = "/proc") -> tuple[int, int, str, str] | None:
    """Return (parent, start in clock ticks since boot, state letter, name) of a process, or None."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the guard's start
            text = file.read(4096)
    except OSError:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    name, _, rest = text.rpartition(b")")
    fields = rest.split()
    return int(fields[1]), int(fields[19]), fields[0].decode(), name.partition(b"(")[2].decode(errors="replace")


def signal_process(pid: int, start_ticks: int, signum: int) -> bool:
    """Send a signal to the process that has this pid and began then; False where it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = read_stat(pid)
        if stat is None or stat[1] != start_ticks:
            return False
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


class Guard:
    """What is held and what was made."""

    def __init__(self) -> None:
        self.held: set[tuple[int, int]] = set()
        self.files: set[str] = set()

    def hear(self, line: bytes) -> None:
        """Take one line of the injector's."""
        for word, value in json.loads(line).items():
            if word == "hold":
                self.held.add((value[0], value[1]))
            elif word == "free":
                self.held.discard((value[0], value[1]))
            elif word == "file":
                self.files.add(value)
            elif word == "gone":
                self.files.discard(value)

    def undo(self) -> None:
        """Let all go on that are held, and remove all files."""
        for pid, start_ticks in self.held:
            with contextlib.suppress(PermissionError):
                signal_process(pid, start_ticks, signal.SIGCONT)
        for path in self.files:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - as above


def listen(fd: int, guard: Guard, limit_s: float) -> None:
    """Return when the injector has gone, or has been silent for too long."""
    buffer = b""
    while select.select([fd], [], [], limit_s)[0]:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            guard.hear(line)


def main() -> None:
    """Guard the injector whose pipe is stdin."""
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    guard = Guard()
    try:
        listen(sys.stdin.fileno(), guard, SILENCE_LIMIT_S)
    finally:
        guard.undo()


if __name__ == "__main__":
    main()
