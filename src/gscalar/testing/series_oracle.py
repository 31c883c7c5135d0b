"""The plain answer to every question of the series store: lists of points in memory, sorted and scanned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gscalar.state.series import Chart, SeriesInfo, SeriesPoints


class Point(NamedTuple):
    """One point; `place` is its group's place among the run's groups."""

    step: int
    time_ns: int
    value: float
    attempt: int
    place: tuple[int, str, int] = (0, "", 0)


def order(points: Iterable[Point], axis: str = "step") -> list[Point]:
    """Return the points in the documented order; equal ones stay as they are within their group."""
    return sorted(points, key=lambda each: (*position(each, axis), each.place))


def position(point: Point, axis: str) -> tuple[int, int]:
    return (point.step, point.time_ns) if axis == "step" else (point.time_ns, point.step)


def window(points: list[Point], axis: str, begin: int | None, end: int | None) -> list[Point]:
    return [
        each
        for each in order(points, axis)
        if (begin is None or position(each, axis)[0] >= begin) and (end is None or position(each, axis)[0] <= end)
    ]


def assert_points(got: SeriesPoints, want: list[Point]) -> None:
    assert got.steps.tolist() == [each.step for each in want]
    assert got.times_ns.tolist() == [each.time_ns for each in want]
    assert got.attempts.tolist() == [each.attempt for each in want]
    assert got.values.tobytes() == np.array([each.value for each in want], np.float64).tobytes()


def assert_info(got: SeriesInfo, points: list[Point]) -> None:
    want = order(points)
    assert (got.first_step, got.first_time_ns) == want[0][:2]
    assert (got.last_step, got.last_time_ns) == want[-1][:2]
    assert repr(got.last) == repr(want[-1].value)
    assert_extent([got.count, got.num_nan, got.num_posinf, got.num_neginf], got.least, got.greatest, want)
    for value, step in ((got.least, got.least_step), (got.greatest, got.greatest_step)):
        assert step == next((each.step for each in want if each.value == value), want[0].step)


def assert_extent(counts: list[int], least: float, greatest: float, want: list[Point]) -> None:
    values = [each.value for each in want]
    numbers = [value for value in values if value == value]
    want_counts = [len(values), len(values) - len(numbers), values.count(math.inf), values.count(-math.inf)]
    assert counts == want_counts
    assert [repr(least + 0.0), repr(greatest + 0.0)] == [
        repr(min(numbers, default=math.nan) + 0.0),
        repr(max(numbers, default=math.nan) + 0.0),
    ]


def assert_chart(got: Chart, want: list[Point], columns: int) -> None:
    """Check that each column says what its points come to, and that the columns have all points once."""
    assert got.exact == (len(want) <= columns)
    assert len(got.begin) == len(want) if got.exact else len(got.begin) <= columns
    assert all(len(getattr(got, name)) == len(got.begin) for name in Chart.__slots__[2:])
    at = [position(each, got.axis)[0] for each in want]
    done = 0
    for place, (begin, end, count) in enumerate(zip(got.begin, got.end, got.count, strict=True)):
        part, positions = want[done : done + count], at[done : done + count]
        done += int(count)
        assert (positions[0], positions[-1]) == (begin, end)
        assert got.exact or done == len(at) or at[done] > end, "a position is in two columns"
        assert np.float64(part[0].value).tobytes() == got.first[place].tobytes()
        assert np.float64(part[-1].value).tobytes() == got.last[place].tobytes()
        counts = [int(getattr(got, name)[place]) for name in ("count", "num_nan", "num_posinf", "num_neginf")]
        assert_extent(counts, float(got.least[place]), float(got.greatest[place]), part)
        for extreme, where in ((got.least, got.least_at), (got.greatest, got.greatest_at)):
            has_it = [spot for spot, each in zip(positions, part, strict=True) if each.value == extreme[place]]
            assert where[place] == (has_it[0] if has_it else begin)
    assert done == len(want)
