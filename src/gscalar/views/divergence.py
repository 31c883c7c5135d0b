"""The first step at which two runs that should be equal are not, in any metric.

Two trainings with the same seed, the same order of data and the same number of workers give the same numbers until
something differs: code, a library, a machine, or an operation that is not deterministic. Values are compared
exactly, as float64; NaN equals NaN. Metrics that depend on the machine and the hour (durations, rates, memory) are left
out, and steps that only one of the runs has.

Both series are read side by side, window by window, until the first difference; the next metric is only read up to
there.

Limits. Two long runs that are equal would be read whole. So where they share more than `budget` points, only the first
65,536 are certainly read; after that, stretches in which the columns of both charts are equal are passed over, and
`exact` says so: first, last, least and greatest value of a column, their steps and the counts were the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gscalar.state.series import Chart, SeriesInfo, SeriesPoints, SeriesReader
from gscalar.views.directions import find_direction, is_of_machine
from gscalar.views.metrics import group_columns

BUDGET_POINTS: Final = 250_000
# Of runs that are beyond the budget anyway.
PROBE_POINTS: Final = 1 << 16
_CHART_COLUMNS: Final = 256
_FIRST_METRIC: Final = "train/loss"
_NOTHING: Final = -(2**63)

Pair = tuple[SeriesInfo, SeriesInfo]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A metric at the first step at which it differs."""

    name: str
    step: int
    first: float
    second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What was compared, and the metrics that differ at the first step at which any does."""

    differences: tuple[Difference, ...]
    metrics: tuple[str, ...]  # all that were compared
    num_points: int  # of one run, that were compared one by one
    last_step: int | None  # up to which both runs have points
    exact: bool  # False: some of the points were compared by chart columns only


def compare_series(
    first: SeriesReader, second: SeriesReader, pairs: Sequence[Pair], *, budget: int | None = BUDGET_POINTS
) -> Comparison:
    """Return the first difference between two runs' metrics; `budget` None reads every point that may matter."""
    shared = sum(min(each.count for each in pair) for pair in pairs)
    left = budget if budget is None or shared <= budget else min(budget, PROBE_POINTS)
    found: list[Difference] = []
    num_points, exact = 0, True
    last_step = None
    for pair in sorted(pairs, key=_by_weight):
        end = min(pair[0].last_step, pair[1].last_step)
        last_step = end if last_step is None else max(last_step, end)
        begin = max(pair[0].first_step, pair[1].first_step)
        # A later difference is of no interest; one at the same step is.
        end = min([end, *(each.step for each in found)])
        search = _Search(first, second, pair, left)
        difference = search.run(begin, end)
        num_points += search.num_points
        exact &= search.exact
        left = None if left is None else max(0, left - search.num_points)
        if difference is not None:
            found = [*(each for each in found if each.step == difference.step), difference]
    return Comparison(
        differences=tuple(found),
        metrics=tuple(sorted(pair[0].name for pair in pairs)),
        num_points=num_points,
        last_step=last_step,
        exact=exact,
    )


def comparable_pairs(first: Iterable[SeriesInfo], second: Iterable[SeriesInfo]) -> list[Pair]:
    """Return the metrics of the training that two runs share, of the lowest rank that both have."""
    of_second = {(each.name, each.rank): each for each in second if each.kind == "metric"}
    found: dict[str, Pair] = {}
    for each in sorted(first, key=lambda info: info.rank):
        other = of_second.get((each.name, each.rank))
        if each.kind == "metric" and other is not None and not is_of_machine(each.name):
            found.setdefault(each.name, (each, other))
    return list(found.values())


def _by_weight(pair: Pair) -> tuple[bool, bool, str]:
    """Order the training loss first: it is of every step, and shows a difference the soonest."""
    name = pair[0].name
    return name != _FIRST_METRIC, find_direction(name) is None, name


class _Search:
    """Looks for the first difference of one metric."""

    def __init__(self, first: SeriesReader, second: SeriesReader, pair: Pair, budget: int | None) -> None:
        self.num_points = 0
        self.exact = True
        self._first = first
        self._second = second
        self._pair = pair
        self._budget = budget

    def run(self, begin: int, end: int) -> Difference | None:
        """Return the first difference from one step to another, both included."""
        if begin > end:
            return None
        first, second = (
            reader.chart(info.kind, info.name, info.rank, begin=begin, end=end, columns=_CHART_COLUMNS)
            for reader, info in zip((self._first, self._second), self._pair, strict=True)
        )
        alike_until = equal_until(first, second)
        for low, high in group_columns(first, begin, end):
            assert low is not None, "the window has a begin"
            assert high is not None, "the window has an end"
            if self._budget is not None and self.num_points >= self._budget and low <= alike_until:
                self.exact = False
                low = alike_until + 1
            difference = self._compare(low, high) if low <= high else None
            if difference is not None:
                return difference
        return None

    def _compare(self, begin: int, end: int) -> Difference | None:
        """Compare all points from one step to another."""
        first, second = (
            reader.points(info.kind, info.name, info.rank, begin=begin, end=end)
            for reader, info in zip((self._first, self._second), self._pair, strict=True)
        )
        a, b = align(first, second)
        self.num_points += len(a)
        place = first_difference(first.values[a], second.values[b])
        if place is None:
            return None
        return Difference(
            name=self._pair[0].name,
            step=int(first.steps[a[place]]),
            first=float(first.values[a[place]]),
            second=float(second.values[b[place]]),
        )


def equal_until(first: Chart, second: Chart) -> int:
    """Return the last step up to which the columns of two charts are equal; less than any where nothing can be told.

    Charts have unlike columns where their blocks lie otherwise, as after a resumed attempt.
    """
    num = min(len(first.begin), len(second.begin))
    differs = np.zeros(num, bool)
    for field in ("begin", "end", "least_at", "greatest_at", "count", "num_nan", "num_posinf", "num_neginf"):
        differs |= getattr(first, field)[:num] != getattr(second, field)[:num]
    for field in ("first", "last", "least", "greatest"):
        differs |= _unlike(getattr(first, field)[:num], getattr(second, field)[:num])
    num_equal = int(np.append(differs, True).argmax())
    if not num_equal:
        return _NOTHING
    # Points of one step may be in several columns where each point is its own.
    unequal = [int(chart.begin[num_equal]) for chart in (first, second) if num_equal < len(chart.begin)]
    return min([int(first.end[num_equal - 1]), *(each - 1 for each in unequal)])


def first_difference(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> int | None:
    """Return the first place at which two arrays of one length differ; NaN equals NaN."""
    places = np.flatnonzero(_unlike(first, second))
    return int(places[0]) if len(places) else None


def _unlike(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    unlike: npt.NDArray[Any] = (first != second) & ~(np.isnan(first) & np.isnan(second))
    return unlike


def align(first: SeriesPoints, second: SeriesPoints) -> tuple[Index, Index]:
    """Return which points of the two stand at the same step; of several at one step, the n-th at the n-th."""
    if np.array_equal(first.steps, second.steps):
        every = np.arange(len(first.steps))
        return every, every
    _, a, b = np.intersect1d(_numbered(first.steps), _numbered(second.steps), assume_unique=True, return_indices=True)
    return a.astype(np.int64), b.astype(np.int64)


def _numbered(steps: Index) -> npt.NDArray[Any]:
    """Return each step with how many equal ones stand before it; steps ascend."""
    keys = np.empty(len(steps), [("step", "<i8"), ("place", "<i8")])
    keys["step"] = steps
    keys["place"] = np.arange(len(steps)) - np.searchsorted(steps, steps, "left")
    return keys
