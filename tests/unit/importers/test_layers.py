"""Exclusive shares of windows, against a count of small ticks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gscalar.importers.layers import NOTHING, covered, layered, merged

TICKS = 40
interval = st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)).map(sorted)


def columns(places: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = np.array(places, np.float64).reshape(-1, 2).T
    return starts, ends


@given(
    layers=st.lists(st.lists(interval, max_size=5), min_size=1, max_size=3),
    windows=st.lists(interval, min_size=1, max_size=3),
)
def test_each_moment_of_a_window_counts_for_the_first_layer_that_covers_it(
    layers: list[list[list[int]]], windows: list[list[int]]
) -> None:
    want = np.zeros((len(layers) + 1, len(windows)))
    for at, (begin, end) in enumerate(windows):
        for tick in range(begin, end):
            first = next(
                (n for n, layer in enumerate(layers) if any(s <= tick < e for s, e in layer)), len(layers)
            )  # fmt: skip
            want[first, at] += 1
    got = layered(*columns(windows), [columns(layer) for layer in layers])
    np.testing.assert_allclose(got, want, atol=1e-9)


def test_a_union_joins_what_touches_and_keeps_what_does_not() -> None:
    starts, ends = merged(*columns([[5, 6], [0, 2], [2, 3], [1, 2]]))
    assert (starts.tolist(), ends.tolist()) == ([0, 5], [3, 6])


def test_nothing_covers_nothing() -> None:
    assert covered(np.array([0.0]), np.array([3.0]), NOTHING).tolist() == [0.0]
