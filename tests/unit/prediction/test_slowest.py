from __future__ import annotations

import itertools

import numpy as np
import pytest

from gscalar.prediction.slowest import SlowestOf, expected_slowest_s, without_common


def harmonic(num: int) -> float:
    return float(np.sum(1 / np.arange(1, num + 1)))


def test_the_maximum_of_two_draws_from_three_values_is_that_of_all_nine_pairs() -> None:
    values = np.array([1.0, 2.0, 5.0])
    want = np.mean([max(pair) for pair in itertools.product(values, repeat=2)])
    # The formula is exact for what was seen; three values do not support a tail.
    assert SlowestOf(np.array([np.repeat(values, 10)])).expected_s(2) == pytest.approx(want)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_fewer_workers_than_measured_are_a_random_subset(num_workers: int) -> None:
    rows = np.array([[1.0, 4.0], [2.0, 2.5], [3.0, 9.0]])
    want = np.mean(
        [
            max(draw)
            for chosen in itertools.combinations(rows, num_workers)
            for draw in itertools.product(*chosen)
        ]
    )  # fmt: skip
    assert SlowestOf(rows).expected_s(num_workers) == pytest.approx(want)


def test_more_workers_are_whole_copies_and_a_subset() -> None:
    rows = np.array([np.arange(40.0), np.arange(40.0) / 2 + 3])
    copies = [np.r_[rows, rows[chosen]] for chosen in ([0], [1])]
    draw = np.random.default_rng(0)
    drawn = [np.array([draw.choice(row, 200_000) for row in each]).max(axis=0).mean() for each in copies]
    assert SlowestOf(rows).expected_s(3) == pytest.approx(np.mean(drawn), rel=0.005)


def test_one_slow_worker_of_eight_is_always_the_slowest_of_eight() -> None:
    rows = np.random.default_rng(1).normal(10, 0.1, (8, 100))
    rows[5] += 5
    assert SlowestOf(rows).expected_s(8) == pytest.approx(rows.max(axis=0).mean(), rel=1e-3)
    assert SlowestOf(rows).expected_s(1) == pytest.approx(rows.mean(), rel=1e-9)


@pytest.mark.parametrize("num_workers", [1, 8, 64, 512, 4096])
def test_exponential_times_have_the_harmonic_numbers_as_their_maxima(num_workers: int) -> None:
    drawn = np.random.default_rng(2).exponential(size=(8, 2500))
    assert SlowestOf(drawn).expected_s(num_workers) == pytest.approx(harmonic(num_workers), rel=0.06)


def test_normal_times_far_beyond_what_was_seen() -> None:
    draw = np.random.default_rng(3)
    want = np.mean([draw.normal(10, 0.3, 4096).max() for _ in range(400)])
    got = SlowestOf(draw.normal(10, 0.3, (8, 200))).expected_s(4096)
    assert got == pytest.approx(want, rel=0.02)


def test_a_worker_that_takes_longer_also_scatters_more_beyond_what_was_seen() -> None:
    speed, draw = np.array([[1.0], [1.0], [1.0], [2.0]]), np.random.default_rng(9)
    want = np.mean([2.0 * draw.normal(10, 0.5, 1024).max() for _ in range(400)])
    got = [SlowestOf(speed * draw.normal(10, 0.5, (4, 200))).expected_s(4096) for _ in range(8)]
    assert np.mean(got) == pytest.approx(want, rel=0.01)


def test_the_tail_reaches_beyond_the_largest_value_seen() -> None:
    drawn = np.random.default_rng(4).exponential(size=(1, 200))
    assert expected_slowest_s(drawn[0], 100_000) > drawn.max()


def test_more_workers_never_take_less() -> None:
    slowest = SlowestOf(np.random.default_rng(5).gamma(2.0, size=(4, 60)))
    got = [slowest.expected_s(2**power) for power in range(16)]
    assert got == sorted(got)


def test_values_that_do_not_vary_are_the_slowest_whatever_the_number() -> None:
    for num_workers in (1, 7, 10_000):
        assert expected_slowest_s(np.full(30, 0.25), num_workers) == pytest.approx(0.25)


@pytest.mark.parametrize("num_workers", [100, 300, 512])
def test_hundreds_of_workers_are_looked_at_together(num_workers: int) -> None:
    rows = np.random.default_rng(6).exponential(size=(300, 60))
    assert SlowestOf(rows).expected_s(num_workers) == pytest.approx(harmonic(num_workers), rel=0.05)


def test_what_all_workers_of_a_step_share_is_taken_out() -> None:
    draw = np.random.default_rng(7)
    own = draw.normal(10, 0.3, (8, 200))
    shared = own + draw.normal(0, 2.0, 200)
    got = without_common(shared)
    assert got.std() == pytest.approx(0.3, rel=0.04)
    assert got.mean() == pytest.approx(shared.mean())
    assert SlowestOf(got).expected_s(8) == pytest.approx(shared.max(axis=0).mean(), rel=0.01)


def test_chance_is_not_taken_for_something_shared() -> None:
    own = np.random.default_rng(8).normal(10, 0.3, (2, 300))
    assert without_common(own).std() == pytest.approx(0.3, rel=0.1)


def test_lasting_differences_of_workers_stay() -> None:
    rows = np.array([[10.0, 11.0, 10.0], [20.0, 21.0, 20.0]])
    np.testing.assert_allclose(np.diff(without_common(rows), axis=0), 10.0)


def test_one_worker_keeps_all_its_variation() -> None:
    rows = np.array([[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(without_common(rows), rows)
