"""Writing one record file: the Sink that every process of a run has.

One event is one `os.write` of one frame at the end of the file: when the call has returned, the bytes are
in the kernel and survive SIGKILL of the process. `log` writes the names of a key set once, then packed
float64; the names are written again after each seal and every 1000 calls, so that damage to the
file costs the points near it and not all later ones.

What cannot be written (disk full, quota, I/O error) is counted and never raised: the file is cut back to
its last whole frame, and the next write that works begins with a `Dropped` frame. The same holds for the
first frame, `Header`.

Threads may share a writer. A signal handler may call it in the middle of another call of its own thread: the
inner call is done when the outer one is. In a forked child the writer is dead: a file has one writer, and
that is the parent.

A file that exists is continued: what follows its last sound frame is cut off, the chain of seals goes
on, and a second `Header` says that another process writes from there. Nothing tells whether
the earlier writer lives; two at once keep their frames whole (O_APPEND) and break the chain of seals.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gscalar.model.events import Dropped, Event, Hardware, Header, Names, Note, Points, Seal
from gscalar.state.records.appending import AppendFile
from gscalar.state.records.format import FIRST_DIGEST, begin_digest, encode_event
from gscalar.state.records.reader import Frame, scan

if TYPE_CHECKING:
    from hashlib import _Hash

_SYNC_EVERY_NS: Final = 5_000_000_000
_CALLS_PER_NAMES: Final = 1000
# A script that logs under ever new names must not fill the memory.
_MAX_KEY_SETS: Final = 4096
_FLOAT64: Final = struct.Struct("<d")
# What encode_event raises for an event that no frame can hold.
_UNWRITABLE: Final = (ValueError, TypeError, RuntimeError)


class RecordWriter:
    """The one writer of a record file; a `gscalar.model.sink.Sink`.

    `dropped` counts the events that were handed over and are not in the file.

    Raises:
        OSError: the file cannot be opened. Nothing the system says later is raised.
    """

    def __init__(self, path: Path, header: Header, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self.dropped = 0
        self._header: Header | None = header  # until it is in the file
        self._clock_ns = clock_ns
        self._synced_ns = clock_ns()
        self._sync_failed = False
        self._lock = threading.RLock()
        self._busy = False
        self._postponed: list[tuple[Callable[..., bool], tuple[Any, ...]]] = []
        self._sealing = threading.RLock()
        self._in_seal = False
        self._closed = False
        self._forked = False
        self._lost = 0  # events since the last frame that is in the file
        self._loss_reason = ""
        self._owing = True  # a header or a count of losses must come first, or the file is closed
        past = _read_past(path)
        self._file = AppendFile(path)
        self._seal_digest, self._seal_start = past.seal_digest, past.seal_start
        self._new_names_id = itertools.count(past.max_names_id + 1)
        self._key_sets: dict[tuple[str, ...], _KeySet] = {}
        if self._file.size() > past.end:
            self._file.cut(past.end)
        _open_writers.add(self)
        self._put(b"", 0)

    def emit(self, event: Event) -> None:
        """Keep one event. On return it is in the kernel, or counted in `dropped`."""
        try:
            frame = encode_event(event)
        except _UNWRITABLE as error:
            self._lose(1, f"{type(event).__name__}: {error}")
        else:
            self._put(frame)

    def log(self, step: int, time_ns: int, values: Mapping[str, float]) -> None:
        """Keep one set of named values, as float64; NaN and infinities are kept as they are.

        Raises:
            TypeError: a name is no text, or a value is no number; it says which.
        """
        self._put_values(values, Points, step, time_ns)

    def sample(self, time_ns: int, rank: int, values: Mapping[str, float]) -> None:
        """Keep one look at the hardware of a host (rank -1) or of one worker's process."""
        self._put_values(values, Hardware, time_ns, rank)

    def _put_values(self, values: Mapping[str, float], kind: type[Points | Hardware], first: int, second: int) -> None:
        names = tuple(values)
        known = self._key_sets.get(names)
        if known is None:
            if not names:
                return
            known = self._learn(names)
        try:
            packed = known.pack(*values.values())
        except struct.error:
            packed = _pack_each(values)
        last_seal = self._seal_start
        names_due = known.calls_left <= 0 or known.named_after != last_seal
        try:
            frame = encode_event(kind(first, second, known.names_id, packed))
            if names_due:
                frame = encode_event(Names(known.names_id, known.names)) + frame
        except _UNWRITABLE as error:
            self._lose(1, f"named values: {error}")
            return
        if self._put(frame):
            known.calls_left -= 1
            if names_due:
                known.calls_left, known.named_after = _CALLS_PER_NAMES - 1, last_seal

    def seal(self, reason: str) -> None:
        """Write the chained digest of all bytes so far and make the file durable.

        The file is read back for it, most of it while others go on writing.
        """
        self._seal(reason, last=False)

    def flush(self) -> None:
        """Make the file durable if that was last done more than 5 s ago, and nobody is at it."""
        due = abs(self._clock_ns() - self._synced_ns) > _SYNC_EVERY_NS
        if due and self._sealing.acquire(blocking=False):
            try:
                if not self._closed:
                    self._sync()
            finally:
                self._sealing.release()

    def close(self) -> None:
        """Seal and close the file. What comes later is counted in `dropped`."""
        with self._sealing:
            if not self._closed and not self._in_seal:
                self._seal("close", last=True)
                self._alone(self._give_back)

    def _put(self, frames: bytes, num_events: int = 1) -> bool:
        """Append whole frames; return whether they are in the file."""
        # This is _alone(self._write, ...) spelled out: 0.3 us of each log.
        with self._lock:
            if self._busy:
                self._postponed.append((self._write, (frames, num_events)))
                return False
            self._busy = True
            try:
                return self._write(frames, num_events)
            finally:
                self._busy = False
                if self._postponed:
                    self._catch_up()

    def _alone(self, action: Callable[..., bool], *args: Any) -> bool:
        """Do what no call of another thread, and none of a signal handler, may come between.

        The lock keeps threads out; a signal handler runs in the thread that holds it, and is put off.
        """
        with self._lock:
            if self._busy:
                self._postponed.append((action, args))
                return False
            self._busy = True
            try:
                return action(*args)
            finally:
                self._busy = False
                self._catch_up()

    def _catch_up(self) -> None:
        """Do what signal handlers asked for while this thread was busy."""
        while self._postponed:
            action, args = self._postponed.pop(0)
            self._alone(action, *args)

    def _write(self, frames: bytes, num_events: int) -> bool:
        if self._owing:
            return self._write_owed(frames, num_events)
        try:
            self._file.append(frames)
        except OSError as error:
            self._lose(num_events, str(error))
            return False
        return True

    def _write_owed(self, frames: bytes, num_events: int) -> bool:
        """Append the header and the count of losses, which must come first, together with the frames."""
        if self._closed:
            self.dropped += 0 if self._forked else num_events
            return False
        lost = self._lost
        owed = encode_event(self._header) if self._header else b""
        if lost:
            owed += encode_event(Dropped(self._clock_ns(), lost, self._loss_reason))
        try:
            self._file.append(owed + frames)
        except OSError as error:
            self._lose(num_events, str(error))
            return False
        self._header = None
        self._lost -= lost  # a signal handler may have lost one meanwhile
        self._owing = self._lost > 0
        return True

    def _lose(self, num_events: int, reason: str) -> None:
        with self._lock:
            self.dropped += num_events
            self._lost += num_events
            self._loss_reason = reason
            self._owing = True

    def _learn(self, names: tuple[str, ...]) -> _KeySet:
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"A metric's name must be text, got {name!r} ({type(name).__name__}).")
        if len(self._key_sets) >= _MAX_KEY_SETS:
            self._key_sets.clear()
        return self._key_sets.setdefault(names, _KeySet(next(self._new_names_id), names))

    def _seal(self, reason: str, *, last: bool) -> None:
        with self._sealing:
            if self._closed or self._in_seal:
                return
            self._in_seal = True
            try:
                self._alone(self._append_seal, self._hash_ahead(), reason, last)
                self._sync()
            finally:
                self._in_seal = False

    def _hash_ahead(self) -> tuple[_Hash, int] | None:
        """Return the next seal's digest up to an offset, and that offset, while others write.

        None where that is left to `_append_seal`: to fail there, or because a signal handler asks in the
        middle of a write, when the file may end with half a frame and other seals may come first.
        """
        digest, start = begin_digest(self._seal_digest), self._seal_start
        try:
            with self._lock:
                if self._busy:
                    return None
                end = self._file.size()
            for part in self._file.read(start, end):
                digest.update(part)
        except OSError:
            return None
        return digest, end

    def _append_seal(self, ahead: tuple[_Hash, int] | None, reason: str, last: bool) -> bool:
        """Hash the rest and append the seal, with nobody writing between the two."""
        digest, hashed = ahead or (begin_digest(self._seal_digest), self._seal_start)
        try:
            if not self._owing or self._write(b"", 1):
                start = self._file.size()
                for part in self._file.read(hashed, start):
                    digest.update(part)
                if self._write(encode_event(Seal(self._clock_ns(), digest.digest(), reason)), 1):
                    self._seal_digest, self._seal_start = digest.digest(), start
        except OSError as error:
            self._lose(1, f"Seal: {error}")
        if last:
            self._closed = self._owing = True
        return True

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            if not self._sync_failed:
                self._sync_failed = True
                text = f"The record may not survive a power failure: {error}"
                self.emit(Note(self._clock_ns(), "warning", "record-not-durable", text))
        self._synced_ns = self._clock_ns()

    def _give_back(self) -> bool:
        try:
            self._file.close()
        except OSError:
            pass  # network file systems report here what the sync before has reported
        return True

    def _leave_to_parent(self) -> None:
        """Write nothing any more: this is a forked child, where a thread that held a lock is gone."""
        self._forked = self._closed = self._owing = True
        self._lock, self._sealing = threading.RLock(), threading.RLock()
        self._busy = self._in_seal = False
        self._postponed.clear()
        self._give_back()


