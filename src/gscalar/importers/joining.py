"""The traces of a training's ranks as one timeline.

Ranks are who their traces say they are, else who their files' names say, else in the order given. Traces that
contradict one another are an error that names two of them; ranks that are missing are said and nothing is made up for
them. Each host's clock is its own, hours apart at times: times are shifted to the first rank's by what all ranks met
for (`rank_matching`), and where they met for nothing the clocks are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.base.errors import UserError
from gscalar.importers.rank_accounts import copies_of_batches, device_uses, host_s, step_accounts, step_of
from gscalar.importers.rank_matching import Clock, Matched, align, match
from gscalar.importers.rank_trace import RankTrace
from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    NONE,
    Activity,
    Collectives,
    Floats,
    Ints,
    Lane,
    Loading,
    Rank,
    Signal,
    Spans,
    StepTimeline,
)

_LANES: Final = {
    Activity.COMPUTE: Lane.COMPUTE,
    Activity.COMMUNICATION: Lane.COMMUNICATION,
    Activity.H2D: Lane.COPY,
    Activity.COPY: Lane.COPY,
    Activity.SET: Lane.COPY,
}
_LANE_OF: Final = np.array([_LANES.get(each, Lane.HOST) for each in Activity], np.int64)
_DEFAULT_GROUP: Final = "0"
# Fewer than this share of the steps with one sequence of collectives is no training of equal steps.
_LEAST_DENSE: Final = 0.5


def join(traces: Sequence[RankTrace]) -> StepTimeline:
    """Return the timeline of traces, one of each rank.

    Raises `UserError` trace-mixed where two are of the same rank, or of different trainings.
    """
    notes: list[str] = []
    ranks = _ranks(traces, notes)
    order = np.argsort(ranks, kind="stable").tolist()
    traces, ranks = [traces[at] for at in order], [ranks[at] for at in order]
    for other in traces[1:]:
        _refuse_others(traces[0], other)
    world = _world(traces)
    unknown = _unknown(traces, world)
    matched = match(traces, ranks) if len(traces) > 1 else Matched((), (), ())
    clocks = align(traces, matched)
    if clocks is None:
        matched = Matched((), (), ())
        clocks = _unaligned(traces, notes)
        if len(traces) > 1:
            unknown[Signal.CLOCKS] = "the ranks have no collective in common that could be matched"
            unknown[Signal.ARRIVALS] = unknown[Signal.CLOCKS]
    numbers = _numbers(traces, matched, notes)
    if world > len(traces):
        notes.append(f"{len(traces)} of {world} ranks are given: a rank that others wait for may be missing")
    notes += [f"{each.path.name}: {note}" if len(traces) > 1 else note for each in traces for note in each.notes]
    return _Table(traces, ranks, clocks, numbers).timeline(world, matched, unknown, notes)


def _ranks(traces: Sequence[RankTrace], notes: list[str]) -> list[int]:
    """Return who each trace is of."""
    known = [each.rank for each in traces]
    seen: dict[int, RankTrace] = {}
    for each in traces:
        if each.rank in seen:
            raise _mixed(f"Two traces are of rank {each.rank}", seen[each.rank], each)
        if each.rank != NONE:
            seen[each.rank] = each
    if len(traces) > 1 and not all(each.is_rank_declared for each in traces):
        if NONE in known:
            notes.append("not all traces say which rank they are of: those that do not are numbered in order")
        else:
            notes.append("not all traces say which rank they are of: their files' names do")
    free = iter(number for number in range(len(traces) + len(seen)) if number not in seen)
    return [rank if rank != NONE else next(free) for rank in known]


def _refuse_others(first: RankTrace, second: RankTrace) -> None:
    """Raise `UserError` where two traces cannot be of one training."""
    if first.world and second.world and first.world != second.world:
        raise _mixed(f"One is of a training of {first.world} ranks and one of {second.world}", first, second)
    groups = [each.groups.get(_DEFAULT_GROUP) for each in (first, second)]
    if groups[0] and groups[1] and groups[0] != groups[1] and first.world:
        raise _mixed("Their process groups of all ranks differ", first, second)
    if len(first.steps) and len(second.steps) and not np.intersect1d(first.steps, second.steps).size:
        spans = [f"{each.steps[0]} to {each.steps[-1]}" for each in (first, second)]
        raise _mixed(f"They have no step in common ({spans[0]}, and {spans[1]})", first, second)
    if not any(each.world or each.rank != NONE or len(each.exchanges) for each in (first, second)):
        raise _mixed("Nothing says that they are ranks of one training, and neither exchanges anything", first, second)


def _mixed(what: str, first: RankTrace, second: RankTrace) -> UserError:
    return UserError(
        code="trace-mixed",
        what=f"{what}: {first.path} and {second.path}.",
        next_step="Give the traces of one training together, one of each rank.",
    )


def _world(traces: Sequence[RankTrace]) -> int:
    declared = max(each.world for each in traces)
    groups = max((group.size for each in traces for group in each.groups.values()), default=0)
    return max(declared or groups, len(traces))


def _unknown(traces: Sequence[RankTrace], world: int) -> dict[Signal, str]:
    """Return what no rank's trace shows."""
    first, *others = traces
    unknown = {signal: why for signal, why in first.unknown.items() if all(signal in each.unknown for each in others)}
    if len(traces) == 1 and (world > 1 or len(first.exchanges)):
        unknown[Signal.ARRIVALS] = "one rank's trace alone cannot tell waiting for others from transfer"
    return unknown


