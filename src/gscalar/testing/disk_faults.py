"""A file system that fails or dies at a chosen call, in one process and without a real disk.

`disk_faults` counts the calls that change or sync files. At the call with the chosen number it

- `crash`: raises `Crash` there and at every later call, so that nothing afterwards reaches the disk,
  clean-up code included: what is on disk is what a SIGKILL between two calls leaves;
- `fail`: raises one OSError, once; the disk then works again;
- `full`: raises ENOSPC there and at every later call that needs room; removing and renaming go on.

A first pass without a number counts, so that a test can go through every call of a protocol:

    with disk_faults() as counted:
        save()
    for call in range(counted.calls): ...

Limits: only calls through the module `os` are seen (not `open`), and what a crash of the whole
machine does to bytes that were not synced is not simulated.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final
from unittest import mock

CHANGING: Final = ("rename", "replace", "fsync", "mkdir", "write", "unlink", "rmdir", "open")
NEEDING_ROOM: Final = ("fsync", "mkdir", "write", "open")


class Crash(BaseException):
    """The process is dead: no `except Exception` survives it."""


@dataclass
class DiskFaults:
    """What happened: how many calls were made, their names in order, and whether one was faulted."""

    at: int | None
    kind: str
    error: int
    calls: int = 0
    names: list[str] = field(default_factory=list)
    struck: bool = False
    _lock: Lock = field(default_factory=Lock)

    def enter(self, name: str) -> None:
        """Count a call, and raise where it is its turn to fail."""
        with self._lock:
            number = self.calls
            self.calls += 1
            self.names.append(name)
            if self.at is None or number < self.at:
                return
            if self.kind == "crash":
                self.struck = True
                raise Crash(f"at call {number}, {name}")
            if self.kind == "fail" and number == self.at:
                self.struck = True
                raise OSError(self.error, os.strerror(self.error))
            if self.kind == "full" and name in NEEDING_ROOM:
                self.struck = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def disk_faults(at: int | None = None, kind: str = "crash", error: int = errno.EIO) -> Iterator[DiskFaults]:
    """Count the calls that change files, and strike at the one with the number `at` (from 0)."""
    assert kind in ("crash", "fail", "full"), kind
    faults = DiskFaults(at, kind, error)

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # A file opened for reading changes nothing.
            if name != "open" or args[1] & os.O_CREAT:
                faults.enter(name)
            return real(*args, **kwargs)

        return call

    with mock.patch.dict(vars(os), {name: counted(name, getattr(os, name)) for name in CHANGING}):
        yield faults
