"""Blocks: what a stretch of a series comes to, and how blocks become the columns of a chart.

A block holds count, first, last, least and greatest value with their steps and times, and how many values were NaN
or infinite. Two blocks make one without looking at their points; that is why a chart of millions of
points reads thousands of blocks (M4: Jugel et al., VLDB 2014, section 4; first, last, least and greatest of each
pixel column draw the same line as all points do).

Points of a block are in the order of steps, then of times, then of the record. `time_ordered` tells whether they are in
the order of time too; if not, the block says nothing about first and last on an axis of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gscalar.state.series.types import Chart, Floats, Ints

Records = npt.NDArray[Any]  # of the type BLOCK

BLOCK: Final = np.dtype(
    [
        ("first", "<f8"),
        ("last", "<f8"),
        ("least", "<f8"),  # NaN where all values are
        ("greatest", "<f8"),
        ("first_step", "<i8"),
        ("last_step", "<i8"),
        ("first_time", "<i8"),
        ("last_time", "<i8"),
        ("least_step", "<i8"),
        ("greatest_step", "<i8"),
        ("least_time", "<i8"),
        ("greatest_time", "<i8"),
        ("count", "<u4"),
        ("num_nan", "<u4"),
        ("num_posinf", "<u4"),
        ("num_neginf", "<u4"),
        ("time_ordered", "<u8"),  # as wide as keeps the others aligned
    ]
)
_LAST: Final = np.iinfo(np.int64).max
COUNTS: Final = ("count", "num_nan", "num_posinf", "num_neginf")


def summarize_blocks(steps: Ints, times_ns: Ints, values: Floats, starts: Ints) -> Records:
    """Return the blocks of several columns over one axis, which is in order.

    `values` is (columns, points), and a block reaches from one of `starts` (ascending, the first is 0) to the
    next; the answer is (columns, blocks).
    """
    num = len(steps)
    ends = np.append(starts[1:], num) - 1
    found = np.zeros((len(values), len(starts)), BLOCK)
    found["first"], found["last"] = values[:, starts], values[:, ends]
    found["first_step"], found["last_step"] = steps[starts], steps[ends]
    found["first_time"], found["last_time"] = times_ns[starts], times_ns[ends]
    found["count"] = ends - starts + 1
    found["time_ordered"] = _time_ordered(times_ns, starts)
    if not np.isfinite(values).all():
        for field, is_one in (("num_nan", np.isnan), ("num_posinf", np.isposinf), ("num_neginf", np.isneginf)):
            found[field] = np.add.reduceat(is_one(values), starts, axis=1, dtype=np.uint32)
    lengths = ends - starts + 1
    for field, pick in (("least", np.fmin), ("greatest", np.fmax)):
        extreme = pick.reduceat(values, starts, axis=1)
        # The first point that has it; where all are NaN there is none, and it is the block's first.
        places = np.where(values == np.repeat(extreme, lengths, axis=1), np.arange(num), num)
        places = np.minimum.reduceat(places, starts, axis=1)
        places = np.where(places == num, starts, places)
        found[field] = extreme
        found[f"{field}_step"], found[f"{field}_time"] = steps[places], times_ns[places]
    return found


def _time_ordered(times_ns: Ints, starts: Ints) -> npt.NDArray[np.bool_]:
    back = np.zeros(len(times_ns), bool)
    back[1:] = times_ns[1:] < times_ns[:-1]
    back[starts] = False
    return ~np.logical_or.reduceat(back, starts)


@dataclass(slots=True)
class Blocks:
    """Blocks with the place of their first and last points among all points of the series.

    `first_order` and `last_order` decide where step and time are equal.
    """

    records: Records
    first_order: Ints
    last_order: Ints

    def __len__(self) -> int:
        return len(self.records)

    def take(self, index: npt.NDArray[Any]) -> Blocks:
        """Return some of the blocks."""
        # `take` copies whole records; an index in brackets copies field by field.
        return Blocks(self.records.take(index), self.first_order[index], self.last_order[index])


@dataclass(slots=True)
class Points:
    """Points of one series. `order` is the place of their piece; within a piece they stand as recorded."""

    steps: Ints
    times_ns: Ints
    values: Floats
    order: Ints

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, index: npt.NDArray[Any]) -> Points:
        """Return some of the points."""
        return Points(self.steps[index], self.times_ns[index], self.values[index], self.order[index])

    def position(self, axis: str) -> Ints:
        """Return where the points are on the axis."""
        return self.steps if axis == "step" else self.times_ns

    def sort(self, axis: str) -> Points:
        """Return the points in the axis's order: its position, then the other one, then as recorded."""
        main, other = (self.steps, self.times_ns) if axis == "step" else (self.times_ns, self.steps)
        rises = main[1:] > main[:-1]
        if (rises | ((main[1:] == main[:-1]) & (other[1:] >= other[:-1]))).all():
            return self  # pieces come in the order of the record, so equal ones are in order too
        return self.take(np.lexsort((other, main)))

    def block(self, starts: Ints) -> Blocks:
        """Return the blocks of sorted points that begin at `starts`."""
        ends = np.append(starts[1:], len(self)) - 1
        records = summarize_blocks(self.steps, self.times_ns, self.values[None], starts)[0]
        return Blocks(records, self.order[starts], self.order[ends])


