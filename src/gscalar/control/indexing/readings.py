"""What one record file says, folded event by event.

A `FileReading` depends on the bytes of its file and on one number, `cut`: where a later attempt went on from
an earlier step, what this attempt did after that step is superseded. Superseded points and steps stay
in the record and count in no summary. Since nothing else goes in, the order in which the files of a run
are read, and how often, changes nothing: reading piece by piece gives what reading at once gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from gscalar.control.indexing.columns import Columns
from gscalar.control.indexing.scanning import RECORD_NAME
from gscalar.control.indexing.sums import Usage, add_accounts, add_usage
from gscalar.model import events
from gscalar.model.events import Event
from gscalar.state.catalog.rows import MetricSummary
from gscalar.state.records.reader import Damage, Frame

NO_CUT: Final = 2**62
# What a run may repeat for ever is kept up to a number; the record has them all.
_MAX_NOTES: Final = 200
_MAX_FAILURES: Final = 50
_MAX_JUMPS: Final = 100
# Written by threads that live on where the training hangs, or by whoever closes a file: no signs of life.
_BESIDE_THE_TRAINING: Final = frozenset((events.Hardware, events.Clock, events.ClockJumped, events.Seal))


class Jump(msgspec.Struct, array_like=True):
    """One `ClockJumped`, with where in the file it stands."""

    attempt: int
    after_end: bool  # the attempt had ended
    time_ns: int
    by_s: float


class FileReading(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What has been read of a record file, but the offset. `metrics` is stored apart from the rest."""

    header: events.Header  # implied by the file's name until one is read
    cut: int = NO_CUT
    names: dict[int, tuple[str, ...]] = {}
    metrics: dict[str, MetricSummary] = {}
    num_events: int = 0
    num_damaged: int = 0
    damaged_bytes: int = 0
    num_unnamed: int = 0  # log calls whose names were lost to damage
    num_dropped: int = 0
    num_seals: int = 0
    closed: bool = False
    last_time_ns: int = 0
    alive_ns: int = 0  # the last time that the training itself gave a sign
    top_step: int = -1  # the highest step named in the file, superseded or not
    stepped: bool = False  # there is a Step, superseded or not
    last_step: int = 0
    total_steps: int = 0
    tokens: float = 0.0
    samples: float = 0.0
    # Sums over all steps but the first, which warms up.
    num_timed: int = 0
    timed_s: float = 0.0
    timed_tokens: float = 0.0
    timed_samples: float = 0.0
    # Sums over those of them that carry accounts, in the order of `gscalar.model.accounts`.
    num_accounted: int = 0
    accounts_s: list[float] = []
    # What the first step was, where it counts; and what steps took that do not.
    first_step_ns: int | None = None  # its begin, superseded or not
    first_s: float = 0.0
    first_accounts: bytes = b""
    superseded_s: float = 0.0
    hardware: dict[int, dict[str, Usage]] = {}  # by rank (-1: the host) and name
    clock: events.Clock | None = None
    jumps: list[Jump] = []
    job: events.WorkerStarted | None = None
    facts: dict[str, Any] = {}
    launches: list[events.AttemptStarted] = []
    endings: list[events.AttemptEnded] = []
    resumed: events.Resumed | None = None
    run_ended: events.RunEnded | None = None
    finished: events.Finished | None = None
    stop_acknowledged: bool = False
    saved: dict[str, events.CheckpointSaved] = {}
    removed: dict[str, int] = {}  # when checkpoints were removed that another file has saved
    failures: list[tuple[int, events.Failure]] = []  # with the attempt
    num_nonfinite: int = 0
    first_nonfinite: events.Nonfinite | None = None
    notes: list[tuple[int, events.Note]] = []  # with the attempt
    edits: list[events.Edited] = []

    @property
    def attempt(self) -> int:
        """The attempt that the file speaks of now."""
        return self.launches[-1].attempt if self.launches else self.header.attempt

    @property
    def is_worker(self) -> bool:
        """Whether a worker writes the file."""
        return self.header.writer == "worker"

    @property
    def is_supervisor(self) -> bool:
        """Whether a supervisor writes the file."""
        return self.header.writer == "supervisor"

    @property
    def trained(self) -> bool:
        """Whether the worker got as far as training."""
        return self.resumed is not None or self.stepped or self.finished is not None


