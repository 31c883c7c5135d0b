"""How long the slowest of N workers takes, from what fewer workers were seen to take.

A step of data-parallel training is as long as its slowest worker. Of n seen values, the expected maximum of N
independent draws is exact for the values seen,

    E[max] = sum_i x_(i) ((i / n)^N - ((i - 1) / n)^N)            x_(1) <= ... <= x_(n)

Workers differ for good (a slow machine), and by chance. So each keeps a distribution F_r of its own, and N workers
are whole copies of the R measured ones, with a random subset for what is left over:

    F_max(x) = prod_r F_r(x)^(N // R) * mean over subsets K of N % R workers of prod_{r in K} F_r(x)

With one measured worker this is the formula above. What befalls all workers of a step alike (a long batch, a busy
host) does not add up: the part of the variance between steps that workers share (intraclass correlation, by analysis
of variance) is taken out of each step as far as it is known to be shared. One worker alone cannot tell: all its
variation is taken to be its own, which is an upper bound.

Beyond what the steps support (copies > steps / 10) the sample has no maximum to offer. Then each worker's values
above its 90 % quantile follow a generalised Pareto tail: one shape for all, and a scale that grows with the worker's
mean, fitted to the excesses by probability-weighted moments (Hosking and Wallis 1987), the shape between -0.5 and 0.5,
and exponential (shape 0) with fewer than 50 excesses. The expectation never falls below that of the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gscalar.model.timeline import Floats

_TAIL: Final = 0.1  # share of a worker's values that the tail is fitted to
_SUPPORTED: Final = 10  # steps for each copy of a worker, so that its maximum is among those seen
_FEWEST_EXCESSES: Final = 50
_STEEPEST: Final = 0.5
_MOST_CELLS: Final = 1 << 16  # of workers by places where distributions are evaluated
_TAIL_PLACES: Final = 256
_MOST_TAILS: Final = 16  # workers whose tails are looked at finely
_MOST_IN_SUBSETS: Final = 64  # of more workers it hardly matters that none is drawn twice


def without_common(samples_s: Floats) -> Floats:
    """Return the samples, `(num_workers, num_steps)`, without what all workers of a step share; the mean stays."""
    return parted(samples_s)[1]


def parted(samples_s: Floats) -> tuple[Floats, Floats]:
    """Return what all workers of a step share, `(num_steps,)` with a mean of 0, and the samples without it.

    One worker alone, or one step, shares nothing.
    """
    num_workers, num_steps = samples_s.shape
    if num_workers < 2 or num_steps < 2:
        return np.zeros(num_steps), samples_s
    own = samples_s - samples_s.mean(axis=1, keepdims=True)  # lasting differences are no chance
    of_step = own.mean(axis=0)
    between = num_workers * float(np.var(of_step, ddof=1))
    within = float(((own - of_step) ** 2).sum()) / ((num_workers - 1) * (num_steps - 1))
    # The share of a step's mean that is common and not the chance of its workers (BLUP).
    shared = max(0.0, 1 - within / between) if between > 0 else 0.0
    # A worker's own chance was in that mean too, and must not get smaller.
    left = math.sqrt(1 - shared * (2 - shared) / num_workers)
    independent: Floats = samples_s - own + (own - shared * of_step) / left
    return shared * of_step, independent


@dataclass(slots=True)
class SlowestOf:
    """The expected maximum over any number of workers; `samples_s` are independent, `(num_workers, num_steps)`."""

    samples_s: Floats
    _places: Floats = field(init=False)
    _seen: Floats = field(init=False)  # distribution of each worker, (num_workers, num_places)
    _tail_places: Floats | None = field(init=False, default=None)
    _tailed: Floats | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        assert self.samples_s.size, "no sample"
        self._places = _thinned(np.unique(self.samples_s), len(self.samples_s))
        self._seen = _distributions(self.samples_s, self._places)

    def expected_s(self, num_workers: int) -> float:
        """Return the expected maximum over so many workers."""
        assert num_workers > 0, num_workers
        seen = _expectation(self._places, self._seen, num_workers)
        measured, steps = self.samples_s.shape
        if num_workers <= measured or num_workers / measured * _SUPPORTED <= steps:
            return seen
        if self._tailed is None or self._tail_places is None:
            self._tail_places, self._tailed = self._with_tail()
        return max(seen, _expectation(self._tail_places, self._tailed, num_workers))

    def _with_tail(self) -> tuple[Floats, Floats]:
        threshold = np.quantile(self.samples_s, 1 - _TAIL, axis=1)
        # Who takes longer also scatters more.
        level = np.abs(self.samples_s.mean(axis=1))
        level = np.where(level > 0, level, 1.0)
        above = (self.samples_s - threshold[:, None]) / level[:, None]
        shape, scale = _pareto(np.sort(above[above > 0]))
        if scale <= 0:
            return self._places, self._seen
        # Up to where a million workers hardly ever come.
        reach = _excess(np.geomspace(1.0, 1e-9, _TAIL_PLACES), shape, scale)
        highest = np.argsort(threshold)[-_MOST_TAILS:]
        beyond = threshold[highest, None] + level[highest, None] * reach
        places = _thinned(np.unique(np.concatenate([self._places, beyond.ravel()])), len(self.samples_s))
        excess = (places - threshold[:, None]) / level[:, None]
        tailed = 1 - _TAIL * _survival(np.maximum(excess, 0.0), shape, scale)
        body = np.minimum(_distributions(self.samples_s, places), 1 - _TAIL)
        return places, np.where(excess > 0, tailed, body)


def expected_slowest_s(samples_s: Floats, num_workers: int) -> float:
    """Return the expected maximum over so many workers; samples of one worker, `(num,)`, or of several, a row each."""
    return SlowestOf(np.atleast_2d(samples_s)).expected_s(num_workers)


def _expectation(places: Floats, distributions: Floats, num_workers: int) -> float:
    whole, rest = divmod(num_workers, len(distributions))
    chance = distributions.prod(axis=0) ** whole * _subsets(distributions, rest)
    return float(places @ np.diff(chance, prepend=0.0) + places[-1] * (1 - chance[-1]))


def _subsets(distributions: Floats, size: int) -> Floats:
    """Return the mean, over all subsets of so many workers, of the product of their distributions."""
    if not size:
        return np.ones(distributions.shape[1])
    if len(distributions) > _MOST_IN_SUBSETS:
        pooled: Floats = distributions.mean(axis=0) ** size
        return pooled
    means = np.zeros((size + 1, distributions.shape[1]))
    means[0] = 1.0
    for seen, each in enumerate(distributions, start=1):
        # Of the first `seen` workers, this one is in a share j / seen of the subsets of j.
        share = (np.arange(1, size + 1) / seen)[:, None].clip(max=1.0)
        means[1:] = (1 - share) * means[1:] + share * each * means[:-1]
    found: Floats = means[size]
    return found


def _distributions(samples_s: Floats, places: Floats) -> Floats:
    ordered = np.sort(samples_s, axis=1)
    found: Floats = np.stack([np.searchsorted(row, places, side="right") for row in ordered]) / samples_s.shape[1]
    return found


def _thinned(places: Floats, num_workers: int) -> Floats:
    """Return so few of the places that all workers' distributions fit, the highest densely."""
    most = max(512, _MOST_CELLS // num_workers)
    if len(places) <= most:
        return places
    from_top = np.unique(np.geomspace(1, len(places), most).astype(np.int64))
    evenly = np.linspace(1, len(places), most // 2).astype(np.int64)
    found: Floats = places[len(places) - np.unique(np.concatenate([from_top, evenly]))[::-1]]
    return found


# ---- the tail


def _pareto(excesses: Floats) -> tuple[float, float]:
    """Return shape and scale of a generalised Pareto tail of sorted excesses."""
    num = len(excesses)
    if not num:
        return 0.0, 0.0
    mean = float(excesses.mean())
    if num < _FEWEST_EXCESSES:
        return 0.0, mean
    survived = (num - np.arange(1, num + 1) + 0.35) / num
    moment = float((excesses * survived).mean())
    if mean <= 2 * moment:
        return -_STEEPEST, mean * (1 + _STEEPEST)
    shape = min(_STEEPEST, max(-_STEEPEST, 2 - mean / (mean - 2 * moment)))
    # Of this mean with that shape, also where the shape was cut.
    return shape, mean * (1 - shape)


def _survival(excess: Floats, shape: float, scale: float) -> Floats:
    if abs(shape) < 1e-9:
        return np.exp(-excess / scale)
    found: Floats = np.maximum(0.0, 1 + shape * excess / scale) ** (-1 / shape)
    return found


def _excess(survival: Floats, shape: float, scale: float) -> Floats:
    """Return where the tail has this survival."""
    if abs(shape) < 1e-9:
        return -scale * np.log(survival)
    found: Floats = scale / shape * (survival**-shape - 1)
    return found