def join_points(parts: list[Points]) -> Points:
    """Return the points of all parts, in the order of the parts' places."""
    parts = sorted((each for each in parts if len(each)), key=lambda each: int(each.order[0]))
    if not parts:
        none = np.empty(0, np.int64)
        return Points(none, none, np.empty(0, np.float64), none)
    return Points(
        np.concatenate([each.steps for each in parts]),
        np.concatenate([each.times_ns for each in parts]),
        np.concatenate([each.values for each in parts]),
        np.concatenate([each.order for each in parts]),
    )


def join_blocks(parts: list[Blocks]) -> Blocks:
    """Return the blocks of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    # As bytes, since records are copied field by field.
    records = np.concatenate([np.ascontiguousarray(each.records).view(np.uint8) for each in parts])
    return Blocks(
        records.view(BLOCK),
        np.concatenate([each.first_order for each in parts]),
        np.concatenate([each.last_order for each in parts]),
    )


def starts_of(groups: npt.NDArray[Any]) -> Ints:
    """Return where a new group begins in an array of group numbers that stand together."""
    if not len(groups):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.append(True, groups[1:] != groups[:-1])).astype(np.int64)


def merge_blocks(bins: Ints, blocks: Blocks, axis: str) -> Chart:
    """Return one column for each bin that has a block, by bin.

    No point of a block may lie between points of two other bins, and on an axis of time all blocks must be
    time-ordered.
    """
    if (bins[1:] < bins[:-1]).any():
        order = np.argsort(bins, kind="stable")
        bins, blocks = bins[order], blocks.take(order)
    records, starts = blocks.records, starts_of(bins)
    lengths = np.diff(np.append(starts, len(bins)))
    first, last = edge_records(bins, blocks, axis)
    begin = first[f"first_{axis}"].astype(np.int64)
    extremes = {}
    for field, pick in (("least", np.fmin), ("greatest", np.fmax)):
        values = np.ascontiguousarray(records[field])
        extreme = _reduce(pick, values, starts)
        at = np.where(values == np.repeat(extreme, lengths), records[f"{field}_{axis}"], _LAST)
        extremes[field] = extreme
        extremes[f"{field}_at"] = np.where(np.isnan(extreme), begin, _reduce(np.minimum, at, starts))
    return Chart(
        exact=False,
        axis=axis,
        begin=begin,
        end=last[f"last_{axis}"].astype(np.int64),
        first=first["first"].astype(np.float64),
        last=last["last"].astype(np.float64),
        **extremes,
        **{field: _reduce(np.add, records[field].astype(np.int64), starts) for field in COUNTS},
    )


def edge_records(bins: Ints, blocks: Blocks, axis: str) -> tuple[Records, Records]:
    """Return, for each of the ascending bins, the block with its first point and the block with its last one."""
    starts = starts_of(bins)
    ends = np.append(starts[1:], len(bins))[: len(starts)] - 1
    return _by_edge(bins, blocks, "first", axis, starts), _by_edge(bins, blocks, "last", axis, ends)


def _by_edge(bins: Ints, blocks: Blocks, edge: str, axis: str, index: Ints) -> Records:
    """Return some of the blocks, counted in the order of their first or last points, bin by bin."""
    at = blocks.records[f"{edge}_{axis}"]
    if not ((bins[1:] > bins[:-1]) | (at[1:] > at[:-1])).all():
        other = blocks.records[f"{edge}_{'time' if axis == 'step' else 'step'}"]
        order = blocks.first_order if edge == "first" else blocks.last_order
        index = np.lexsort((order, other, at, bins))[index]
    return blocks.records.take(index)


def _reduce(pick: np.ufunc, numbers: npt.NDArray[Any], starts: Ints) -> npt.NDArray[Any]:
    # reduceat of an empty array raises.
    found: npt.NDArray[Any] = pick.reduceat(numbers, starts) if len(starts) else numbers
    return found