Readings = Mapping[str, FileReading]  # by the file's name
Workers = dict[int, dict[int, FileReading]]  # by attempt and rank, both ascending


def find_start(ranks: Iterable[FileReading]) -> int | None:
    """Return the step that an attempt went on from; -1 where it began anew, None where it did not train."""
    trained = [each for each in ranks if each.trained]
    resumed = [each.resumed.step for each in trained if each.resumed is not None]
    return min(resumed) if resumed else -1 if trained else None


def new_reading(run_id: str, file: str) -> FileReading:
    """Return the reading of a record file of which nothing is read yet.

    The name says who writes it, as `gscalar.state.home` lays down: should the header be damaged, the rest
    of the file still has its place.
    """
    name = RECORD_NAME.fullmatch(file)
    assert name is not None, file
    rank = int(name["rank"] or -1)
    attempt = int(name["attempt"] or name["first"] or 0)
    writer = "worker" if name["rank"] else "supervisor" if name["first"] else "edit"
    header = events.Header(0, run_id, attempt, rank, 0, writer, "", 0, 0.0, 0, "")
    return FileReading(header=header)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(FileReading)


def pack(reading: FileReading) -> bytes:
    """Return all of a reading but its metrics as bytes."""
    metrics, reading.metrics = reading.metrics, {}
    try:
        return _encoder.encode(reading)
    finally:
        reading.metrics = metrics


def unpack(content: bytes) -> FileReading:
    """Return the reading that `pack` made bytes of, without its metrics."""
    return _decoder.decode(content)


def fold(reading: FileReading, items: Iterable[Frame | Damage]) -> None:
    """Take the next items of the file, in order."""
    columns = Columns()
    accounts: list[bytes] = []
    for item in items:
        if isinstance(item, Damage):
            reading.num_damaged += 1
            reading.damaged_bytes += item.end - item.offset
            continue
        event = item.event
        kind = type(event)
        reading.num_events += 1
        reading.closed = False
        if kind is not events.Names:
            reading.last_time_ns = event.time_ns  # type: ignore[union-attr]  # all others have one
            if kind not in _BESIDE_THE_TRAINING:
                reading.alive_ns = reading.last_time_ns
        # Nearly all events are one of these two.
        if kind is events.Points:
            _take_points(reading, cast("events.Points", event), columns)
        elif kind is events.Step:
            _take_step(reading, cast("events.Step", event), columns, accounts)
        elif kind in _HANDLERS:
            _HANDLERS[kind](reading, event)
    columns.fold_into(reading.metrics)
    if accounts:
        reading.num_accounted += len(accounts)
        reading.accounts_s = add_accounts(reading.accounts_s, accounts)


def _take_points(reading: FileReading, event: events.Points, columns: Columns) -> None:
    step = event.step
    if step > reading.top_step:
        reading.top_step = step
    if step > reading.cut:
        return
    names = reading.names.get(event.names_id)
    if names is None or len(event.values) != 8 * len(names):
        reading.num_unnamed += 1
        return
    columns.add_points(names, step, event.values)


def _take_step(reading: FileReading, event: events.Step, columns: Columns, accounts: list[bytes]) -> None:
    step = event.step
    if step > reading.top_step:
        reading.top_step = step
    first, reading.stepped = not reading.stepped, True
    if first:
        begin_s = event.duration_s if math.isfinite(event.duration_s) else 0.0
        reading.first_step_ns = event.time_ns - round(begin_s * 1e9)
    if step > reading.cut:
        reading.superseded_s += event.duration_s
        return
    if step > reading.last_step:
        reading.last_step = step
    if event.total_steps:
        reading.total_steps = event.total_steps
    reading.tokens += event.tokens
    reading.samples += event.samples
    if first:
        reading.first_s = event.duration_s
        reading.first_accounts = event.accounts
    else:
        reading.num_timed += 1
        reading.timed_s += event.duration_s
        reading.timed_tokens += event.tokens
        reading.timed_samples += event.samples
        if event.accounts:
            accounts.append(event.accounts)
    columns.add_step(event)


def _header(reading: FileReading, event: events.Header) -> None:
    # Another process may go on with a file that exists: it counts its names anew and has ended nothing.
    reading.header = event
    reading.names.clear()
    reading.run_ended = None


def _names(reading: FileReading, event: events.Names) -> None:
    reading.names[event.names_id] = event.names


