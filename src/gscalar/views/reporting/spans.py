"""Spans of one scene as columns: joined until they fit, laid into rows where they overlap, and told in short form."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import NONE, Floats, Ints, Lane
from gscalar.views.reporting.names import Names

Bools = npt.NDArray[np.bool_]
_MOST_ROWS: Final = 3
_FINEST: Final = 1 / 8192  # of the scene's length: the first slice that is tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Spans to draw. `rank` is the row of the rank; `count` says how many spans one stands for."""

    rank: Ints
    lane: Ints
    start_s: Floats
    end_s: Floats
    kind: Ints
    name: Ints
    num_bytes: Floats
    micro: Ints
    wait_s: Floats
    count: Ints
    busy_s: Floats  # what the spans it stands for took together

    def __len__(self) -> int:
        return len(self.start_s)

    def at(self, chosen: Ints) -> Drawn:
        """Return some of the spans, in the given order."""
        return Drawn(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    def told(self, tick_s: float, names: Names) -> dict[str, Any]:
        """Return tracks and columns for the page's script, times in ticks; columns that say nothing are left out.

        A track is (rank, lane, rows, number of spans); the spans of all tracks lie one after the other.
        """
        ordered = self.at(np.lexsort((-self.end_s, self.start_s, self.lane, self.rank)))
        start = np.rint(ordered.start_s / tick_s).astype(np.int64)
        end = np.rint(ordered.end_s / tick_s).astype(np.int64)
        rows = lay(ordered.rank, ordered.lane, start, end)
        columns = {
            "start": start, "length": end - start, "kind": ordered.kind, "row": rows,
            "name": np.array([names.number(each) for each in ordered.name.tolist()], np.int64),
            "bytes": _whole(ordered.num_bytes), "wait": _whole(ordered.wait_s / tick_s), "micro": ordered.micro,
            "count": ordered.count,
            "busy": np.where(ordered.count > 1, np.rint(ordered.busy_s / tick_s), NONE).astype(np.int64),
        }  # fmt: skip
        empty = {"row": 0, "bytes": NONE, "wait": NONE, "micro": NONE, "count": 1, "busy": NONE}
        return {
            "tracks": _tracks(ordered, rows),
            "columns": {
                name: column.tolist()
                for name, column in columns.items()
                if name not in empty or (column != empty[name]).any()
            },
        }


def fit(spans: Drawn, budget: int, length_s: float) -> tuple[Drawn, float]:
    """Return at most about `budget` spans, and the length below which they were joined; 0 where none were.

    Slices double until the spans fit, so that no more is joined than has to be.
    """
    if len(spans) <= budget:
        return spans, 0.0
    slice_s = length_s * _FINEST
    while slice_s < length_s and _num_joined(spans, slice_s) > budget:
        slice_s *= 2
    return join_short(spans, slice_s), slice_s


def _num_joined(spans: Drawn, slice_s: float) -> int:
    """Return how many spans are left with these slices."""
    short = spans.end_s - spans.start_s < slice_s
    return int((~short).sum()) + int(np.count_nonzero(np.bincount(_slices(spans, short, slice_s))))


def _slices(spans: Drawn, chosen: Ints | Bools, slice_s: float) -> Ints:
    """Return the number of each span's slice, over all lanes."""
    at = (spans.start_s[chosen] / slice_s).astype(np.int64)
    lane = spans.rank[chosen] * len(Lane) + spans.lane[chosen]
    numbers: Ints = lane * (int(at.max(initial=0)) + 1) + at
    return numbers


def join_short(spans: Drawn, slice_s: float) -> Drawn:
    """Return the spans with those that are shorter than a slice, and begin in the same one of a lane, as one.

    It has the kind and the name that take most of its time, and all of their bytes where they are known.
    """
    short = np.flatnonzero(spans.end_s - spans.start_s < slice_s)
    _, group = np.unique(_slices(spans, short, slice_s), return_inverse=True)
    num = int(group.max(initial=-1)) + 1
    # The longest of each group comes last, and is written last.
    order = np.lexsort((spans.end_s[short] - spans.start_s[short], group))
    chief = np.zeros(num, np.int64)
    chief[group[order]] = short[order]
    ends_s, begins_s = np.full(num, -np.inf), np.full(num, np.inf)
    np.maximum.at(ends_s, group, spans.end_s[short])
    np.minimum.at(begins_s, group, spans.start_s[short])

    def summed(column: Floats | Ints) -> Floats:
        total: Floats = np.bincount(group, weights=column[short], minlength=num).astype(np.float64)
        return total

    counts = summed(spans.count).astype(np.int64)
    joined = Drawn(
        rank=spans.rank[chief], lane=spans.lane[chief], start_s=begins_s, end_s=ends_s, kind=spans.kind[chief],
        name=spans.name[chief], num_bytes=summed(spans.num_bytes),
        micro=np.where(counts > 1, NONE, spans.micro[chief]), wait_s=summed(spans.wait_s),
        count=counts, busy_s=summed(spans.busy_s),
    )  # fmt: skip
    kept = spans.at(np.setdiff1d(np.arange(len(spans)), short))
    return Drawn(
        **{each.name: np.concatenate([getattr(kept, each.name), getattr(joined, each.name)]) for each in fields(Drawn)}
    )


def lay(rank: Ints, lane: Ints, start: Ints, end: Ints) -> Ints:
    """Return the row of each span in its lane: the first that is free when it begins; the last one takes what is left.

    Spans come sorted by rank, lane and start, in ticks. Sources round: neighbours that overlap a little stay in a row.
    """
    rows = np.zeros(len(start), np.int64)
    here: tuple[int, int] | None = None
    free: list[int] = []
    columns = (column.tolist() for column in (rank, lane, start, end))
    for at, (its_rank, its_lane, begins, ends) in enumerate(zip(*columns, strict=True)):
        if (its_rank, its_lane) != here:
            here, free = (its_rank, its_lane), []
        row = next(
            (row for row, until in enumerate(free) if until <= begins + max(1, (ends - begins) // 20)), len(free)
        )
        if row == len(free) and row < _MOST_ROWS:
            free.append(ends)
        else:
            row = min(row, _MOST_ROWS - 1)
            free[row] = max(free[row], ends)
        rows[at] = row
    return rows


def _tracks(spans: Drawn, rows: Ints) -> list[list[int]]:
    if not len(spans):
        return []
    new = np.flatnonzero(np.r_[True, (np.diff(spans.rank) != 0) | (np.diff(spans.lane) != 0)])
    ends = np.r_[new[1:], len(spans)]
    return [
        [int(spans.rank[at]), int(spans.lane[at]), int(rows[at:end].max()) + 1, int(end - at)]
        for at, end in zip(new.tolist(), ends.tolist(), strict=True)
    ]


def _whole(values: Floats) -> Ints:
    whole: Ints = np.where(np.isfinite(values), np.rint(np.nan_to_num(values)), NONE).astype(np.int64)
    return whole
