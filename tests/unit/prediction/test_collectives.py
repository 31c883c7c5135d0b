from __future__ import annotations

import math

import numpy as np
import pytest

from gscalar.model.spans import CollectiveKind
from gscalar.prediction.collectives import Algorithm, AlphaBeta, copies, rounds

LINK = AlphaBeta(alpha_s=1e-5, beta_bytes_per_s=1e9)
SIZES = np.geomspace(1e3, 1e8, 30)


@pytest.mark.parametrize(
    ("kind", "want_copies", "want_rounds"),
    [
        (CollectiveKind.ALL_REDUCE, 2 * 7 / 8, 14),
        (CollectiveKind.ALL_GATHER, 7 / 8, 7),
        (CollectiveKind.REDUCE_SCATTER, 7 / 8, 7),
        (CollectiveKind.ALL_TO_ALL, 7 / 8, 7),
        (CollectiveKind.BROADCAST, 1, 7),
        (CollectiveKind.SEND, 1, 1),
        (CollectiveKind.RECEIVE, 1, 1),
    ],
)
def test_factors_of_eight_ranks_are_those_of_a_ring(
    kind: CollectiveKind, want_copies: float, want_rounds: float
) -> None:
    assert (copies(kind, 8), rounds(kind, 8)) == (want_copies, want_rounds)
    assert (copies(kind, 1), rounds(kind, 1)) == (0, 0)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    parts = (LINK.time_s(kind, 1e7, 6) for kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER))
    assert LINK.time_s(CollectiveKind.ALL_REDUCE, 1e7, 6) == pytest.approx(sum(parts))


def test_a_tree_has_the_bandwidth_of_a_ring_and_less_latency_among_many() -> None:
    assert rounds(CollectiveKind.ALL_REDUCE, 1024, Algorithm.TREE) == 20
    assert rounds(CollectiveKind.ALL_REDUCE, 1024, Algorithm.FASTEST) == 20
    assert rounds(CollectiveKind.ALL_REDUCE, 2, Algorithm.FASTEST) == 2
    gap = LINK.time_s(CollectiveKind.ALL_REDUCE, 1e9, 1024) - LINK.time_s(
        CollectiveKind.ALL_REDUCE, 1e9, 1024, Algorithm.TREE
    )
    assert gap == pytest.approx((2046 - 20) * 1e-5)


def noisy(seed: int, scatter: float) -> np.ndarray:
    exact = np.array([LINK.time_s(CollectiveKind.ALL_REDUCE, size, 8) for size in SIZES])
    return exact * np.exp(np.random.default_rng(seed).normal(0, scatter, len(exact)))


def test_the_link_that_made_the_times_is_found() -> None:
    got = AlphaBeta.fit(SIZES, noisy(0, 0.0), 8)
    assert (got.alpha_s, got.beta_bytes_per_s) == pytest.approx((1e-5, 1e9), rel=1e-6)
    assert got.spread == pytest.approx(0, abs=1e-9)
    assert (got.group_size, got.tells_latency) == (8, True)


def test_the_spread_is_the_relative_deviation() -> None:
    got = AlphaBeta.fit(np.tile(SIZES, 20), np.concatenate([noisy(seed, 0.1) for seed in range(20)]), 8)
    assert got.spread == pytest.approx(0.1, rel=0.2)
    assert (got.alpha_s, got.beta_bytes_per_s) == pytest.approx((1e-5, 1e9), rel=0.05)


@pytest.mark.parametrize("factor", [0.2, 3.0, 30.0])
def test_a_fifth_of_collectives_that_are_far_off_does_not_move_the_link(factor: float) -> None:
    times = noisy(1, 0.02)
    times[::5] *= factor
    got = AlphaBeta.fit(SIZES, times, 8)
    assert (got.alpha_s, got.beta_bytes_per_s) == pytest.approx((1e-5, 1e9), rel=0.04)


def test_one_size_says_nothing_of_the_latency_and_all_is_bandwidth() -> None:
    got = AlphaBeta.fit([1e6, 1.2e6], [2e-3, 2.4e-3], 2)
    assert (got.alpha_s, got.tells_latency) == (0, False)
    assert got.beta_bytes_per_s == pytest.approx(5e8)


def test_neither_factor_is_negative() -> None:
    got = AlphaBeta.fit([1e3, 1e6], [2e-3, 1e-3], 2)  # the larger one was faster
    assert got.alpha_s > 0
    assert got.beta_bytes_per_s == math.inf
    got = AlphaBeta.fit([1e6, 2e6, 4e6], [1e-3, 3e-3, 8e-3], 2)  # would begin below zero
    assert got.alpha_s == 0


def test_what_was_not_measured_is_left_out() -> None:
    got = AlphaBeta.fit([1e6, 2e6, np.nan, 3e6, 0.0], [1e-3, 2e-3, 1.0, np.nan, 1.0], 2)
    assert got.beta_bytes_per_s == pytest.approx(1e9)


@pytest.mark.parametrize(("sizes", "group_size"), [([], 4), ([1e6], 1), ([0.0], 4)])
def test_nothing_to_fit_is_an_error(sizes: list[float], group_size: int) -> None:
    with pytest.raises(ValueError, match="no link"):
        AlphaBeta.fit(sizes, [1e-3] * len(sizes), group_size)