def _unaligned(traces: Sequence[RankTrace], notes: list[str]) -> list[Clock]:
    """Return clocks as they are; where they are far apart, as if the first common step had begun at once."""
    origin_ns = traces[0].origin_ns
    shifts = [(each.origin_ns - origin_ns) / 1e9 for each in traces]
    begins = []
    with_steps = [at for at, each in enumerate(traces) if len(each.steps)]
    if len(with_steps) > 1:
        common = np.intersect1d(traces[with_steps[0]].steps, traces[with_steps[-1]].steps)[0]
        begins = [float(traces[at].begin_s[traces[at].steps >= common][:1].sum()) for at in with_steps]
        step_s = max(float(np.median(traces[at].end_s - traces[at].begin_s)) for at in with_steps)
        moments = [begin + shifts[at] for begin, at in zip(begins, with_steps, strict=True)]
        if max(moments) - min(moments) > step_s:
            notes.append("the hosts' clocks are far apart: ranks are drawn as if their first step had begun at once")
            for begin, at in zip(begins, with_steps, strict=True):
                shifts[at] = begins[0] - begin
    return [Clock(shift, 0.0 if len(traces) == 1 else float("nan")) for shift in shifts]


def _numbers(traces: Sequence[RankTrace], matched: Matched, notes: list[str]) -> Ints:
    """Return the numbers of the timeline's steps: those of any rank, without those whose collectives differ."""
    numbers = np.unique(np.concatenate([each.steps for each in traces])).astype(np.int64)
    num_common = len(matched.dense_steps) + len(matched.other_steps)
    if not matched.dense_steps or len(matched.dense_steps) < _LEAST_DENSE * num_common:
        return numbers
    if matched.other_steps:
        listed = ", ".join(str(step) for step in matched.other_steps[:5])
        more = ", ..." if len(matched.other_steps) > 5 else ""
        notes.append(f"steps whose collectives differ from the others' are left out: {listed}{more}")
    return numbers[np.isin(numbers, matched.dense_steps)]


