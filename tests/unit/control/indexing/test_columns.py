from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.control.indexing.columns import Columns, step_columns, summarize_values
from gscalar.model.events import Step
from gscalar.state.catalog.rows import MetricSummary


def step(number: int, loss: float = 1.0, *, duration_s: float = 0.5, tokens: float = 10.0) -> Step:
    return Step(number, number, duration_s, 4.0, tokens, 0.1, loss)


def fold(*logged: tuple[int, dict[str, float]] | Step) -> dict[str, MetricSummary]:
    columns = Columns()
    for each in logged:
        if isinstance(each, Step):
            columns.add_step(each)
        else:
            number, values = each
            columns.add_points(tuple(values), number, struct.pack(f"<{len(values)}d", *values.values()))
    metrics: dict[str, MetricSummary] = {}
    columns.fold_into(metrics)
    return metrics


FOLDED = {
    "one value": ([(3, {"a": 2.0})], "a", (2.0, 2.0, 2.0, 1, 3)),
    "the last comes last": ([(1, {"a": 2.0}), (2, {"a": 1.0})], "a", (1.0, 1.0, 2.0, 2, 2)),
    "a name in two key sets is ordered across them": (
        [(1, {"a": 1.0}), (2, {"a": 5.0, "b": 0.0}), (3, {"a": 3.0})],
        "a",
        (3.0, 1.0, 5.0, 3, 3),
    ),
    "the second key set may come last": ([(1, {"a": 1.0}), (2, {"a": 5.0, "b": 0.0})], "a", (5.0, 1.0, 5.0, 2, 2)),
    "a step's loss and a logged one are one metric": (
        [step(1, 4.0), (1, {"train/loss": 9.0}), step(2, 3.0)],
        "train/loss",
        (3.0, 3.0, 9.0, 3, 2),
    ),
    "infinities of both signs are no NaN": (
        [(1, {"a": math.inf}), (2, {"a": -math.inf}), (3, {"a": 0.0})],
        "a",
        (0.0, -math.inf, math.inf, 3, 3),
    ),
}


@pytest.mark.parametrize("sentence", FOLDED)
def test_values_are_folded(sentence: str) -> None:
    logged, name, want = FOLDED[sentence]
    got = fold(*logged)[name]
    assert (got.last, got.min, got.max, got.count, got.last_step) == want


def test_a_step_without_tokens_or_time_has_no_rate() -> None:
    columns = dict(step_columns([step(1, tokens=0.0), step(2, duration_s=0.0), step(3)]))
    assert columns["train/tokens_per_s"] == [20.0]
    assert columns["train/samples_per_s"] == [8.0, 8.0]
    assert columns["train/step_s"] == [0.5, 0.0, 0.5]


@given(st.lists(st.floats(), min_size=1))
def test_a_summary_is_what_the_definition_says(values: list[float]) -> None:
    got = summarize_values(values, 7)
    numbers = [value for value in values if not math.isnan(value)]
    assert (got.count, got.num_nan, got.last_step) == (len(values), len(values) - len(numbers), 7)
    assert repr(got.last) == repr(values[-1])
    if numbers:
        assert (got.min, got.max) == (min(numbers), max(numbers))
    else:
        assert math.isnan(got.min)
        assert math.isnan(got.max)


@given(st.lists(st.floats(), min_size=1), st.data())
def test_batches_do_not_matter(values: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values)))
    parts = [summarize_values(part, 1) for part in (values[:place], values[place:]) if part]
    got = MetricSummary()
    for part in parts:
        got = got.then(part)
    assert (got.count, got.num_nan) == (len(values), sum(map(math.isnan, values)))
    assert got.least == summarize_values(values, 1).least
    assert got.greatest == summarize_values(values, 1).greatest
