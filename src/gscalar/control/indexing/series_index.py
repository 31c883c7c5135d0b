"""Reads the record files of one run from where they were left and adds what they say to the run's series.

One batch of every file is one transaction: how far each file is read, and its rows. A process that is killed in
between leaves the store as of the batch before. Where two processes index the same run, the slower one notices that
the stored offsets are not those it had begun from, forgets what it read, and goes on from what is stored.

This reads the records a second time beside the catalog's index: what they keep, and when, is not the same, and decoding
is a small part of either.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gscalar.base.errors import EnvironmentProblem
from gscalar.control.indexing.readings import NO_CUT, FileReading, new_reading, pack, unpack
from gscalar.control.indexing.scanning import scan_records
from gscalar.control.indexing.series_rows import collect
from gscalar.control.indexing.summary import find_cuts
from gscalar.state.home import Home
from gscalar.state.records.reader import RecordTail
from gscalar.state.series import reset_damaged
from gscalar.state.series.types import FileChange, FileState, NewRows
from gscalar.state.series.writing import Overtaken, SeriesWriter

BATCH_FRAMES: Final = 20_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenFile:
    """One record file: what is read of it, and what is stored of that."""

    reading: FileReading
    offset: int = 0
    size: int = -1  # with mtime_ns: how the file was when it was last read
    mtime_ns: int = -1
    cut: int = NO_CUT
    stored: FileState | None = None
    restarts: bool = False
    groups: list[NewRows] = field(default_factory=list)  # read and not stored

    def state(self) -> FileState:
        return FileState(self.offset, self.size, self.mtime_ns, self.cut, pack(self.reading))


class SeriesIndex:
    """Adds one run's records to its series. Use it from one thread."""

    def __init__(self, home: Home, run_id: str, *, busy_timeout_s: float = 30.0) -> None:
        self.run_id = run_id
        self._home = home
        self._folder = home.run(run_id)
        self._busy_timeout_s = busy_timeout_s
        self._writer: SeriesWriter | None = None
        self._files: dict[str, _OpenFile] = {}

    def catch_up(self, *, max_frames: int = BATCH_FRAMES) -> None:
        """Store all that the run's files say by now. A damaged store is set aside and filled anew.

        Raises:
            EnvironmentProblem: `store-newer`, `home-not-writable`, `disk-full`.
            Retryable: `catalog-busy`.
        """
        try:
            self._catch_up(max_frames)
        except EnvironmentProblem as error:
            if error.code != "series-damaged":
                raise
            self.close()
            aside = reset_damaged(self._home, self.run_id)
            _log.warning("the series of the run %s were damaged (%s) and are read again", self.run_id, aside)
            self._catch_up(max_frames)

    def close(self) -> None:
        """Close the store; the next look opens it again."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._files = {}

    def _catch_up(self, max_frames: int) -> None:
        if self._writer is not None and not self._writer.is_current():
            self.close()
        while True:
            if self._writer is None and not scan_records(self._folder):
                return  # a run that is gone gets no store
            try:
                if self._writer is None:
                    self._open()
                more = self._read_on(max_frames)
                self._store()
            except Overtaken:
                self._load()
            except BaseException:
                # What was read and not stored is read again.
                self.close()
                raise
            else:
                if not more:
                    return

    def _open(self) -> None:
        self._writer = SeriesWriter(self._home, self.run_id, busy_timeout_s=self._busy_timeout_s)
        self._load()

    def _load(self) -> None:
        """Take what is stored as what is known."""
        assert self._writer is not None
        self._files = {}
        for name, state in self._writer.load_files().items():
            file = self._files[name] = _OpenFile(new_reading(self.run_id, name), stored=state)
            try:
                file.reading = unpack(state.facts)
            except msgspec.MsgspecError:
                file.restarts = True  # written by another version: the file is read anew
                continue
            file.offset, file.size, file.mtime_ns, file.cut = state.offset, state.size, state.mtime_ns, state.cut

    def _read_on(self, max_frames: int) -> bool:
        """Read on in the files that have grown, `max_frames` in all; return whether there is more."""
        num_left = max_frames
        for name, (size, mtime_ns) in scan_records(self._folder).items():
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _OpenFile(new_reading(self.run_id, name))
            if (size, mtime_ns) == (file.size, file.mtime_ns):
                continue
            if size < file.offset:
                _log.warning("%s has become shorter than what was read of it; it is read again", name)
                self._files[name] = file = _OpenFile(new_reading(self.run_id, name), stored=file.stored, restarts=True)
            num_read = self._read_batch(name, file, num_left)
            if num_read is None:
                continue  # not read, so not as it was when it was read: the next look tries again
            num_left -= num_read
            if num_left <= 0:
                break
            file.size, file.mtime_ns = size, mtime_ns
        for name, cut in find_cuts({name: file.reading for name, file in self._files.items()}).items():
            self._files[name].cut = cut
        return num_left <= 0

    def _read_batch(self, name: str, file: _OpenFile, max_frames: int) -> int | None:
        """Read on in one file; return how many frames it gave, None where it cannot be read."""
        tail = RecordTail(self._folder.records / name, offset=file.offset)
        try:
            items = tail.poll(max_frames)
        except OSError as error:
            _log.warning("%s cannot be read: %s", tail.path, error)
            return None
        file.groups += collect(file.reading, items)
        file.offset = tail.offset
        return len(items)

    def _store(self) -> None:
        assert self._writer is not None
        changes = []
        for name, file in self._files.items():
            state = file.state()
            if state != file.stored or file.restarts:
                changes.append(FileChange(name, state, file.restarts, file.groups))
        if not changes:
            return
        expected = {name: file.stored.offset for name, file in self._files.items() if file.stored is not None}
        self._writer.commit(expected, changes)
        for change in changes:
            file = self._files[change.name]
            file.stored, file.restarts, file.groups = change.state, False, []


def refresh_series(home: Home, run_id: str) -> None:
    """Bring the run's series up to its records, as before a read. Raises as `SeriesIndex.catch_up` does."""
    index = SeriesIndex(home, run_id)
    try:
        index.catch_up()
    finally:
        index.close()
