"""What the end of one record file says: the newest steps, the clock, the hardware samples.

A record can be read from any byte on, so that what a training of days wrote in its last seconds costs the same as a
short one. What is told once is at the head: who writes, which step was the first, the names of metrics, which the
writer repeats after each seal and each thousand samples. So the head is read too, and nothing in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gscalar.model.events import Adopted, AnyEvent, Clock, Collectives, Hardware, Header, Names, Spans, Step
from gscalar.state.records import Frame, read_record

_HEAD_BYTES: Final = 1 << 16


class Sample(NamedTuple):
    """One look at the hardware: of the host (rank -1) or of a worker."""

    time_ns: int
    rank: int
    values: dict[str, float]


@dataclass(slots=True)
class RecordEnd:
    """What head and end of a record file say; times are of its own clock."""

    header: Header | None = None
    first_step: int | None = None  # that this process did, as far as its head tells
    steps: dict[int, Step] = field(default_factory=dict)
    spans: dict[int, Spans] = field(default_factory=dict)
    collectives: dict[int, Collectives] = field(default_factory=dict)
    clocks: list[Clock] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The host of the writer; empty where it is not known."""
        return self.header.host if self.header is not None else ""

    @property
    def timed(self) -> set[int]:
        """The steps whose begin is known, where spans are recorded at all."""
        return self.steps.keys() & self.spans.keys() if self.spans else set(self.steps)


def read_record_end(path: Path, num_bytes: int) -> RecordEnd:
    """Return what the head and the last bytes of a record say; nothing where it cannot be read."""
    found = RecordEnd()
    names: dict[int, tuple[str, ...]] = {}
    try:
        size = path.stat().st_size
        if size > num_bytes + _HEAD_BYTES:
            for event in _frames(path, 0, _HEAD_BYTES):
                _take_head(found, names, event)
            begin = size - num_bytes
        else:
            begin = 0
        for event in _frames(path, begin, size):
            _take(found, names, event)
    except OSError:
        pass  # what was read so far stands
    found.clocks.sort(key=lambda each: each.time_ns)
    return found


def _frames(path: Path, begin: int, end: int) -> Iterator[AnyEvent]:
    for item in read_record(path, begin):
        if item.offset >= end:
            return
        if isinstance(item, Frame):
            yield item.event


def _take_head(found: RecordEnd, names: dict[int, tuple[str, ...]], event: AnyEvent) -> None:
    """Take what holds for the whole file: no steps, since those after them are not read."""
    match event:
        case Step():
            if found.first_step is None:
                found.first_step = event.step
        case Header() | Names() | Clock() | Adopted():
            _take(found, names, event)


def _take(found: RecordEnd, names: dict[int, tuple[str, ...]], event: AnyEvent) -> None:
    match event:
        case Step():
            if found.first_step is None:
                found.first_step = event.step
            found.steps[event.step] = event
        case Spans():
            found.spans[event.step] = event
        case Collectives():
            found.collectives[event.step] = event
        case Names():
            names[event.names_id] = event.names
        case Hardware():
            known = names.get(event.names_id, ())
            values = np.frombuffer(event.values, "<f8", len(event.values) // 8).tolist()
            if len(known) == len(values):
                found.samples.append(Sample(event.time_ns, event.rank, dict(zip(known, values, strict=True))))
        case Clock():
            found.clocks.append(event)
        case Adopted():
            found.facts |= event.facts
        case Header():
            _begin(found, names, event)


def _begin(found: RecordEnd, names: dict[int, tuple[str, ...]], header: Header) -> None:
    """Another process may go on with a file that exists: what it does is another beginning."""
    found.header = header
    found.first_step = None
    names.clear()
    for told in (found.steps, found.spans, found.collectives):
        told.clear()
