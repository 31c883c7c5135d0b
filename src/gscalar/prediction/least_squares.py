"""Fit of positive physical constants to measured times, in numpy.

A time is predicted from constants that are positive and differ by many powers of ten (a latency, a bandwidth), and what
counts is the relative error. So both are taken as logarithms:

    minimise  sum_i (log predict(exp x)_i - log observed_i)^2 + pull * |x - x0|^2

by Gauss-Newton steps that are damped where they do not help (Levenberg 1944, Marquardt 1963). x0 is what is usual: the
weak pull decides about constants that the measurements say nothing of, and hardly moves others. Steps are cut at a
factor of e, so that a bad start does not overflow. The Jacobian is taken by finite differences. No randomness: the
same measurements give the same constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gscalar.model.timeline import Floats

Predict = Callable[[Floats], Floats]

_STEP: Final = 1e-5  # of the finite differences, in logarithms
_MOST_STEPS: Final = 200
_MOST_TRIES: Final = 30
_CONVERGED: Final = 1e-10  # a step that lowers the cost by less than this share is the last


@dataclass(frozen=True, kw_only=True, slots=True)
class PositiveFit:
    """Fitted constants, `(num,)`, with the covariance of their logarithms and the spread of what is left.

    `spread` is the standard deviation of log(predicted / observed).
    """

    constants: Floats
    covariance: Floats  # (num, num)
    spread: float


def fit_positive(
    predict: Predict, observed: Floats, start: Floats, *, factor: float = 1e3, pull: float = 0.02
) -> PositiveFit:
    """Return the constants with which `predict` comes nearest to the observed times, relative to them.

    `predict` maps constants `(num,)` to times of the shape of `observed`; both must be positive. Constants stay within
    `factor` of `start` on either side.
    """
    assert (start > 0).all(), start
    assert (observed > 0).all(), "times must be positive"
    origin, target = np.log(start), np.log(observed)
    low, high = origin - np.log(factor), origin + np.log(factor)

    def errors(x: Floats) -> Floats:
        found: Floats = np.log(predict(np.exp(x))) - target
        return found

    def cost(x: Floats, error: Floats) -> float:
        return float(error @ error + pull * (x - origin) @ (x - origin))

    x, error, damping = origin.copy(), errors(origin), 1e-2
    lowest = cost(x, error)
    for _ in range(_MOST_STEPS):
        jacobian = _jacobian(errors, x, error)
        curvature = jacobian.T @ jacobian + pull * np.eye(len(x))
        slope = jacobian.T @ error + pull * (x - origin)
        for _ in range(_MOST_TRIES):
            step = -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), slope)
            tried = np.clip(x + np.clip(step, -1.0, 1.0), low, high)
            found = errors(tried)
            if cost(tried, found) < lowest:
                break
            damping *= 4
        else:
            break
        before, lowest = lowest, cost(tried, found)
        x, error, damping = tried, found, max(damping / 4, 1e-9)
        if before - lowest < _CONVERGED * before:
            break
    jacobian = _jacobian(errors, x, error)
    variance = float(error @ error) / max(1, len(observed) - len(x))
    curvature = jacobian.T @ jacobian + pull * np.eye(len(x))
    covariance: Floats = np.asarray(variance * np.linalg.inv(curvature), np.float64)
    return PositiveFit(constants=np.exp(x), covariance=covariance, spread=variance**0.5)


def _jacobian(errors: Predict, x: Floats, here: Floats) -> Floats:
    """Return the derivative of each error by each logarithm, `(num_observed, num)`."""
    moved = [errors(x + step) for step in np.eye(len(x)) * _STEP]
    return (np.stack(moved, axis=1) - here[:, None]) / _STEP
