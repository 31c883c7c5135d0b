"""The first step at which two runs differ, against what plain loops over the points find."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gscalar.state.series import SeriesPoints, SeriesReader
from gscalar.views import divergence, metrics
from gscalar.views.divergence import align, comparable_pairs, compare_series, equal_until

NAN = math.nan
EXAMPLES = itertools.count()


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test's few points be many windows and many columns."""
    monkeypatch.setattr(metrics, "WINDOW_POINTS", 16)
    monkeypatch.setattr(divergence, "_CHART_COLUMNS", 8)


def compare(first: SeriesReader, second: SeriesReader, **options: Any) -> divergence.Comparison:
    return compare_series(first, second, comparable_pairs(first.list(), second.list()), **options)


SAME = [float(each) for each in range(100)]


def changed(place: int, value: float) -> list[float]:
    return [*SAME[:place], value, *SAME[place + 1 :]]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    "equal values": ({"values": SAME}, {"values": SAME}, None),
    "the first value differs": ({"values": SAME}, {"values": changed(0, 7.0)}, 0),
    "one value in the middle differs": ({"values": SAME}, {"values": changed(57, 7.0)}, 57),
    "the last value differs": ({"values": SAME}, {"values": changed(99, 7.0)}, 99),
    "the last bit of one value differs": ({"values": SAME}, {"values": changed(57, math.nextafter(57, 60))}, 57),
    "a number against NaN": ({"values": SAME}, {"values": changed(57, NAN)}, 57),
    "NaN against NaN": ({"values": changed(57, NAN)}, {"values": changed(57, NAN)}, None),
    "infinities of unlike sign": ({"values": changed(5, math.inf)}, {"values": changed(5, -math.inf)}, 5),
    "one run is shorter": ({"values": SAME}, {"values": SAME[:40]}, None),
    "a difference after the end of the shorter one": ({"values": changed(57, 1.0)}, {"values": SAME[:40]}, None),
    "one logs every second step": (
        {"values": SAME},
        {"values": SAME[::2], "steps": range(0, 100, 2)},
        None,
    ),
    "one logs every second step and differs at an even one": (
        {"values": changed(58, 1.0)},
        {"values": SAME[::2], "steps": range(0, 100, 2)},
        58,
    ),
    "a difference at a step that only one has": (
        {"values": changed(57, 1.0)},
        {"values": SAME[::2], "steps": range(0, 100, 2)},
        None,
    ),
    "the second of two values of one step": (
        {"values": [1.0, 2.0, 3.0], "steps": [4, 5, 5]},
        {"values": [1.0, 2.0, 9.0], "steps": [4, 5, 5]},
        5,
    ),
    "one has more values of a step": (
        {"values": [1.0, 2.0, 3.0], "steps": [4, 4, 5]},
        {"values": [1.0, 3.0], "steps": [4, 5]},
        None,
    ),
    "no step in common": ({"values": [1.0], "steps": [1]}, {"values": [2.0], "steps": [2]}, None),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_first_differing_step(sentence: str, fill_series: Any) -> None:
    first, second, want = CASES[sentence]
    got = compare(fill_series(**first), fill_series(**second, run_id="bbbb"), budget=None)
    assert [each.step for each in got.differences] == ([] if want is None else [want])
    assert got.exact


@pytest.mark.parametrize("sentence", CASES)
def test_without_a_budget_for_points_a_difference_that_no_chart_shows_is_not_denied(
    sentence: str, fill_series: Any
) -> None:
    first, second, want = CASES[sentence]
    got = compare(fill_series(**first), fill_series(**second, run_id="bbbb"), budget=0)
    steps = [each.step for each in got.differences]
    assert steps == ([] if want is None else [want]) or (steps == [] and not got.exact)


BUDGETS = {
    "a run within the budget is read whole": (100, 100, True),
    "of one that is beyond it only the first windows are": (99, 48, False),
    "never more than the budget, but for the window that passes it": (20, 32, False),
    "no budget, no bound": (None, 100, True),
}