def _worker_started(reading: FileReading, event: events.WorkerStarted) -> None:
    reading.job = event


def _adopted(reading: FileReading, event: events.Adopted) -> None:
    reading.facts = reading.facts | event.facts


def _attempt_started(reading: FileReading, event: events.AttemptStarted) -> None:
    reading.launches.append(event)


def _attempt_ended(reading: FileReading, event: events.AttemptEnded) -> None:
    reading.endings.append(event)


def _resumed(reading: FileReading, event: events.Resumed) -> None:
    reading.resumed = event


def _checkpoint_saved(reading: FileReading, event: events.CheckpointSaved) -> None:
    reading.saved[event.path] = event


def _checkpoint_failed(reading: FileReading, event: events.CheckpointFailed) -> None:
    text = f"The checkpoint of step {event.step} could not be written: {event.reason}"
    _note(reading, events.Note(event.time_ns, "warning", "checkpoint-failed", text))


def _checkpoint_removed(reading: FileReading, event: events.CheckpointRemoved) -> None:
    if reading.saved.pop(event.path, None) is None:
        reading.removed[event.path] = event.time_ns


def _failure(reading: FileReading, event: events.Failure) -> None:
    if len(reading.failures) < _MAX_FAILURES:
        reading.failures.append((reading.attempt, event))


def _nonfinite(reading: FileReading, event: events.Nonfinite) -> None:
    reading.top_step = max(reading.top_step, event.step)
    if event.step > reading.cut:
        return
    reading.num_nonfinite += 1
    if reading.first_nonfinite is None:
        reading.first_nonfinite = event


def _stop_acknowledged(reading: FileReading, _event: events.StopAcknowledged) -> None:
    reading.stop_acknowledged = True


def _run_ended(reading: FileReading, event: events.RunEnded) -> None:
    reading.run_ended = event


def _finished(reading: FileReading, event: events.Finished) -> None:
    reading.finished = event


def _note(reading: FileReading, event: events.Note) -> None:
    if len(reading.notes) < _MAX_NOTES:
        reading.notes.append((reading.attempt, event))


def _dropped(reading: FileReading, event: events.Dropped) -> None:
    reading.num_dropped += event.count


def _edited(reading: FileReading, event: events.Edited) -> None:
    reading.edits.append(event)


def _hardware(reading: FileReading, event: events.Hardware) -> None:
    names = reading.names.get(event.names_id)
    if names is None or len(event.values) != 8 * len(names):
        reading.num_unnamed += 1
        return
    add_usage(reading.hardware.setdefault(event.rank, {}), names, event.values)


def _clock(reading: FileReading, event: events.Clock) -> None:
    reading.clock = event


def _clock_jumped(reading: FileReading, event: events.ClockJumped) -> None:
    ended = bool(reading.endings) and reading.endings[-1].attempt == reading.attempt
    if len(reading.jumps) < _MAX_JUMPS:
        reading.jumps.append(Jump(reading.attempt, ended, event.time_ns, event.by_s))
    else:  # a clock that is set all the time: only the sum is right
        reading.jumps[-1].by_s += event.by_s


def _seal(reading: FileReading, event: events.Seal) -> None:
    reading.num_seals += 1
    reading.closed = event.reason == "close"


# Beat and StopRequested say only that the writer lived then; Spans, Collectives and SampleOrder are read where needed.
_HANDLERS: Final = cast(
    "dict[type[Event], Callable[[FileReading, Event], None]]",
    {
        events.Header: _header,
        events.Names: _names,
        events.WorkerStarted: _worker_started,
        events.Adopted: _adopted,
        events.AttemptStarted: _attempt_started,
        events.AttemptEnded: _attempt_ended,
        events.Resumed: _resumed,
        events.CheckpointSaved: _checkpoint_saved,
        events.CheckpointFailed: _checkpoint_failed,
        events.CheckpointRemoved: _checkpoint_removed,
        events.Failure: _failure,
        events.Nonfinite: _nonfinite,
        events.StopAcknowledged: _stop_acknowledged,
        events.RunEnded: _run_ended,
        events.Finished: _finished,
        events.Note: _note,
        events.Dropped: _dropped,
        events.Edited: _edited,
        events.Hardware: _hardware,
        events.Clock: _clock,
        events.ClockJumped: _clock_jumped,
        events.Seal: _seal,
    },
)
