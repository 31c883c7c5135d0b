from __future__ import annotations

import numpy as np

from gscalar.prediction.least_squares import fit_positive

SIZES = np.geomspace(1.0, 1e6, 40)


def line(constants: np.ndarray) -> np.ndarray:
    return constants[0] + SIZES * constants[1]


def test_constants_that_made_the_times_are_found_from_a_start_that_is_far_off() -> None:
    want = np.array([3e-3, 7e-8])
    got = fit_positive(line, line(want), np.array([1e-1, 1e-9]), pull=1e-9)
    np.testing.assert_allclose(got.constants, want, rtol=1e-4)
    assert got.spread < 1e-4


def test_a_constant_that_nothing_depends_on_stays_where_it_began() -> None:
    got = fit_positive(lambda constants: line(constants[:2]), line(np.array([3e-3, 7e-8])), np.array([1e-3, 1e-8, 5.0]))
    np.testing.assert_allclose(got.constants[2], 5.0)


def test_the_spread_is_the_relative_deviation_of_the_times() -> None:
    noise = np.random.default_rng(3).normal(0, 0.1, 40)
    got = fit_positive(line, line(np.array([3e-3, 7e-8])) * np.exp(noise), np.array([1e-3, 1e-8]))
    assert 0.07 < got.spread < 0.13


def test_the_covariance_is_that_of_repeated_fits() -> None:
    want = np.array([3e-3, 7e-8])
    draw = np.random.default_rng(4)
    fits = [fit_positive(line, line(want) * np.exp(draw.normal(0, 0.1, 40)), want, pull=1e-9) for _ in range(60)]
    seen = np.std([np.log(each.constants) for each in fits], axis=0)
    told = np.mean([np.sqrt(np.diag(each.covariance)) for each in fits], axis=0)
    np.testing.assert_allclose(told, seen, rtol=0.4)


def test_constants_stay_within_the_factor_of_their_start() -> None:
    got = fit_positive(line, line(np.array([3e-3, 7e-8])), np.array([1.0, 7e-8]), factor=10.0, pull=1e-9)
    assert got.constants[0] >= 0.1 * (1 - 1e-9)