class _Table:
    """Joins columns: each rank's steps at their place among all, its times in the first rank's."""

    def __init__(
        self, traces: Sequence[RankTrace], ranks: Sequence[int], clocks: Sequence[Clock], numbers: Ints
    ) -> None:
        self._traces, self._clocks, self._numbers = traces, clocks, numbers
        self._accounts = [step_accounts(trace) for trace in traces]
        self._ranks = tuple(
            Rank(
                rank=rank,
                host=trace.host,
                clock_offset_s=clock.shift_s - (trace.origin_ns - traces[0].origin_ns) / 1e9,
                clock_error_s=clock.error_s,
            )
            for rank, trace, clock in zip(ranks, traces, clocks, strict=True)
        )
        # Of each rank: which of its own steps are kept, and where.
        self._own = [np.flatnonzero(np.isin(trace.steps, numbers)) for trace in traces]
        self._place = [np.searchsorted(numbers, trace.steps[own]) for trace, own in zip(traces, self._own, strict=True)]

    def timeline(self, world: int, matched: Matched, unknown: dict[Signal, str], notes: Sequence[str]) -> StepTimeline:
        """Return the timeline."""
        first = self._traces[0].path
        devices = tuple(use for at, trace in enumerate(self._traces) for use in device_uses(trace, at))
        # Last: the spans of a large trace take most of the memory.
        spans, names = self._spans(matched)
        return StepTimeline(
            source="kineto",
            name=first.name if len(self._traces) == 1 else first.absolute().parent.name or str(first.parent),
            ranks=self._ranks,
            steps=self._numbers,
            begin_s=self._placed([trace.begin_s + clock.shift_s for trace, clock in self._both()]),
            end_s=self._placed([trace.end_s + clock.shift_s for trace, clock in self._both()]),
            accounts=self._placed(self._accounts, len(ACCOUNT_NAMES)),
            spans=spans,
            names=names,
            world=world,
            collectives=self._collectives(matched),
            devices=devices,
            loading=self._loading(),
            unknown=unknown,
            unmatched=tuple(sorted({name for trace in self._traces for name in trace.unmatched})),
            notes=tuple(notes),
            is_cut=any(trace.is_cut for trace in self._traces),
        )

    def _both(self) -> list[tuple[RankTrace, Clock]]:
        return list(zip(self._traces, self._clocks, strict=True))

    def _placed(self, columns: Sequence[Floats], *more: int) -> Floats:
        """Return a column of each rank's steps, at their places; NaN where a rank lacks the step."""
        placed = np.full((len(self._traces), len(self._numbers), *more), np.nan)
        for at, column in enumerate(columns):
            placed[at, self._place[at]] = column[self._own[at]]
        return placed

    def _loading(self) -> Loading | None:
        """Return what is known of the loader; None where nothing is."""
        waits, copies, num_bytes = [], [], []
        for trace in self._traces:
            unseen = Signal.DATA_WAIT in trace.unknown
            waits.append(np.full(len(trace.steps), np.nan) if unseen else host_s(trace, Activity.DATA_WAIT))
            copied_s, copied_bytes = copies_of_batches(trace)
            copies.append(copied_s)
            num_bytes.append(copied_bytes)
        wait_s, copy_s = self._placed(waits), self._placed(copies)
        if not np.isfinite(wait_s).any() and not np.isfinite(copy_s).any():
            return None
        in_process = all(trace.num_workers == 0 for trace in self._traces)
        usual = self._placed(num_bytes)
        usual = usual[np.isfinite(usual) & (usual > 0)]
        return Loading(
            wait_s=wait_s,
            work_s=wait_s.copy() if in_process else np.full_like(wait_s, np.nan),
            exposed_wait_s=self._placed([each[:, ACCOUNT_NAMES.index("data_wait")] for each in self._accounts]),
            copy_s=copy_s,
            queue_empty=np.full_like(wait_s, np.nan),
            num_workers=0 if in_process else NONE,
            batch_bytes=float(np.median(usual)) if usual.size else float("nan"),
        )

    def _collectives(self, matched: Matched) -> Collectives | None:
        """Return what all ranks met for in every step; None where steps differ too much, or there is one rank."""
        if not len(self._numbers) or not set(self._numbers.tolist()) <= set(matched.dense_steps):
            return None
        by_step = matched.by_step()
        places = np.array([[each.places for each in by_step[step]] for step in self._numbers.tolist()], np.int64)
        starts, ends, num_bytes = [], [], []
        for at, (trace, clock) in enumerate(self._both()):
            here = places[:, :, at]
            starts.append(trace.exchanges.start_s[here] + clock.shift_s)
            ends.append(trace.exchanges.end_s[here] + clock.shift_s)
            num_bytes.append(trace.exchanges.num_bytes[here])
        meetings = by_step[int(self._numbers[0])]
        groups = self._group_numbers(matched)
        start_s = np.stack(starts)
        return Collectives(
            kind=tuple(each.kind or "collective" for each in meetings),
            group=np.array([groups[each.group] for each in meetings], np.int64),
            num_bytes=num_bytes[0][0],
            ready_s=start_s,
            start_s=start_s.copy(),
            end_s=np.stack(ends),
        )

    def _group_numbers(self, matched: Matched) -> dict[str, int]:
        return {group: at for at, group in enumerate(sorted({each.group for each in matched.meetings}))}

    def _spans(self, matched: Matched) -> tuple[Spans, tuple[str, ...]]:
        """Return all operations of devices and the host's spans, and the table of their names."""
        names: dict[str, int] = {}
        parts: list[dict[str, npt.NDArray[np.generic]]] = []
        for at, (trace, clock) in enumerate(self._both()):
            numbers = np.array([names.setdefault(name, len(names)) for name in trace.names], np.int64)
            group, sequence = self._meeting_columns(at, trace, matched)
            place_of = np.full(len(trace.steps) + 1, NONE)
            place_of[self._own[at]] = self._place[at]
            for columns, is_device in ((trace.operations, True), (trace.host_spans, False)):
                num = len(columns)
                of_exchange = is_device != trace.on_host
                parts.append(
                    {
                        "rank": np.broadcast_to(np.int64(at), num),
                        "step": place_of[step_of(trace, columns.start_s)],
                        "lane": _LANE_OF[columns.activity],
                        "activity": columns.activity,
                        "name": numbers[columns.name] if num else np.empty(0, np.int64),
                        "start_s": columns.start_s + clock.shift_s,
                        "end_s": columns.end_s + clock.shift_s,
                        "num_bytes": columns.num_bytes,
                        "group": group if of_exchange else np.broadcast_to(np.int64(NONE), num),
                        "sequence": sequence if of_exchange else np.broadcast_to(np.int64(NONE), num),
                        "device": trace.operations.device if is_device else np.broadcast_to(np.int64(NONE), num),
                    }
                )
        order = np.lexsort(tuple(np.concatenate([part[key] for part in parts]) for key in ("start_s", "rank")))
        # One column after the other, each released from the parts: of a large trace they are most of the memory.
        columns_of_all = {key: np.concatenate([part.pop(key) for part in parts])[order] for key in tuple(parts[0])}
        not_known = np.broadcast_to(np.int64(NONE), len(order))
        spans = Spans(**columns_of_all, micro=not_known, chunk=not_known)
        return spans, tuple(names)

    def _meeting_columns(self, at: int, trace: RankTrace, matched: Matched) -> tuple[Ints, Ints]:
        """Return the group of each operation (or span of the host) that all ranks met for, and its number in it."""
        num = len(trace.host_spans if trace.on_host else trace.operations)
        if not matched.meetings:
            nothing = np.broadcast_to(np.int64(NONE), num)
            return nothing, nothing
        group, sequence = np.full(num, NONE), np.full(num, NONE)
        groups, counts = self._group_numbers(matched), dict.fromkeys((each.group for each in matched.meetings), 0)
        for each in matched.meetings:
            place = trace.exchanges.operation[each.places[at]]
            group[place], sequence[place] = groups[each.group], counts[each.group]
            counts[each.group] += 1
        return group, sequence
