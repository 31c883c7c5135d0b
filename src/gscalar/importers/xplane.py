"""Traces of TensorFlow and JAX: XSpace messages (`*.xplane.pb`), read without either of them.

A space has planes: one for each device and some of the host. A plane has lines of events, whose names are in its
table. Steps are those of a device's line "Steps", or of host events that carry `step_num` (JAX's StepTraceAnnotation,
TensorFlow's Trace with `step_num`). On a TPU what counts is the lines "XLA Ops" and "Async XLA Ops", on a GPU those of
its streams; other lines tell the same time again by other names. An operation that holds others, such as a loop,
counts by what it holds.

Accounts of a step are those of `device_trace`. A trace of a CPU has no device, and nothing tells which of the host's
threads work for the step: there only the steps and tf.data's waits for a batch are known.

One file is of one process, and says nothing of others. Schema: openxla/xla, `xplane.proto` and `xplane_schema.cc`.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.base.errors import UserError
from gscalar.importers.device_trace import DeviceOperations, Windows, as_timeline
from gscalar.importers.wire import DELIMITED, VARINT, Bytes, Messages, WireError, columns, fields, signed
from gscalar.model.timeline import Activity, Floats, Ints, Rank, Signal, StepTimeline

_DEVICE: Final = re.compile(r"/device:(?:GPU|TPU):(\d+)$")
_HOST: Final = "/host:CPU"
_STEPS: Final = "Steps"
_NESTING: Final = "XLA Ops"
_XLA_LINES: Final = (_NESTING, "Async XLA Ops")
_DERIVED: Final = frozenset(
    {_STEPS, *_XLA_LINES, "XLA Modules", "Framework Ops", "Framework Name Scope", "TensorFlow Ops"}
    | {"TensorFlow Name Scope", "Launch Stats", "Source code", "Source", "_counters_", "Tensor Core Sync Flag"}
    | {"Host Offload Ops"}
)  # the lines of a GPU's plane that are no streams
_BATCHES: Final = ("IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute")
_INFEED: Final = re.compile(r"%?infeed(-start|-done)?(?![\w-])")
_PS_PER_S: Final = 1e12
_PS_PER_NS: Final = 1000
# Numbers of fields in xplane.proto.
_SPACE_PLANES, _SPACE_HOSTNAMES = 1, 4
_PLANE_NAME, _PLANE_LINES, _PLANE_EVENT_NAMES, _PLANE_STAT_NAMES = 2, 3, 4, 5
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_NAMED_NAME, _NAMED_DISPLAY_NAME = 2, 4
_LINE_NAME, _LINE_TIMESTAMP_NS, _LINE_EVENTS, _LINE_DISPLAY_NAME = 2, 3, 4, 11
_EVENT_NAME, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_STAT_NAME, _STAT_UINT64, _STAT_INT64 = 1, 3, 4

_UNKNOWN: Final = {
    Signal.ARRIVALS: "a trace of one process does not tell when the others came",
    Signal.QUEUE: "an xplane trace does not say how full the loader's queue is",
    Signal.LAUNCHES: "an xplane trace is not read for launches",
    Signal.WORK: "an xplane trace does not say how many samples a step had",
    Signal.GC: "an xplane trace does not name garbage collection",
    Signal.CHECKPOINTS: "an xplane trace does not name checkpoints",
    Signal.MEMORY_BANDWIDTH: "an xplane trace is not read for counters",
}


@dataclass(frozen=True, slots=True)
class Line:
    """Events of one line: `name` is an index into those of the plane, times are picoseconds."""

    name: str
    name_of: Ints
    start_ps: Ints
    end_ps: Ints
    step_number: Ints  # -1 where an event carries none

    def __len__(self) -> int:
        return len(self.start_ps)

    def at(self, chosen: npt.NDArray[np.generic]) -> Line:
        """Return the line with the chosen events only."""
        columns_ = (column[chosen] for column in (self.name_of, self.start_ps, self.end_ps, self.step_number))
        return Line(self.name, *columns_)


@dataclass(slots=True)
class Plane:
    """One plane, with the tables of its names."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)

    def ids(self, *names: str) -> list[int]:
        """Return the numbers of events of these names."""
        return [number for number, name in self.event_names.items() if name in names]


