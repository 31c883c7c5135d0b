"""Builders for record files, and a disk that fills up, fails and writes short."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gscalar.model.events import AnyEvent, Header
from gscalar.state.records.reader import Damage, read_record
from gscalar.state.records.writer import RecordWriter

HEADER = Header(1, "run", 0, 0, 2, "worker", "host", 4711, 1.5, 1_700_000_000_000_000_000, "0.1.0")


class FakeClock:
    """Nanoseconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class FakeDisk:
    """Stands between the writer and one file: how many bytes fit, what fails, how much goes at once."""

    path: Path
    room_bytes: int | None = None  # for the whole file; None: no limit
    error: int = errno.ENOSPC
    bytes_a_write: int | None = None
    cut_fails: bool = False
    read_fails: bool = False
    num_writes: int = 0
    before_write: Callable[[], None] | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real_write, real_cut, real_read = os.write, os.ftruncate, os.pread

        def write(fd: int, data: bytes) -> int:
            if not self._is_ours(fd):
                return real_write(fd, data)
            self.num_writes += 1
            if self.before_write is not None:
                self.before_write()
            fits = len(data) if self.bytes_a_write is None else min(len(data), self.bytes_a_write)
            if self.room_bytes is not None:
                fits = min(fits, self.room_bytes - os.fstat(fd).st_size)
                if fits <= 0:
                    raise OSError(self.error, os.strerror(self.error))
            return real_write(fd, data[:fits])

        def cut(fd: int, length: int) -> None:
            if self.cut_fails and self._is_ours(fd):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real_cut(fd, length)

        def read(fd: int, length: int, offset: int) -> bytes:
            if self.read_fails and self._is_ours(fd):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real_read(fd, length, offset)

        monkeypatch.setattr(os, "write", write)
        monkeypatch.setattr(os, "ftruncate", cut)
        monkeypatch.setattr(os, "pread", read)

    def _is_ours(self, fd: int) -> bool:
        return fd >= 0 and self.path.exists() and os.path.samestat(os.fstat(fd), self.path.stat())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a000-r00000.rec"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    disk = FakeDisk(path)
    disk.install(monkeypatch)
    return disk


@pytest.fixture
def open_writer(path: Path, clock: FakeClock) -> Callable[[], RecordWriter]:
    return lambda: RecordWriter(path, HEADER, clock_ns=clock)


@pytest.fixture
def writer(open_writer: Callable[[], RecordWriter]) -> RecordWriter:
    return open_writer()


@pytest.fixture
def read_events(path: Path) -> Callable[[], list[AnyEvent]]:
    """Read the events of the file, which must have no damage."""

    def read() -> list[AnyEvent]:
        events = []
        for item in read_record(path):
            assert not isinstance(item, Damage), item
            events.append(item.event)
        return events

    return read
