"""How much of the exposed communication is waiting for the last rank, and how much is moving bytes.

A collective can move bytes once every rank has its part. Until then a rank that is ready waits:

    wait_r = [ready_r, min(end_r, max over ranks of ready)]

Only what is exposed costs time, so the waits of a rank's step are cut with its COMMUNICATION spans, in which
nothing is computed; the rest of these spans is transfer. Times are of one clock, rank 0's. An error of a clock's
offset shifts that much of a wait into transfer or back; a rank that is not known makes waits shorter, not longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Interval = tuple[int, int]  # ns of rank 0's clock: from, to


@dataclass(frozen=True, slots=True)
class Met:
    """One rank's part in one collective: the same `key` on all ranks, in ns of rank 0's clock."""

    key: tuple[int, int]
    ready_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankTrace:
    """Some steps of one rank: when it waited with nothing to compute, and its collectives."""

    exposed: tuple[Interval, ...]
    met: tuple[Met, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposed:
    """Exposed communication of the steps that were looked at, over all ranks, in ns."""

    wait_ns: int
    transfer_ns: int


def split_exposed(ranks: Mapping[int, RankTrace]) -> Exposed | None:
    """Return the split over the same steps of these ranks; None where no two of them met in a collective."""
    ready_ns = last_ready(ranks.values())
    if not ready_ns:
        return None
    wait_ns = transfer_ns = 0
    for trace in ranks.values():
        exposed = merge(trace.exposed)
        waits = ((met.ready_ns, min(met.end_ns, ready_ns.get(met.key, met.ready_ns))) for met in trace.met)
        rank_wait_ns = overlap(merge(waits), exposed)
        wait_ns += rank_wait_ns
        transfer_ns += sum(end - begin for begin, end in exposed) - rank_wait_ns
    return Exposed(wait_ns=wait_ns, transfer_ns=transfer_ns)


def last_ready(traces: Iterable[RankTrace]) -> dict[tuple[int, int], int]:
    """Return when the last rank was ready, by collective, of those that at least two ranks have met."""
    found: dict[tuple[int, int], list[int]] = {}
    for trace in traces:
        for met in trace.met:
            found.setdefault(met.key, []).append(met.ready_ns)
    return {key: max(times) for key, times in found.items() if len(times) > 1}


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same moments as disjoint intervals in order; empty ones are left out."""
    found: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[1] > each[0]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def overlap(first: list[Interval], second: list[Interval]) -> int:
    """Return how long both are on; each must be disjoint and in order."""
    total = place = other = 0
    while place < len(first) and other < len(second):
        total += max(0, min(first[place][1], second[other][1]) - max(first[place][0], second[other][0]))
        if first[place][1] <= second[other][1]:
            place += 1
        else:
            other += 1
    return total
