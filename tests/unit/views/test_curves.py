from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.state.series import SeriesReader
from gscalar.views.curves import Average, Curve, Line, Window, load_curve, smooth_points, thin

STEPS = Window(axis="step")


def curve(reader: SeriesReader, window: Window = STEPS, **options: Any) -> Curve:
    (info,) = reader.list()
    return load_curve(reader, info, window, **{"columns": 100, **options})


def test_few_points_are_joined_one_by_one(fill_series: Any) -> None:
    got = curve(fill_series([3.0, math.nan, 1.0, -math.inf, 2.0]))
    assert got.line.at.tolist() == [0, 1, 2, 3, 4]
    assert [repr(each) for each in got.line.values.tolist()] == ["3.0", "nan", "1.0", "nan", "2.0"]
    assert (got.nan_at.tolist(), got.posinf_at.tolist(), got.neginf_at.tolist()) == ([1], [], [3])
    assert (got.count, got.num_nan, got.num_posinf, got.num_neginf) == (5, 1, 0, 1)


def test_no_spike_is_lost_in_many_points(fill_series: Any) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=20_000)
    spikes = random.choice(len(values), 20, replace=False)
    values[spikes] += 1000.0
    line = curve(fill_series(values), columns=200).line
    assert len(line.at) <= 4 * 200
    # Of several spikes in one column, the greatest stands for them.
    high = set(line.at[line.values > 500].tolist())
    assert high <= set(spikes.tolist())
    assert all(any(abs(each - at) <= 100 for at in high) for each in spikes.tolist())


def test_positions_never_go_back(fill_series: Any) -> None:
    values = np.sin(np.arange(5000) / 50)
    at = curve(fill_series(values), columns=37).line.at
    assert (np.diff(at) >= 0).all()


def test_an_infinity_hides_no_finite_extreme_beside_it(fill_series: Any) -> None:
    values = np.zeros(1000)
    values[500], values[503], values[505] = math.inf, 7.0, -9.0
    got = curve(fill_series(values), columns=10)
    line = dict(zip(got.line.at.tolist(), got.line.values.tolist(), strict=True))
    assert (line[503], line[505]) == (7.0, -9.0)
    assert got.num_posinf == 1


def test_a_window_leaves_out_what_is_outside(fill_series: Any) -> None:
    got = curve(fill_series(np.arange(1000.0)), Window(axis="step", begin=200, end=299), columns=10)
    assert (got.line.at.min(), got.line.at.max(), got.count) == (200, 299, 100)


def test_a_window_without_points_is_an_empty_curve(fill_series: Any) -> None:
    got = curve(fill_series([1.0, 2.0]), Window(axis="step", begin=10), smooth=0.5)
    assert (len(got.line.at), got.count) == (0, 0)
    assert got.smoothed is not None
    assert len(got.smoothed.at) == 0


# ---- smoothing


def smooth_by_loop(values: list[float], weight: float) -> list[float]:
    total, found = 0.0, []
    for count, value in enumerate(values, 1):
        total = weight * total + (1 - weight) * value
        found.append(total / (1 - weight**count))
    return found


WEIGHTS = st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999])


@given(st.lists(st.floats(-100, 100), max_size=300), WEIGHTS, st.lists(st.integers(0, 300), max_size=4))
def test_the_average_is_that_of_a_loop_however_the_points_are_divided(
    values: list[float], weight: float, cuts: list[int]
) -> None:
    average = Average(weight)
    parts = np.split(np.array(values), sorted(min(each, len(values)) for each in cuts))
    got = np.concatenate([average.take(each) for each in parts])
    np.testing.assert_allclose(got, smooth_by_loop(values, weight), rtol=1e-9, atol=1e-9)


def test_the_first_average_is_the_first_value() -> None:
    assert Average(0.99).take(np.array([5.0])).item() == pytest.approx(5.0)


def test_a_constant_stays_what_it_is() -> None:
    np.testing.assert_allclose(Average(0.9).take(np.full(200, 3.0)), 3.0, rtol=1e-12)


def test_what_is_not_finite_is_passed_over() -> None:
    values = np.array([1.0, math.nan, 3.0, math.inf])
    (line,) = smooth_points([(np.arange(4), values)], 0.5)
    assert line.at.tolist() == [0, 2]
    assert line.values.tolist() == pytest.approx(smooth_by_loop([1.0, 3.0], 0.5))


def test_all_points_are_smoothed_and_not_those_that_are_left_after_thinning(fill_series: Any) -> None:
    values = np.random.default_rng(0).normal(size=3000)
    got = curve(fill_series(values), columns=10, smooth=0.9).smoothed
    assert got is not None
    want = dict(enumerate(smooth_by_loop(values.tolist(), 0.9)))
    assert len(got.at) <= 40
    assert got.at[-1] == 2999
    for at, value in zip(got.at.tolist(), got.values.tolist(), strict=True):
        assert value == pytest.approx(want[at])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60), st.integers(1, 8))
def test_thinning_keeps_the_edges_and_extremes_of_each_column(values: list[float], columns: int) -> None:
    at = np.arange(len(values))
    edges = np.linspace(0, max(1, len(values) - 1), columns + 1)[1:-1]
    got = thin(Line(at, np.array(values)), edges)
    bins = np.searchsorted(edges, at, "right")
    for each in set(bins.tolist()):
        inside = at[bins == each].tolist()
        kept = [place for place in got.at.tolist() if place in inside]
        assert len(kept) <= 4
        assert {inside[0], inside[-1]} <= set(kept)
        chosen = [values[place] for place in inside]
        assert {min(chosen), max(chosen)} <= {values[place] for place in kept}
