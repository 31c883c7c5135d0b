"""How a step's exposed communication divides into waiting for the last rank and moving bytes, of one run.

It takes all ranks' records side by side, which the catalog does not keep. So the ends of the record files are
read when a run is shown: a bounded number of bytes from each, and of what they hold the newest steps that
all of them have. A record can be read from any byte on. The share of waiting in these steps is applied
to the run's mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gscalar.model.events import Clock, Collectives, Spans
from gscalar.model.spans import SpanKind, unpack_collectives, unpack_spans
from gscalar.observation.clocks import to_rank0_time
from gscalar.observation.waiting import Interval, Met, RankTrace, split_exposed
from gscalar.state.home import RunFolder
from gscalar.state.records import Frame, read_record

MOST_STEPS: Final = 200
_BYTES_A_RANK: Final = 1 << 19
# Of a gang of hundreds, each file gives fewer steps.
_BYTES_IN_ALL: Final = 1 << 24
_FEWEST_BYTES: Final = 1 << 15


@dataclass(slots=True)
class _Tail:
    """The end of one rank's record, by step, in ns of rank 0's clock."""

    exposed: dict[int, list[Interval]] = field(default_factory=dict)
    met: dict[int, list[Met]] = field(default_factory=dict)

    def trace(self, steps: list[int]) -> RankTrace:
        return RankTrace(
            exposed=tuple(each for step in steps for each in self.exposed.get(step, ())),
            met=tuple(each for step in steps for each in self.met.get(step, ())),
        )


def exposed_split(folder: RunFolder, measured: Mapping[str, Any]) -> dict[str, float] | None:
    """Return `transfer` and `wait` in seconds a step, which sum to the mean of `exposed_communication`.

    None where nothing was exposed, and where fewer than two ranks are known that met in a collective.
    """
    accounts, clocks, attempt = measured.get("accounts"), measured.get("clocks") or {}, measured.get("attempt")
    if not accounts or attempt is None or len(clocks) < 2:
        return None
    exposed_s = accounts["exposed_communication"]["mean"]
    num_bytes = min(_BYTES_A_RANK, max(_FEWEST_BYTES, _BYTES_IN_ALL // len(clocks)))
    tails = {
        int(rank): read_tail(folder.worker_record(attempt, int(rank)), clock, num_bytes)
        for rank, clock in clocks.items()
    }
    known = {rank: tail for rank, tail in tails.items() if tail.met}
    if len(known) < 2:
        return None
    steps = sorted(set.intersection(*(set(tail.met) for tail in known.values())))[-MOST_STEPS:]
    found = split_exposed({rank: tail.trace(steps) for rank, tail in known.items()})
    if found is None or found.wait_ns + found.transfer_ns <= 0:
        return None
    wait_s = exposed_s * found.wait_ns / (found.wait_ns + found.transfer_ns)
    return {"transfer": exposed_s - wait_s, "wait": wait_s}


def read_tail(path: Path, last_clock: Mapping[str, float], num_bytes: int) -> _Tail:
    """Return what the last bytes of a record say of communication; nothing where it cannot be read.

    `last_clock` is the estimate of the clock that the catalog has; there may be others in these bytes.
    """
    told = [item.event for item in _read_end(path, num_bytes)]
    clocks = [each for each in told if isinstance(each, Clock)]
    clocks.append(
        Clock(
            int(last_clock["time_ns"]), last_clock["offset_s"], last_clock["drift"], last_clock["bound_s"], num_pings=0
        )
    )
    clocks.sort(key=lambda each: each.time_ns)
    tail = _Tail()
    for event in told:
        if isinstance(event, Spans):
            tail.exposed[event.step] = list(_exposed(event, to_rank0_time(event.time_ns, clocks)))
        elif isinstance(event, Collectives):
            tail.met[event.step] = list(_met(event, to_rank0_time(event.time_ns, clocks)))
    return tail


def _read_end(path: Path, num_bytes: int) -> list[Frame]:
    try:
        items = read_record(path, max(0, path.stat().st_size - num_bytes))
        return [item for item in items if isinstance(item, Frame)]
    except OSError:
        return []


def _exposed(event: Spans, begin_ns: int) -> Iterator[Interval]:
    for span in unpack_spans(event.rows):
        if span.kind == SpanKind.COMMUNICATION:
            yield begin_ns + span.start_ns, begin_ns + span.start_ns + span.duration_ns


def _met(event: Collectives, begin_ns: int) -> Iterator[Met]:
    for each in unpack_collectives(event.rows):
        yield Met((each.group, each.sequence), begin_ns + each.ready_ns, begin_ns + each.end_ns)