@pytest.mark.parametrize("sentence", BUDGETS)
def test_how_much_of_equal_runs_is_read(sentence: str, fill_series: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    budget, num_points, exact = BUDGETS[sentence]
    monkeypatch.setattr(divergence, "PROBE_POINTS", 40)
    monkeypatch.setattr(divergence, "_CHART_COLUMNS", 100)  # windows of 16 points
    got = compare(fill_series(SAME), fill_series(SAME, run_id="bbbb"), budget=budget)
    assert (got.num_points, got.exact, got.differences) == (num_points, exact, ())


def test_both_values_are_told(fill_series: Any) -> None:
    got = compare(fill_series([1.0, 2.0]), fill_series([1.0, 2.5], run_id="bbbb"))
    (found,) = got.differences
    assert (found.name, found.step, found.first, found.second) == ("train/loss", 1, 2.0, 2.5)


def test_equal_runs_are_told_with_what_was_compared(fill_series: Any) -> None:
    fill_series(SAME)
    first = fill_series(SAME[:50], name="val/loss")
    fill_series(SAME, run_id="bbbb")
    got = compare(first, fill_series(SAME[:50], name="val/loss", run_id="bbbb"))
    assert (got.differences, got.metrics, got.num_points, got.last_step, got.exact) == (
        (),
        ("train/loss", "val/loss"),
        150,
        99,
        True,
    )


def test_only_the_metrics_of_the_earliest_step_are_told(fill_series: Any) -> None:
    for run_id, late in (("aaaa", 0.0), ("bbbb", 1.0)):
        fill_series(changed(30, late), run_id=run_id)
        fill_series(changed(20, late), run_id=run_id, name="b")
        fill_series(changed(20, late), run_id=run_id, name="c")
        fill_series(changed(21, late), run_id=run_id, name="d")
    got = compare(fill_series(SAME, name="e"), fill_series(SAME, name="e", run_id="bbbb"))
    assert [(each.name, each.step) for each in got.differences] == [("b", 20), ("c", 20)]


def test_the_training_loss_is_told_first(fill_series: Any) -> None:
    for run_id, late in (("aaaa", 0.0), ("bbbb", 1.0)):
        fill_series(changed(20, late), run_id=run_id, name="a")
        fill_series(changed(20, late), run_id=run_id)
    got = compare(fill_series(SAME, name="z"), fill_series(SAME, name="z", run_id="bbbb"))
    assert [each.name for each in got.differences] == ["train/loss", "a"]


def test_a_spent_budget_is_told_and_a_difference_in_a_chart_is_still_found(fill_series: Any) -> None:
    first = fill_series(SAME)
    assert compare(first, fill_series(SAME, run_id="bbbb"), budget=0).exact is False
    got = compare(first, fill_series(changed(97, -1.0), run_id="cccc"), budget=0)
    assert [each.step for each in got.differences] == [97]
    assert got.num_points < 40


def test_a_difference_within_a_window_that_begins_equal_is_still_found(
    fill_series: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergence, "_CHART_COLUMNS", 50)  # two points a column, eight columns a window
    got = compare(fill_series(SAME), fill_series(changed(57, -1.0), run_id="bbbb"), budget=0)
    assert [each.step for each in got.differences] == [57]


def test_of_several_points_at_one_step_none_is_equal_where_one_differs(fill_series: Any) -> None:
    charts = [
        fill_series([1.0, 2.0, last], steps=[4, 5, 5], run_id=run_id).chart("metric", "train/loss", 0)
        for run_id, last in (("aaaa", 3.0), ("bbbb", 9.0))
    ]
    assert charts[0].exact
    assert equal_until(*charts) == 4
    assert equal_until(charts[0], charts[0]) == 5


def test_what_the_hour_decides_and_what_one_run_lacks_is_not_compared(fill_series: Any) -> None:
    fill_series(SAME, name="train/step_s")
    fill_series(SAME, name="mine")
    first = fill_series(SAME, rank=1)
    fill_series(SAME, name="train/step_s", run_id="bbbb")
    second = fill_series(SAME, run_id="bbbb", rank=1)
    pairs = comparable_pairs(first.list(), second.list())
    assert [(a.name, a.rank, b.rank) for a, b in pairs] == [("train/loss", 1, 1)]


def as_points(steps: list[int]) -> SeriesPoints:
    at = np.array(sorted(steps), np.int64)
    return SeriesPoints(at, at, at.astype(float), at.astype(np.int32))


@given(st.lists(st.integers(0, 8), max_size=12), st.lists(st.integers(0, 8), max_size=12))
def test_points_are_laid_together_by_step_and_place(first: list[int], second: list[int]) -> None:
    a, b = align(as_points(first), as_points(second))
    want = [
        (step, place)
        for step in range(9)
        for place in range(min(first.count(step), second.count(step)))
    ]  # fmt: skip
    got = [sorted(first)[each] for each in a.tolist()]
    assert got == [step for step, _ in want] == [sorted(second)[each] for each in b.tolist()]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_two_runs_against_a_loop(data: st.DataObject, fill_series: Any) -> None:
    number = st.sampled_from([0.0, 1.0, NAN, math.inf])
    runs = []
    for _ in range(2):
        steps = data.draw(st.lists(st.integers(0, 60), max_size=80).map(sorted))
        runs.append((steps, data.draw(st.lists(number, min_size=len(steps), max_size=len(steps)))))
    unlike = next(EXAMPLES)  # runs of an example before are in the same home
    readers = [
        fill_series(values, steps=steps, run_id=f"{letter}{unlike}")
        for letter, (steps, values) in zip("ab", runs, strict=True)
        if steps
    ]
    if len(readers) < 2:
        return
    occurrences = []
    for steps, values in runs:
        told: dict[tuple[int, int], float] = {}
        for place, (step, value) in enumerate(zip(steps, values, strict=True)):
            told[step, place - steps.index(step)] = value
        occurrences.append(told)
    common = sorted(set(occurrences[0]) & set(occurrences[1]))
    want = [key[0] for key in common if repr(occurrences[0][key]) != repr(occurrences[1][key])][:1]
    got = compare(readers[0], readers[1], budget=data.draw(st.sampled_from([None, 0, 20])))
    assert got.exact is False or [each.step for each in got.differences] == want
    assert all(each.step == want[0] for each in got.differences) if want else not got.differences