class _KeySet:
    """One set of metric names: its id, how its values are packed, when to write the names again."""

    __slots__ = ("calls_left", "named_after", "names", "names_id", "pack")

    def __init__(self, names_id: int, names: tuple[str, ...]) -> None:
        self.names_id = names_id
        self.names = names
        self.pack = struct.Struct(f"<{len(names)}d").pack
        self.calls_left = 0  # before the names are due again
        self.named_after = 0  # start of the last seal when they were written


class _Past(NamedTuple):
    """Where an earlier writer of the file stopped."""

    end: int = 0  # of the last sound frame
    seal_digest: bytes = FIRST_DIGEST
    seal_start: int = 0
    # Ids go on from here: a reader that lost a Names frame must not join Points with other names.
    max_names_id: int = 0


def _read_past(path: Path) -> _Past:
    end = seal_start = max_names_id = 0
    seal_digest = FIRST_DIGEST
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return _Past()
    with file:
        for item in scan(file, 0):
            end = item.end
            if isinstance(item, Frame):
                if isinstance(item.event, Seal):
                    seal_digest, seal_start = item.event.sha256, item.offset
                elif isinstance(item.event, Names):
                    max_names_id = max(max_names_id, item.event.names_id)
    return _Past(end, seal_digest, seal_start, max_names_id)


def _pack_each(values: Mapping[str, float]) -> bytes:
    """Pack what cannot be packed at once: an integer beyond float64 is infinite, anything else is named."""
    packed = bytearray()
    for name, value in values.items():
        try:
            packed += _FLOAT64.pack(value)
        except struct.error:
            if not isinstance(value, int):
                kind = type(value).__name__
                raise TypeError(f"The value of metric {name!r} is no number: {value!r} ({kind}).") from None
            packed += _FLOAT64.pack(math.inf if value > 0 else -math.inf)
    return bytes(packed)


# A fork closes the child's writers: cheaper than to ask for the process id in every call.
_open_writers: weakref.WeakSet[RecordWriter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_open_writers):
        writer._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
