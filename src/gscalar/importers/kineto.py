"""PyTorch's profiler traces (Kineto): one rank's file as a `RankTrace`.

Steps are what the profiler's `step()` named. A launch belongs to the operation of the device that has its
correlation. Whether a kernel communicates is told by torch's own word beside it, by the annotation of its stream, or
by its name, in this order; a kind that none of them tells is not known, and the name is listed.

Limits: host operators are not kept, so of a training on CPUs only its steps, loaders and exchanges are seen. Where a
kernel of a CUDA graph was issued is where the graph was.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Final

import numpy as np

from gscalar.base.errors import UserError
from gscalar.importers.kineto_events import Collector, Decoder, Event, Exchange
from gscalar.importers.kineto_names import annotated_kind, loads_in_process
from gscalar.importers.kineto_stream import EventReader, Progress, Reading, damaged
from gscalar.importers.operation_names import collective_kind
from gscalar.importers.rank_trace import Bools, Exchanges, HostSpans, Operations, ProcessGroup, RankTrace
from gscalar.model.timeline import NONE, Activity, Floats, Ints, Signal

_FILE_RANK: Final = re.compile(r"rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
_MARKS: Final = ("deviceProperties", "distributedInfo", "record_shapes", "with_stack", "profile_memory")
_US: Final = 1e-6
_MOST: Final = 2**63 - 1
_UNKNOWN: Final = {
    Signal.QUEUE: "a profiler's trace does not show the loader's queue",
    Signal.WORK: "a profiler's trace does not say how many samples or tokens a step had",
    Signal.MEMORY_BANDWIDTH: "a profiler's trace has no counters of memory traffic",
}


def read_kineto(path: Path, *, progress: Progress | None = None) -> RankTrace:
    """Return what one rank's trace tells; `progress` is given the share of the file that was read.

    Raises `UserError` trace-damaged (empty, or no event is whole) and trace-unknown (JSON of another kind).
    """
    decode, collector = Decoder(), Collector()
    reader: EventReader[list[Event]] = EventReader(path, decode, progress)
    try:
        for events in reader.batches():
            collector.add(events)
    except RecursionError:
        raise damaged(path, "its JSON is nested too deeply") from None
    reading = reader.reading
    if not collector.recognised:
        if reading.cut:
            raise damaged(path, f"{reading.cut}, and no event of PyTorch's profiler is whole before that")
        if not any(mark in reading.about for mark in _MARKS):
            raise UserError(
                code="trace-unknown",
                what="This is a trace in Chrome's format, and none of PyTorch's profiler.",
                value=str(path),
                next_step="Give a trace of torch.profiler, or the id of a run.",
            )
    return _Assembly(collector, reading, decode.num_odd).trace()


class _Assembly:
    """Turns the columns of a file into a rank's trace."""

    def __init__(self, collector: Collector, reading: Reading, num_odd: int) -> None:
        self._seen = collector
        self._reading = reading
        self._notes: list[str] = []
        firsts = [
            *(min(column) for column in (collector.start,) if column),
            *(start for _, start, _ in collector.steps),
            *(start for _, _, start, _ in collector.host_spans),
        ]
        self._origin_us = min(firsts, default=0.0)
        self._note(reading.cut and f"the file ends too early, what was whole is used: {reading.cut}")
        self._count(reading.num_mended, "runs of events were no JSON and were mended")
        self._count(num_odd, "events have no form that is known, and are left out")
        self._count(collector.num_negative, "events last less than nothing, and are left out")

    def trace(self) -> RankTrace:
        """Return the trace."""
        operations, exchanges_of, numbers = self._operations()
        host_spans = self._host_spans()
        on_host = not operations.chosen(Activity.COMMUNICATION).any()
        exchanges = (
            self._exchanges_of_host(host_spans) if on_host else self._exchanges(operations, exchanges_of, numbers)
        )
        steps, begin_s, end_s = self._seen_steps(operations)
        about = self._reading.about
        info = about.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank, world = _whole(info.get("rank"), NONE), _whole(info.get("world_size"), 0)
        declared = rank != NONE
        named = _FILE_RANK.search(self._reading.path.name)
        if rank == NONE and named:
            rank = int(named[1])
        host = about.get("host_name")
        groups = {**self._seen.groups, **_groups(info)}
        names = tuple(self._seen.names)
        return RankTrace(
            path=self._reading.path,
            rank=rank,
            world=world,
            is_rank_declared=declared,
            host=host if isinstance(host, str) else "",
            origin_ns=_whole(about.get("baseTimeNanoseconds"), 0) + _nanoseconds(self._origin_us),
            operations=operations,
            host_spans=host_spans,
            exchanges=exchanges,
            on_host=on_host,
            groups=groups,
            steps=steps,
            begin_s=begin_s,
            end_s=end_s,
            names=names,
            num_workers=self._num_workers(host_spans, names),
            unknown=self._unknown(operations, host_spans, steps),
            unmatched=_unmatched(exchanges, operations, names) if not on_host else (),
            is_cut=bool(self._reading.cut),
            notes=tuple(self._notes),
        )

    def _seconds(self, microseconds: Floats) -> Floats:
        seconds: Floats = (microseconds - self._origin_us) * _US
        return seconds

    def _operations(self) -> tuple[Operations, dict[int, Exchange], Ints]:
        """Return the operations in order, what is said of those that exchange, and the place of each in the file."""
        seen = self._seen
        start, duration = _floats(seen.start), _floats(seen.duration)
        lane, name, correlation = _ints(seen.lane), _ints(seen.name), _ints(seen.correlation)
        activity = np.array(seen.activity, np.int64)
        said = dict(seen.exchanges)
        self._add_announced(said, activity)
        self._add_annotated(said, activity, start, lane)
        order = _without_repeated(start, duration, lane, name, correlation)
        self._count(len(start) - len(order), "operations are in the file twice, and count once")
        begin = self._seconds(start[order])
        operations = Operations(
            start_s=begin, end_s=begin + duration[order] * _US, launch_s=self._launches(correlation[order]),
            activity=activity[order], name=name[order], device=_ints(seen.device)[order],
            num_bytes=_floats(seen.num_bytes)[order],
        )  # fmt: skip
        return operations, said, order

    def _add_announced(self, said: dict[int, Exchange], activity: Ints) -> None:
        """Take what a host operator says of the kernels that communicate and have its external id."""
        announced = self._seen.announced
        if not announced:
            return
        external = _ints(self._seen.external)
        for at in np.flatnonzero(activity == Activity.COMMUNICATION).tolist():
            if at not in said and int(external[at]) in announced:
                said[at] = announced[int(external[at])]

    def _add_annotated(self, said: dict[int, Exchange], activity: Ints, start: Floats, lane: Ints) -> None:
        """Take the annotation of a stream for the kernels inside: they communicate, whatever they are called."""
        if not self._seen.device_annotations:
            return
        order = np.lexsort((start, lane))
        for of_lane, begin, end, word in self._seen.device_annotations:
            first, last = np.searchsorted(lane[order], of_lane), np.searchsorted(lane[order], of_lane, side="right")
            starts = start[order[first:last]]
            inside = order[first:last][np.searchsorted(starts, begin) : np.searchsorted(starts, end, side="right")]
            for at in inside.tolist():
                if activity[at] in (Activity.COMPUTE, Activity.COMMUNICATION):
                    activity[at] = Activity.COMMUNICATION
                    said.setdefault(at, Exchange(word, "", float("nan")))

    def _launches(self, correlation: Ints) -> Floats:
        """Return when the host issued each; NaN where the trace does not show it."""
        launched, when = _ints(self._seen.launch_correlation), _floats(self._seen.launch_start)
        launch_s = np.full(len(correlation), np.nan)
        if len(launched) and len(correlation):
            order = np.argsort(launched, kind="stable")
            at = np.minimum(np.searchsorted(launched[order], correlation), len(launched) - 1)
            found = (launched[order[at]] == correlation) & (correlation != NONE)
            launch_s[found] = self._seconds(when[order[at[found]]])
        return launch_s

    def _exchanges(self, operations: Operations, said: dict[int, Exchange], places: Ints) -> Exchanges:
        """Return the exchanges of the devices, in the order in which they were issued."""
        chosen = np.flatnonzero(operations.chosen(Activity.COMMUNICATION))
        issued_s = np.where(np.isfinite(operations.launch_s), operations.launch_s, operations.start_s)[chosen]
        chosen = chosen[np.lexsort((operations.start_s[chosen], issued_s))]
        names = tuple(self._seen.names)
        kinds, groups, num_bytes = [], [], []
        for at in chosen.tolist():
            exchange = said.get(int(places[at]))
            kind = annotated_kind(exchange.collective) if exchange else None
            kinds.append(kind or collective_kind(names[operations.name[at]]) or "")
            groups.append(exchange.group if exchange else "")
            num_bytes.append(exchange.num_bytes if exchange else np.nan)
        operations.num_bytes[chosen] = num_bytes
        return Exchanges(
            operation=chosen, kind=tuple(kinds), group=tuple(groups), issued_s=np.sort(issued_s),
            start_s=operations.start_s[chosen], end_s=operations.end_s[chosen], num_bytes=np.array(num_bytes),
        )  # fmt: skip

    def _exchanges_of_host(self, spans: HostSpans) -> Exchanges:
        chosen = np.flatnonzero(spans.chosen(Activity.COMMUNICATION))
        names = tuple(self._seen.names)
        return Exchanges(
            operation=chosen,
            kind=tuple(annotated_kind(names[at].partition(":")[2]) or "" for at in spans.name[chosen].tolist()),
            group=("",) * len(chosen),
            issued_s=spans.start_s[chosen],
            start_s=spans.start_s[chosen],
            end_s=spans.end_s[chosen],
            num_bytes=spans.num_bytes[chosen],
        )

    def _host_spans(self) -> HostSpans:
        spans = sorted(set(self._seen.host_spans), key=lambda each: each[2])
        columns = np.array(spans, np.float64).reshape(-1, 4).T
        return HostSpans(
            start_s=self._seconds(columns[2]), end_s=self._seconds(columns[3]), activity=columns[0].astype(np.int64),
            name=columns[1].astype(np.int64), num_bytes=np.full(len(spans), np.nan),
        )  # fmt: skip

    def _seen_steps(self, operations: Operations) -> tuple[Ints, Floats, Floats]:
        """Return the steps; of a file that ends too early, those that a device works in."""
        steps, begin_s, end_s = self._steps()
        if not self._reading.cut or not len(operations):
            return steps, begin_s, end_s
        seen = begin_s < operations.end_s.max()
        self._count(int((~seen).sum()), "steps are left out: the file ends before the device's work in them")
        return steps[seen], begin_s[seen], end_s[seen]

    def _steps(self) -> tuple[Ints, Floats, Floats]:
        places: dict[int, tuple[float, float]] = {}
        again = 0
        for number, begin, end in sorted(set(self._seen.steps)):
            again += number in places
            places.setdefault(number, (begin, end))
        self._count(again, "steps have the number of another, and are left out")
        numbers = sorted(places)
        begins, ends = np.array([places[number] for number in numbers], np.float64).reshape(-1, 2).T
        order = np.argsort(begins)
        if (begins[order][1:] < ends[order][:-1] - 1).any():
            self._note("steps overlap: what lies in two counts in both")
        return np.array(numbers, np.int64), self._seconds(begins), self._seconds(ends)

    def _num_workers(self, spans: HostSpans, names: tuple[str, ...]) -> int:
        loaders = {names[at] for at in spans.name[spans.chosen(Activity.DATA_WAIT)].tolist()}
        return 0 if loaders and all(loads_in_process(each) for each in loaders) else NONE

    def _unknown(self, operations: Operations, spans: HostSpans, steps: Ints) -> dict[Signal, str]:
        unknown = dict(_UNKNOWN)
        if not len(operations):
            unknown[Signal.DEVICE] = "the trace has no activity of a device"
            unknown[Signal.COMPUTE] = "the trace has no device, and its host's operators are not told apart"
            unknown[Signal.LAUNCHES] = "the trace has no device"
            if not spans.chosen(Activity.COMMUNICATION).any():
                unknown[Signal.COMMUNICATION] = "the trace has no device, and no collective of the host"
        elif not np.isfinite(operations.launch_s).any():
            unknown[Signal.LAUNCHES] = "the trace has no launches"
        for signal, activity, what in (
            (Signal.DATA_WAIT, Activity.DATA_WAIT, "loader's spans"),
            (Signal.GC, Activity.GC, "spans of garbage collection"),
            (Signal.CHECKPOINTS, Activity.CHECKPOINT, "spans of checkpoints"),
        ):
            if not spans.chosen(activity).any():
                unknown[signal] = f"the trace has no {what}"
        if not len(steps):
            unknown[Signal.STEPS] = "the trace has no steps: the profiler's step() was not called"
        return unknown

    def _note(self, text: str) -> None:
        if text:
            self._notes.append(text)

    def _count(self, number: int, text: str) -> None:
        self._note(f"{number} {text}" if number else "")


