"""Reads the record files of one run from where they were left and stores what they say.

One batch of every file is one transaction: how far each file is read, and the run's summary as of
there. A process that is killed in between leaves the catalog as of the batch before. Where two processes
index the same run, the slower one notices that the stored offsets are not those it had
begun from, forgets what it read, and goes on from what is stored.

When a later attempt has superseded steps of an earlier one, the earlier one's files are read again from
their start, with the steps after the cut left out: a minimum cannot be taken back otherwise.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from gscalar.control.indexing.freshness import IsAlive
from gscalar.control.indexing.readings import FileReading, fold, new_reading, pack, unpack
from gscalar.control.indexing.scanning import scan_records
from gscalar.control.indexing.summary import Job, find_cuts, find_owner, owner_dict, summarize
from gscalar.model.status import Status
from gscalar.observation.secrets import redact_spec
from gscalar.state.catalog import Catalog, storing
from gscalar.state.catalog.rows import FileRow
from gscalar.state.home import Home, RunFolder
from gscalar.state.records.reader import RecordTail

# Bounds the memory of a batch (about 1 KiB a frame) and how long a reader waits for its end.
BATCH_FRAMES: Final = 20_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenFile:
    """One record file: what is read of it, and what is stored of that."""

    reading: FileReading
    offset: int = 0
    size: int = -1  # with mtime_ns: how the file was when it was last read
    mtime_ns: int = -1
    stored_offset: int | None = None
    changed: bool = False


class RunIndex:
    """What is known of one run's records, kept between looks."""

    def __init__(self, home: Home, run_id: str, is_alive: IsAlive) -> None:
        self.run_id = run_id
        self.folder = home.run(run_id)
        self._is_alive = is_alive
        self._files: dict[str, _OpenFile] = {}
        self._job: Job | None = None
        self._status: str | None = None
        self._loaded = False

    def catch_up(self, catalog: Catalog, *, max_frames: int = BATCH_FRAMES) -> None:
        """Store all that the run's files say by now.

        Raises:
            EnvironmentProblem, Retryable: as `Catalog.write` does.
        """
        if not self._loaded:
            self._load(catalog)
        while True:
            if self._job is None:
                self._job = load_job(self.folder)
            changed, more = self._read_on(max_frames)
            alive = more or self._owner_lives()
            if not alive:
                # What the owner wrote until it died is readable now.
                again, more = self._read_on(max_frames)
                changed, alive = changed or again, more
            if changed or self._status is None or (self._status == Status.RUNNING and not alive):
                try:
                    self._store(catalog, alive=alive)
                except storing.Overtaken:
                    self._load(catalog)
                    continue
            if not more:
                return

    def _load(self, catalog: Catalog) -> None:
        """Take what is stored as what is known."""
        with catalog.read() as connection:
            state = storing.load_state(connection, self.run_id)
            rows = storing.load_files(connection, self.run_id)
        self._status = state.status if state else None
        self._files = {}
        for row in rows.values():
            try:
                reading = unpack(row.facts)
            except msgspec.MsgspecError:
                continue  # written by another version: the file is read anew
            reading.metrics = row.metrics
            self._files[row.file] = _OpenFile(
                reading, row.offset, size=row.size, mtime_ns=row.mtime_ns, stored_offset=row.offset
            )
        self._loaded = True

    def _owner_lives(self) -> bool:
        owner = find_owner(self._readings())
        return owner is None or self._is_alive(owner_dict(owner))

    def _readings(self) -> dict[str, FileReading]:
        return {name: file.reading for name, file in self._files.items()}

    # ---- reading

    def _read_on(self, max_frames: int) -> tuple[bool, bool]:
        """Read a batch of each file that has grown; return whether anything is new, and whether there is more."""
        new = more = False
        for name, (size, mtime_ns) in scan_records(self.folder).items():
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = _OpenFile(new_reading(self.run_id, name))
            if (size, mtime_ns) == (file.size, file.mtime_ns):
                continue
            if size < file.offset:
                _log.warning("%s has become shorter than what was read of it; it is read again", name)
                self._restart(name, file, file.reading.cut)
            num_read = self._read_batch(name, file, max_frames)
            if num_read is None:
                continue  # not read, so not as it was when it was read: the next look tries again
            if num_read >= max_frames:
                more = True
            else:
                file.size, file.mtime_ns = size, mtime_ns
            new = file.changed = True
        while new and self._apply_cuts():
            pass
        return new, more

    def _read_batch(self, name: str, file: _OpenFile, max_frames: int) -> int | None:
        """Read on in one file; return how many frames it gave, None where it cannot be read."""
        tail = RecordTail(self.folder.records / name, offset=file.offset)
        try:
            items = tail.poll(max_frames)
        except OSError as error:
            _log.warning("%s cannot be read: %s", tail.path, error)
            return None
        fold(file.reading, items)
        file.offset = tail.offset
        return len(items)

    def _apply_cuts(self) -> bool:
        """Leave out what is superseded by now; return whether a file was read again for it."""
        again = False
        for name, cut in find_cuts(self._readings()).items():
            file = self._files[name]
            if cut == file.reading.cut:
                continue
            file.changed = True
            if file.reading.top_step <= min(cut, file.reading.cut):
                file.reading.cut = cut
                continue
            target = file.offset
            self._restart(name, file, cut)
            while file.offset < target and (self._read_batch(name, file, BATCH_FRAMES) or 0) >= BATCH_FRAMES:
                pass
            again = True
        return again

    def _restart(self, name: str, file: _OpenFile, cut: int) -> None:
        file.reading, file.offset = new_reading(self.run_id, name), 0
        file.reading.cut = cut

    # ---- storing

    def _store(self, catalog: Catalog, *, alive: bool) -> None:
        summary = summarize(self.run_id, self._job, self._readings(), alive=alive)
        if summary is None:
            return
        changed = {name: file for name, file in self._files.items() if file.changed}
        expected = {name: file.stored_offset for name, file in self._files.items() if file.stored_offset is not None}
        with catalog.write() as connection:
            if storing.check_unmoved(connection, self.run_id, expected):
                storing.replace_run(connection, summary)
                storing.save_files(connection, self.run_id, map(_file_row, changed, changed.values()))
        for file in changed.values():
            file.stored_offset, file.changed = file.offset, False
        self._status = summary.status


def load_job(folder: RunFolder) -> Job | None:
    """Return what job.json says; None where it is missing or no job, since the records say most of it too."""
    try:
        told = json.loads(folder.job_file.read_bytes())
        return Job(
            project=str(told["project"]),
            name=str(told.get("name") or folder.path.name),
            created_ns=int(told["created_ns"]),
            spec=redact_spec(told.get("spec") or {}),
            origins={key: str(origin) for key, origin in (told.get("origins") or {}).items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("%s cannot be used: %r", folder.job_file, error)
        return None


def _file_row(name: str, file: _OpenFile) -> FileRow:
    reading = file.reading
    return FileRow(
        file=name,
        attempt=reading.attempt,
        rank=reading.header.rank,
        writer=reading.header.writer,
        offset=file.offset,
        size=file.size,
        mtime_ns=file.mtime_ns,
        facts=pack(reading),
        num_events=reading.num_events,
        num_damaged=reading.num_damaged,
        damaged_bytes=reading.damaged_bytes,
        num_dropped=reading.num_dropped,
        num_seals=reading.num_seals,
        closed=reading.closed,
        metrics=reading.metrics,
    )