def read_xplane(path: Path) -> StepTimeline:
    """Return the timeline of an XSpace file. Raises `UserError` trace-damaged."""
    try:
        with path.open("rb") as file:
            # Closed with the last view into it: an error's traceback still holds some.
            hostname, planes = _read_space(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (WireError, ValueError) as error:  # mmap refuses an empty file by ValueError
        raise _damaged(path, "it is empty" if not path.stat().st_size else str(error)) from error
    if not any(plane.lines for plane in planes):
        raise _damaged(path, "it has no events")
    return _as_timeline(path.name, hostname, planes)


def looks_like_xspace(head: bytes) -> bool:
    """Tell whether a file that begins so may be an XSpace: a plane first, whose fields are those of a plane."""
    try:
        number, kind, start, _ = next(fields(head, 0, 1 << 62))
        if (number, kind) != (_SPACE_PLANES, DELIMITED):
            return False
        number, kind, _, _ = next(fields(head, start, 1 << 62))
    except (WireError, IndexError, StopIteration):
        return False
    return (number, kind) in {(1, VARINT), (2, DELIMITED), (3, DELIMITED), (4, DELIMITED), (5, DELIMITED)}


def _read_space(mapped: mmap.mmap) -> tuple[str, list[Plane]]:
    view = memoryview(mapped)
    data = np.frombuffer(view, np.uint8)
    hostname, planes = "", []
    for number, kind, start, end in fields(view, 0, len(view)):
        if number == _SPACE_PLANES and kind == DELIMITED:
            planes.append(_read_plane(view, data, start, end))
        elif number == _SPACE_HOSTNAMES and kind == DELIMITED and not hostname:
            hostname = _text(view, start, end)
    return hostname, planes


def _read_plane(view: memoryview, data: Bytes, start: int, end: int) -> Plane:
    plane, lines = Plane(), []
    for number, kind, value, after in fields(view, start, end):
        if kind != DELIMITED:
            continue
        if number == _PLANE_NAME:
            plane.name = _text(view, value, after)
        elif number == _PLANE_LINES:
            lines.append((value, after))
        elif number == _PLANE_EVENT_NAMES:
            _add_name(view, value, after, plane.event_names)
        elif number == _PLANE_STAT_NAMES:
            _add_name(view, value, after, plane.stat_names)
    if plane.name == _HOST or _DEVICE.match(plane.name):
        plane.lines = [_read_line(view, data, *place, plane) for place in lines]
    return plane


def _add_name(view: memoryview, start: int, end: int, names: dict[int, str]) -> None:
    """Add an entry of a table of names; a name for people goes before the full one, which may be a whole program."""
    key, name, short = 0, "", ""
    for number, kind, value, after in fields(view, start, end):
        if number == _ENTRY_KEY and kind == VARINT:
            key = signed(value)
        elif number == _ENTRY_VALUE and kind == DELIMITED:
            for inner, inner_kind, place, stop in fields(view, value, after):
                if inner == _NAMED_NAME and inner_kind == DELIMITED:
                    name = _text(view, place, stop)
                elif inner == _NAMED_DISPLAY_NAME and inner_kind == DELIMITED:
                    short = _text(view, place, stop)
    names[key] = short or name


def _read_line(view: memoryview, data: Bytes, start: int, end: int, plane: Plane) -> Line:
    name, timestamp_ns, starts, ends = "", 0, [], []
    for number, kind, value, after in fields(view, start, end):
        if number == _LINE_EVENTS and kind == DELIMITED:
            starts.append(value)
            ends.append(after)
        elif number in (_LINE_NAME, _LINE_DISPLAY_NAME) and kind == DELIMITED:
            name = name or _text(view, value, after)
        elif number == _LINE_TIMESTAMP_NS and kind == VARINT:
            timestamp_ns = signed(value)
    if plane.name != _HOST and name in _DERIVED and name not in (_STEPS, *_XLA_LINES):
        starts, ends = [], []
    places = Messages(np.array(starts, np.int64), np.array(ends, np.int64), np.zeros(len(starts), np.int64))
    found, stats = columns(data, places, (_EVENT_NAME, _EVENT_OFFSET_PS, _EVENT_DURATION_PS), nested=_EVENT_STATS)
    start_ps = timestamp_ns * _PS_PER_NS + found[_EVENT_OFFSET_PS]
    numbers = _step_numbers(data, stats, plane, len(places))
    return Line(name, found[_EVENT_NAME], start_ps, start_ps + found[_EVENT_DURATION_PS], numbers)


def _step_numbers(data: Bytes, stats: Messages, plane: Plane, num_events: int) -> Ints:
    numbers = np.full(num_events, -1, np.int64)
    step_num = [key for key, name in plane.stat_names.items() if name == "step_num"]
    if step_num and plane.name == _HOST:
        found, _ = columns(data, stats, (_STAT_NAME, _STAT_UINT64, _STAT_INT64))
        of_step = np.isin(found[_STAT_NAME], step_num)
        numbers[stats.owner[of_step]] = (found[_STAT_UINT64] + found[_STAT_INT64])[of_step]  # only one of them is set
    return numbers


def _text(view: memoryview, start: int, end: int) -> str:
    return bytes(view[start:end]).decode(errors="replace")


def _as_timeline(name: str, hostname: str, planes: list[Plane]) -> StepTimeline:
    devices = [plane for plane in planes if _DEVICE.match(plane.name)]
    hosts = [plane for plane in planes if plane.name == _HOST]
    origin_ps = min(int(line.start_ps.min()) for plane in planes for line in plane.lines if len(line))
    notes: list[str] = []
    operations = [_operations(plane, origin_ps, notes) for plane in devices]
    steps = _steps(devices, hosts, origin_ps)
    waits = [_seconds(line, origin_ps) for plane in hosts for line in _batch_lines(plane)]
    unknown = dict(_UNKNOWN)
    if not steps.numbers.size:
        unknown[Signal.STEPS] = "no device has a line of steps, and no event of the host carries step_num"
    if not waits and not any(each.chosen(Activity.DATA_WAIT).any() for each in operations):
        unknown[Signal.DATA_WAIT] = "the trace has no event that gets a batch (tf.data on the host, infeed of a device)"
    skipped = sorted({plane.name for plane in planes if plane.name.startswith("/device:")} - {p.name for p in devices})
    if skipped:
        notes.append(f"not read: {', '.join(skipped)}")
    return as_timeline(
        source="xplane",
        name=name,
        ranks=(Rank(rank=0, host=hostname),),
        operations=operations,
        steps=[steps],
        waits=[waits],
        unknown=unknown,
        notes=tuple(notes),
    )


def _seconds(line: Line, origin_ps: int) -> tuple[Floats, Floats]:
    return (line.start_ps - origin_ps) / _PS_PER_S, (line.end_ps - origin_ps) / _PS_PER_S


def _batch_lines(plane: Plane) -> Iterator[Line]:
    """Yield what the threads of the steps wait for batches; loaders' own threads get batches from one another too."""
    batches = plane.ids(*_BATCHES)
    for line in plane.lines:
        chosen = np.isin(line.name_of, batches)
        if chosen.any() and (line.step_number >= 0).any():
            yield line.at(chosen)


def _operations(plane: Plane, origin_ps: int, notes: list[str]) -> DeviceOperations:
    """Return what a device did: the innermost operations of the lines that count."""
    of_xla = [line for line in plane.lines if line.name in _XLA_LINES and len(line)]
    streams = [line for line in plane.lines if line.name not in _DERIVED and len(line)]
    lines = streams or of_xla
    damaged = sum(int((line.end_ps < line.start_ps).sum()) for line in lines)
    if damaged:
        notes.append(f"{damaged} operations of {plane.name} with a negative duration are left out")
        lines = [line.at(line.end_ps >= line.start_ps) for line in lines]
    lines = [_innermost(line) if line.name == _NESTING else line for line in lines]
    starts, ends, numbers = (
        np.concatenate([np.empty(0, np.int64), *(getattr(line, name) for line in lines)])
        for name in ("start_ps", "end_ps", "name_of")
    )
    match = _DEVICE.match(plane.name)
    assert match is not None
    names = {number: plane.event_names.get(number, f"operation {number}") for number in np.unique(numbers).tolist()}
    return DeviceOperations.of(
        rank=0,
        device=int(match[1]),
        intervals=((starts - origin_ps) / _PS_PER_S, (ends - origin_ps) / _PS_PER_S),
        name=numbers,
        names=names,
        activities={number: Activity.DATA_WAIT for number, each in names.items() if _INFEED.match(each)},
    )


def _innermost(line: Line) -> Line:
    """Return the line without the operations that hold others, and without those that take no time."""
    line = line.at(line.end_ps > line.start_ps)
    line = line.at(np.lexsort((-line.end_ps, line.start_ps)))
    if len(line) < 2:
        return line
    holds = line.end_ps[1:] <= line.end_ps[:-1]  # the next one, which does not begin before it
    return line.at(~np.r_[holds, False])


def _steps(devices: list[Plane], hosts: list[Plane], origin_ps: int) -> Windows:
    """Return the steps of the devices, else those that events of the host mark."""
    places: dict[int, tuple[int, int]] = {}

    def add(line: Line, numbers: list[int]) -> None:
        for number, start, end in zip(numbers, line.start_ps.tolist(), line.end_ps.tolist(), strict=True):
            first, last = places.get(number, (start, end))
            places[number] = min(first, start), max(last, end)

    for plane in devices:
        numbered = {key: int(name) for key, name in plane.event_names.items() if name.isdecimal()}
        for line in plane.lines:
            if line.name == _STEPS:
                line = line.at(np.isin(line.name_of, list(numbered)))
                add(line, [numbered[key] for key in line.name_of.tolist()])
    if not places:
        for line in (line.at(line.step_number >= 0) for plane in hosts for line in plane.lines):
            add(line, line.step_number.tolist())
    return Windows.of(
        {
            step: ((start - origin_ps) / _PS_PER_S, (end - origin_ps) / _PS_PER_S)
            for step, (start, end) in places.items()
        }
    )


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        code="trace-damaged",
        what=f"{path.name} cannot be read as a profile of TensorFlow or JAX: {why}.",
        value=str(path),
        next_step="Give the .xplane.pb file that jax.profiler.trace or tf.profiler.experimental wrote.",
    )
