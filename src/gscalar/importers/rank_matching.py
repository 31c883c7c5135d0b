"""Which collectives of several ranks are one, and how far their clocks are apart.

Collectives of a group run in one order on all its ranks. So in a step that all ranks call by one number the nth of a
group is the same everywhere, where the group's sequence of kinds is the same; a step in which it is not is left out.
Point-to-point transfers and groups that not all given ranks are in are no collectives of all.

A collective ends everywhere at once, and nowhere before the last rank began. The median difference of the ends is the
clocks' offset; half of their spread is its error, no more than the second rule allows (as dPRO bounds it). Where the
two rules contradict each other for more than a few, the collectives were none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gscalar.importers.kineto_names import POINT_TO_POINT
from gscalar.importers.rank_accounts import step_of
from gscalar.importers.rank_trace import RankTrace
from gscalar.model.timeline import Floats, Ints

_LEAST_CONSISTENT: Final = 0.9  # of the collectives must meet under the offset that was found
_RESOLUTION_S: Final = 1e-6  # of the times in traces
_FEW: Final = 3  # collectives whose spread says nothing yet


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective of all ranks."""

    step: int  # number of the step
    group: str
    kind: str
    places: tuple[int, ...]  # index into each rank's exchanges


@dataclass(frozen=True, slots=True)
class Matched:
    """What all ranks met for: step by step, and in each in the order of the first rank."""

    meetings: tuple[Meeting, ...]
    dense_steps: tuple[int, ...]  # numbers of the steps that have the usual sequence
    other_steps: tuple[int, ...]  # and of those in which the ranks or the steps differ

    def by_step(self) -> dict[int, list[Meeting]]:
        """Return what the ranks met for, by the step's number."""
        found: dict[int, list[Meeting]] = {}
        for each in self.meetings:
            found.setdefault(each.step, []).append(each)
        return found


@dataclass(frozen=True, slots=True)
class Clock:
    """What is to be added to a rank's times so that they are the first rank's, and how far that may be wrong."""

    shift_s: float
    error_s: float


def match(traces: Sequence[RankTrace], ranks: Sequence[int]) -> Matched:
    """Return the collectives that all of the traces have; `ranks` are theirs."""
    by_step = [_by_step(trace, ranks) for trace in traces]
    common = sorted(set.intersection(*(set(trace.steps.tolist()) for trace in traces)))
    meetings: list[Meeting] = []
    signatures: dict[int, tuple[tuple[str, str], ...] | None] = {}
    for step in common:
        sequences = [each.get(step, {}) for each in by_step]
        found, agrees = _meetings(step, sequences)
        meetings += found
        signatures[step] = tuple((each.group, each.kind) for each in found) if agrees else None
    counted = Counter(each for each in signatures.values() if each)
    usual = counted.most_common(1)[0][0] if counted else None
    dense = tuple(step for step in common if signatures[step] == usual and usual)
    return Matched(tuple(meetings), dense, tuple(step for step in common if step not in dense))


def _by_step(trace: RankTrace, ranks: Sequence[int]) -> dict[int, dict[str, list[tuple[str, int]]]]:
    """Return kinds and places of a trace's exchanges that all ranks take part in, by step and group, in order."""
    found: dict[int, dict[str, list[tuple[str, int]]]] = {}
    exchanges = trace.exchanges
    steps = step_of(trace, exchanges.issued_s).tolist()
    labels = {name: _label(trace, name, ranks) for name in set(exchanges.group)}
    for place, (at, kind, group) in enumerate(zip(steps, exchanges.kind, exchanges.group, strict=True)):
        label = labels[group]
        if at >= 0 and label is not None and kind not in POINT_TO_POINT:
            found.setdefault(int(trace.steps[at]), {}).setdefault(label, []).append((kind, place))
    return found


def _label(trace: RankTrace, name: str, ranks: Sequence[int]) -> str | None:
    """Return what a group is called on all ranks; None where not all ranks are in it."""
    group = trace.groups.get(name)
    if group is not None and group.ranks:
        return str(group.ranks) if set(ranks) <= set(group.ranks) else None
    if group is not None and group.size and group.size < max(trace.world, len(ranks)):
        return None
    return name


def _meetings(step: int, sequences: Sequence[dict[str, list[tuple[str, int]]]]) -> tuple[list[Meeting], bool]:
    """Return a step's collectives in the first rank's order, and whether all ranks have the same in all groups."""
    first, *others = sequences
    agreed = {
        label: own
        for label, own in first.items()
        if all([kind for kind, _ in own] == [kind for kind, _ in each.get(label, [])] for each in others)
    }
    found = [
        Meeting(step, label, kind, (place, *(each[label][at][1] for each in others)))
        for label, own in agreed.items()
        for at, (kind, place) in enumerate(own)
    ]
    agrees = all(each.keys() == agreed.keys() for each in sequences)
    return sorted(found, key=lambda each: each.places[0]), agrees


def align(traces: Sequence[RankTrace], matched: Matched) -> list[Clock] | None:
    """Return the clock of each rank against the first; None where nothing that was matched meets."""
    if not matched.meetings:
        return None
    places: Ints = np.array([each.places for each in matched.meetings], np.int64)
    starts, ends = (
        np.stack([column[places[:, at]] for at, column in enumerate(columns)], axis=1)
        for columns in ([each.exchanges.start_s for each in traces], [each.exchanges.end_s for each in traces])
    )
    clocks = [Clock(0.0, 0.0)]
    for at in range(1, len(traces)):
        clock = _clock(starts[:, 0], ends[:, 0], starts[:, at], ends[:, at])
        if clock is None:
            return None
        clocks.append(clock)
    return clocks


def _clock(first_starts: Floats, first_ends: Floats, starts: Floats, ends: Floats) -> Clock | None:
    differences = first_ends - ends
    shift_s = float(np.median(differences))
    earliest, latest = first_starts - ends, first_ends - starts
    meet = (earliest <= shift_s + _RESOLUTION_S) & (shift_s - _RESOLUTION_S <= latest)
    if np.mean(meet) < _LEAST_CONSISTENT:
        return None
    low, high = float(earliest[meet].max()), float(latest[meet].min())
    bound_s = max(shift_s - low, high - shift_s, _RESOLUTION_S)
    if len(differences) < _FEW:
        return Clock(shift_s, bound_s)
    spread = np.percentile(differences, [5, 95])
    return Clock(shift_s, max(min(float(np.ptp(spread)) / 2, bound_s), _RESOLUTION_S))
