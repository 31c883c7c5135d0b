"""Spans that are joined keep their time, their bytes and their number; overlapping ones lie in rows of their own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.model.timeline import NONE
from gscalar.views.reporting.names import Names
from gscalar.views.reporting.spans import Drawn, fit, join_short, lay


def drawn(start_s: Any, end_s: Any, **columns: Any) -> Drawn:
    start_s, end_s = np.asarray(start_s, np.float64), np.asarray(end_s, np.float64)
    num = len(start_s)
    filled: dict[str, Any] = {
        each.name: np.zeros(num, np.int64) for each in fields(Drawn) if each.name not in ("start_s", "end_s")
    }
    filled |= {"num_bytes": np.full(num, np.nan), "wait_s": np.full(num, np.nan), "micro": np.full(num, NONE)}
    filled |= {"count": np.ones(num, np.int64), "busy_s": end_s - start_s}
    return Drawn(start_s=start_s, end_s=end_s, **{**filled, **{key: np.asarray(each) for key, each in columns.items()}})


def test_short_neighbours_become_one_that_says_what_it_stands_for() -> None:
    spans = drawn(
        [0.0, 0.2, 0.5, 3.0], [0.1, 0.5, 0.6, 9.0], kind=[0, 1, 0, 2], num_bytes=[1.0, 2.0, 3.0, 4.0], name=[7, 8, 9, 6]
    )
    got = join_short(spans, 1.0)
    order = np.argsort(got.start_s)
    assert got.count[order].tolist() == [3, 1]
    assert got.start_s[order].tolist() == [0.0, 3.0]
    assert got.end_s[order].tolist() == [0.6, 9.0]
    assert got.busy_s[order][0] == pytest.approx(0.5)
    assert got.num_bytes[order].tolist() == [6.0, 4.0]
    assert (got.kind[order][0], got.name[order][0]) == (1, 8), "those of the longest"


def test_bytes_that_are_not_all_known_are_not_known_together() -> None:
    got = join_short(drawn([0.0, 0.1], [0.1, 0.2], num_bytes=[5.0, np.nan]), 1.0)
    assert np.isnan(got.num_bytes).all()


@given(st.integers(1, 400), st.integers(4, 60), st.integers(0, 2**31))
def test_what_does_not_fit_is_joined_until_it_does_and_nothing_is_lost(num: int, budget: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start_s = rng.uniform(0, 1, num)
    spans = drawn(start_s, np.minimum(start_s + rng.exponential(0.01, num), 1.0), rank=rng.integers(0, 2, num))
    got, slice_s = fit(spans, budget, 1.0)
    assert len(got) <= max(budget, 2)
    assert got.count.sum() == num
    assert got.busy_s.sum() == pytest.approx(spans.busy_s.sum())
    assert (slice_s > 0) == (num > budget)


ROWS = {
    "one after the other": ([0, 10, 20], [10, 20, 30], [0, 0, 0]),
    "one inside another": ([0, 2, 5], [10, 4, 6], [0, 1, 1]),
    "three at once, and a fourth": ([0, 1, 2, 3], [10, 10, 10, 10], [0, 1, 2, 2]),
    "neighbours that overlap by a rounding": ([0, 99], [100, 200], [0, 0]),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_rows_of(sentence: str) -> None:
    start, end, want = ROWS[sentence]
    nothing = np.zeros(len(start), np.int64)
    assert lay(nothing, nothing, np.array(start), np.array(end)).tolist() == want


def test_columns_that_say_nothing_are_left_out() -> None:
    told = drawn([0.0, 1.0], [1.0, 2.0], rank=[0, 1]).told(0.5, Names(["a"]))
    assert told["tracks"] == [[0, 0, 1, 1], [1, 0, 1, 1]]
    assert told["columns"] == {"start": [0, 2], "length": [2, 2], "kind": [0, 0], "name": [0, 0]}


def test_what_is_not_known_is_told_as_such_and_not_as_zero() -> None:
    told = drawn([0.0, 1.0], [1.0, 2.0], num_bytes=[np.nan, 0.0]).told(0.5, Names(["a"]))
    assert told["columns"]["bytes"] == [NONE, 0]


def test_names_are_cut_so_that_all_of_them_fit() -> None:
    names = Names(["x" * 5_000 for _ in range(2_000)])
    for each in range(2_000):
        names.number(each)
    assert 100_000 < sum(map(len, names.told())) <= 160_000
    assert names.number(NONE) == NONE