def _unmatched(exchanges: Exchanges, operations: Operations, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of what communicates, and whose kind nothing tells."""
    unknown: Bools = np.array([not kind for kind in exchanges.kind], bool)
    return tuple(sorted({names[at] for at in operations.name[exchanges.operation[unknown]].tolist()}))


def _groups(info: dict[object, object]) -> dict[str, ProcessGroup]:
    """Return the process groups that the trace's head lists."""
    listed = info.get("pg_config")
    groups = {}
    for each in listed if isinstance(listed, list) else []:
        if not isinstance(each, dict) or "pg_name" not in each:
            continue
        ranks = each.get("ranks")
        whole = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
        groups[str(each["pg_name"])] = ProcessGroup(size=_whole(each.get("pg_size"), len(whole)), ranks=whole)
    return groups


def _nanoseconds(microseconds: float) -> int:
    """Return whole nanoseconds: their product is too large for a float since 1970."""
    whole = round(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= _MOST else otherwise


def _without_repeated(start: Floats, *others: Floats | Ints) -> Ints:
    """Return the order by start of all that differ from one another in some column."""
    order: Ints = np.argsort(start, kind="stable")
    if not np.any(np.diff(start[order]) == 0):
        return order
    order = np.lexsort((*others[::-1], start))
    is_again = np.ones(len(order) - 1, np.bool_)
    for column in (start, *others):
        is_again &= np.diff(column[order]) == 0
    return order[np.r_[True, ~is_again]]


def _floats(column: array[float]) -> Floats:
    return np.frombuffer(column, np.float64) if column else np.empty(0)


def _ints(column: array[int]) -> Ints:
    return np.frombuffer(column, np.int64) if column else np.empty(0, np.int64)
