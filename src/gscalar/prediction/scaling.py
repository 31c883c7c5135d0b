"""How long a step would take on other numbers of data-parallel workers, from the steps of one training.

    step(N) = compute + (E[max over N workers of compute] - compute) + exposed communication(N) + rest
            =           waiting for the slowest

Compute is all that a worker does by itself in a step, as it was measured on each of them (`slowest`). Communication
is that of the measured gradients over the measured link, or one that is given, beside the measured backward
(`exchange`). The rest is what stops all workers alike (checkpoints), and what this sum had missed of the measured
step.

Weak scaling keeps a worker's batch: more workers, a larger batch of all. Strong scaling keeps the batch of all: what
grows with a worker's samples shrinks by the ratio of workers, all else stays. How much of the compute is fixed is
fitted where workers' samples or tokens varied in the training; else the compute is taken to be proportional to them.

    speed-up(N) = samples/s of N workers over those of one;   efficiency = speed-up / N

The interval is of 90 %: a bootstrap over steps for compute and link, and beside it, as independent errors, what the
sum had missed of the measured step, how far collectives scatter, and, as far as nobody has seen it, a faster
algorithm than a ring and no overlap. Limits: workers like those that were measured, on one kind of link; it does not
know a switch that is too small, a file system that more readers slow down, or what a larger batch does to the
training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from gscalar.model.timeline import Floats
from gscalar.prediction.collectives import Algorithm, AlphaBeta
from gscalar.prediction.exchange import Exchange
from gscalar.prediction.slowest import SlowestOf, without_common
from gscalar.prediction.training import MeasuredTraining

_RESAMPLES, _FEWEST_RESAMPLES = 100, 20
_RESAMPLED_CELLS: Final = 1 << 20  # workers by steps, over all resamples
_TCP_HOP_S: Final = 50e-6  # a slow hop, where nobody can tell
_TO_90: Final = 1.645
_GOOD: Final = 0.9  # at this efficiency nothing but the compute limits


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """One number of workers. Its parts sum to `step_s`; without known communication the step is a lower bound.

    NaN: not known. `limit` is what most of the lost speed goes to: compute (next to nothing is lost), waiting for the
    slowest, communication, or fixed costs that do not shrink with a worker's batch.
    """

    workers: int
    step_s: float
    low_s: float
    high_s: float
    compute_s: float
    waiting_s: float
    communication_s: float
    rest_s: float
    samples_per_worker: float
    samples_per_s: float
    speedup: float
    efficiency: float
    limit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """A step on other numbers of workers, and what was assumed to know it."""

    points: tuple[ScalingPoint, ...]
    strong: bool
    num_workers: int  # of the training that was measured
    num_steps: int
    measured_step_s: float
    missed_s: float  # the measured step without what the model says of it
    link: AlphaBeta | None
    algorithm: Algorithm
    notes: tuple[str, ...] = ()

    def most_workers(self, efficiency: float) -> int | None:
        """Return the largest of these numbers of workers up to which each keeps the efficiency; None: not even one."""
        kept = None
        for point in self.points:
            if not point.efficiency >= efficiency:
                break
            kept = point.workers
        return kept


def scaling_curve(
    measured: MeasuredTraining,
    workers: Sequence[int],
    rng: np.random.Generator,
    *,
    strong: bool = False,
    link: AlphaBeta | None = None,
    algorithm: Algorithm = Algorithm.RING,
) -> ScalingCurve:
    """Return the step on each of these numbers of workers, in ascending order.

    `link` replaces the measured one. In strong scaling, numbers of workers that leave less than a sample for each are
    left out.
    """
    possible = sorted({each for each in workers if each > 0})
    if strong and not math.isnan(measured.samples_per_step):
        possible = [each for each in possible if each <= measured.samples_per_step]
    model = _Model.of(measured, link, strong=strong, algorithm=algorithm)
    missed_s = 0.0
    if measured.num_workers > 1 and measured.link is not None:  # else it is the communication that nobody knows
        as_measured = _Model.of(measured, None, strong=strong, algorithm=algorithm)
        missed_s = measured.step_s - as_measured.step_s(measured.num_workers)
    model = replace(model, missed_s=missed_s)
    num_steps = measured.busy_s.shape[1]
    resampled = []
    # In strong scaling each number of workers has samples of its own.
    num_cells = measured.busy_s.size * (max(1, len(possible)) if strong else 1)
    num_resamples = min(_RESAMPLES, max(_FEWEST_RESAMPLES, _RESAMPLED_CELLS // num_cells))
    for _ in range(num_resamples if num_steps > 1 else 0):
        drawn = measured.of_steps(np.asarray(rng.integers(0, num_steps, num_steps), np.int64))
        redrawn = replace(_Model.of(drawn, link, strong=strong, algorithm=algorithm), missed_s=missed_s)
        resampled.append([redrawn.step_s(each) for each in possible])
    ends = np.quantile(resampled, (0.05, 0.95), axis=0) if resampled and possible else None
    return ScalingCurve(
        points=tuple(
            model.point(each, (float(ends[0, at]), float(ends[1, at])) if ends is not None else None)
            for at, each in enumerate(possible)
        ),
        strong=strong,
        num_workers=measured.num_workers,
        num_steps=num_steps,
        measured_step_s=measured.step_s,
        missed_s=missed_s,
        link=model.link,
        algorithm=algorithm,
        notes=tuple(_notes(measured, model, workers)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """Steps of any number of workers, with these constants."""

    measured: MeasuredTraining
    strong: bool
    link: AlphaBeta | None
    algorithm: Algorithm
    stall_s: float  # what exchanges take longer than the link explains
    slowest: SlowestOf | None  # of any number of workers, where they take the same as those measured
    missed_s: float = 0.0
    known_slowest_s: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, measured: MeasuredTraining, given: AlphaBeta | None, *, strong: bool, algorithm: Algorithm) -> _Model:
        """Return the model over the link that is given, or the measured one."""
        link = given or measured.link
        exchange = measured.exchange
        stall_s = exchange.stall_s(link) if exchange is not None and link is not None else 0.0
        return cls(
            measured=measured,
            strong=strong,
            link=link,
            algorithm=algorithm,
            stall_s=stall_s,
            slowest=None if strong else SlowestOf(without_common(measured.busy_s)),
        )

    def samples_s(self, workers: int) -> Floats:
        """Return what each measured worker would take, as one of so many."""
        if not self.strong:
            return self.measured.busy_s
        fixed = 0.0 if math.isnan(self.measured.fixed_share) else self.measured.fixed_share
        ratio = fixed + (1 - fixed) * self.measured.num_workers / workers
        return self.measured.busy_s + (ratio - 1) * self.measured.by_samples_s

    def slowest_s(self, workers: int) -> float:
        """Return what the slowest of so many computes."""
        if workers not in self.known_slowest_s:
            slowest = self.slowest or SlowestOf(without_common(self.samples_s(workers)))
            self.known_slowest_s[workers] = slowest.expected_s(workers)
        return self.known_slowest_s[workers]

    def parts(self, workers: int) -> tuple[float, float, float, float]:
        """Return compute, waiting, communication (NaN: not known) and the rest."""
        compute_s = float(self.samples_s(workers).mean())
        waiting_s = max(0.0, self.slowest_s(workers) - compute_s)
        rest_s = self.measured.pause_s + (self.missed_s if workers > 1 else 0.0)
        return compute_s, waiting_s, self.exposed_s(workers), rest_s

    def step_s(self, workers: int) -> float:
        return float(np.nansum(self.parts(workers)))

    def exposed_s(self, workers: int, *, algorithm: Algorithm | None = None, overlaps: bool = True) -> float:
        if workers == 1:
            return 0.0
        if self.link is None or self.measured.exchange is None:
            return math.nan
        # All meet when the slowest comes, whose backward is as much longer as all that it does.
        ratio = self.slowest_s(workers) / float(self.measured.busy_s.mean())
        exposed_s = self.measured.exchange.exposed_s(
            self.link, workers, compute_ratio=ratio, algorithm=algorithm or self.algorithm, overlaps=overlaps
        )
        return max(0.0, exposed_s + self.stall_s)

    def point(self, workers: int, resampled: tuple[float, float] | None) -> ScalingPoint:
        parts = self.parts(workers)
        step_s = max(float(np.nansum(parts)), 1e-12)
        low_s, high_s = self._interval(workers, step_s, resampled)
        share = self.measured.num_workers / workers if self.strong else 1.0
        per_worker = self.measured.samples_per_step / self.measured.num_workers * share
        one_s = self.step_s(1)
        speedup = one_s / step_s * (1 if self.strong else workers)
        return ScalingPoint(
            workers=workers,
            step_s=step_s,
            low_s=low_s,
            high_s=high_s,
            compute_s=parts[0],
            waiting_s=parts[1],
            communication_s=parts[2],
            rest_s=parts[3],
            samples_per_worker=per_worker,
            samples_per_s=per_worker * workers / step_s,
            speedup=speedup,
            efficiency=speedup / workers,
            limit=self._limit(workers, parts, speedup / workers, one_s),
        )

    def _interval(self, workers: int, step_s: float, resampled: tuple[float, float] | None) -> tuple[float, float]:
        """Return the ends: what was resampled, and each error that it does not hold, as if they were independent."""
        low_s, high_s = resampled if resampled is not None else (-math.inf, math.inf)
        likely_s = self.exposed_s(workers)
        if math.isnan(likely_s):
            return max(0.0, min(step_s, low_s)), math.inf
        scatter_s = faster_s = slower_s = 0.0
        exchange, link = self.measured.exchange, self.link
        if workers > 1 and exchange is not None and link is not None:
            scatter_s = _TO_90 * link.spread * likely_s / math.sqrt(len(exchange.kind))
            slower_s = self._worst_s(workers, exchange, link) - likely_s
            if workers > link.group_size:
                faster_s = likely_s - self.exposed_s(workers, algorithm=Algorithm.FASTEST)
        both_s = math.hypot(scatter_s, _TO_90 * self.missed_s if workers > 1 else 0.0)
        low_s = step_s - math.hypot(max(0.0, step_s - low_s), both_s, faster_s)
        return max(0.0, low_s), step_s + math.hypot(max(0.0, high_s - step_s), both_s, slower_s)

    def _worst_s(self, workers: int, exchange: Exchange, link: AlphaBeta) -> float:
        """Return the exposed communication with the worst of what nobody has seen: latency, and no overlap."""
        if workers > link.group_size and not link.tells_latency:
            link = replace(link, alpha_s=_TCP_HOP_S)
        return replace(self, link=link).exposed_s(workers, overlaps=exchange.lead_seen)

    def _limit(self, workers: int, parts: tuple[float, float, float, float], efficiency: float, one_s: float) -> str:
        if efficiency >= _GOOD:
            return "compute"
        compute_s, waiting_s, communication_s, rest_s = parts
        ideal_s = one_s / workers if self.strong else one_s
        losses = {
            "waiting for the slowest": waiting_s,
            "communication": 0.0 if math.isnan(communication_s) else communication_s,
            "fixed costs": compute_s + rest_s - ideal_s,
        }
        return max(losses, key=lambda name: losses[name])


def _notes(measured: MeasuredTraining, model: _Model, workers: Sequence[int]) -> list[str]:
    notes = []
    num_ranks, num_steps = measured.busy_s.shape
    if num_ranks < measured.num_workers:
        notes.append(f"{num_ranks} of {measured.num_workers} workers were seen; the others are taken to be like them")
    if num_ranks == 1:
        notes.append(
            "one worker was measured: all its variation from step to step is taken to be its own, so that waiting is "
            "an upper bound"
        )
    if num_steps < 20:
        notes.append(f"{num_steps} steps were measured: few for the slowest of many")
    if measured.exchange is None:
        notes.append("what workers exchange is not known: steps are lower bounds")
    elif model.link is None:
        notes.append("what workers exchange gradients over was not measured, and no link is given: lower bounds")
    else:
        notes += _link_notes(measured, model.link)
    if model.strong and math.isnan(measured.fixed_share):
        notes.append("the compute is taken to be proportional to a worker's samples: they did not vary enough to tell")
    if model.strong and math.isnan(measured.samples_per_step):
        notes.append("how many samples a step has is not known: it may be fewer than workers")
    elif model.strong and any(each > measured.samples_per_step for each in workers):
        notes.append(f"a step has {measured.samples_per_step:.0f} samples: more workers would have less than one each")
    return notes


def _link_notes(measured: MeasuredTraining, link: AlphaBeta) -> list[str]:
    notes = []
    if not link.tells_latency:
        notes.append("collectives of one size were seen: their latency cannot be told and is taken to be 0")
    if measured.exchange is not None and not measured.exchange.lead_seen:
        notes.append("when gradients are ready was not seen: they are taken to be ready evenly in the backward")
    if link.group_size == 0:
        notes.append("the link is as given, and nobody has measured it")
    return notes
