"""What the steps of a data-parallel training took, as a scaling curve needs it.

A step of a worker is what it does by itself, what it waits for in exchanges, and pauses that stop all workers alike. Of
what it does by itself, some grows with its samples: the forward and backward, the wait for batches and their copy. How
much of that is fixed after all can be told where a worker's samples or tokens varied from step to step:

    seconds(r, s) = a_r + slope * work(r, s);   fixed share = 1 - slope * mean work / mean seconds
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gscalar.model.timeline import Floats, Ints, StepTimeline
from gscalar.prediction.collectives import AlphaBeta
from gscalar.prediction.exchange import Exchange, even_exchange, measured_exchange

# What a worker does by itself; the first three grow with its samples.
_BY_SAMPLES: Final = ("compute", "data_wait", "h2d")
_FIXED: Final = ("optimizer", "gc", "host_gap", "other")
_VARIES: Final = 0.05  # relative deviation of work from which a fixed part can be told
_SURE: Final = 0.25  # relative standard error of the slope up to which it is believed


class NotScalable(ValueError):
    """A timeline lacks what a scaling curve needs; the message says what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTraining:
    """What the steps of a data-parallel training took, in seconds."""

    busy_s: Floats  # all that a worker does by itself, (num_ranks, num_steps)
    by_samples_s: Floats  # what of it grows with its samples
    step_s: float  # mean
    pause_s: float  # mean of what stops all workers alike
    num_workers: int
    exchange: Exchange | None
    samples_per_step: float = math.nan  # of all workers
    fixed_share: float = math.nan  # of `by_samples_s`, what does not grow after all; NaN: nobody knows

    @classmethod
    def of(
        cls, timeline: StepTimeline, *, samples_per_step: float = math.nan, gradient_bytes: float = math.nan
    ) -> MeasuredTraining:
        """Return what a timeline says of its steps.

        Raises:
            NotScalable: it has no step that all its ranks have, or its ranks are not replicas.
        """
        if timeline.is_pipeline:
            raise NotScalable("its ranks are stages of a pipeline, not replicas of one model")
        steps: Ints = np.nonzero(np.isfinite(timeline.step_s).all(axis=0))[0]
        if not len(steps):
            raise NotScalable("there is no step that all ranks have")
        accounts = {
            name: np.nan_to_num(timeline.account(name)[:, steps])
            for name in (*_BY_SAMPLES, *_FIXED, "checkpoint", "exposed_communication")
        }
        step_s = timeline.step_s[:, steps]
        accounts["other"] += np.maximum(step_s - sum(accounts.values()), 0.0)
        by_samples_s: Floats = sum((accounts[name] for name in _BY_SAMPLES), np.zeros(step_s.shape))
        busy_s: Floats = sum((accounts[name] for name in _FIXED), by_samples_s)
        exchange = measured_exchange(_of_steps(timeline, steps), accounts["exposed_communication"], gradient_bytes)
        if exchange is None and not math.isnan(gradient_bytes):
            exchange = even_exchange(gradient_bytes, float(accounts["compute"].mean()))
        work = timeline.work[:, steps] if timeline.work is not None else None
        return cls(
            busy_s=busy_s,
            by_samples_s=by_samples_s,
            step_s=float(step_s.mean()),
            pause_s=float(accounts["checkpoint"].mean()),
            num_workers=max(timeline.world, timeline.num_ranks),
            exchange=exchange,
            samples_per_step=samples_per_step,
            fixed_share=fixed_share(by_samples_s, work) if work is not None else math.nan,
        )

    def of_steps(self, steps: Ints) -> MeasuredTraining:
        """Return the training as if it had had these steps."""
        exchange = self.exchange.of_steps(steps) if self.exchange is not None else None
        return replace(self, busy_s=self.busy_s[:, steps], by_samples_s=self.by_samples_s[:, steps], exchange=exchange)

    @property
    def link(self) -> AlphaBeta | None:
        """The link that its collectives were seen to have."""
        return self.exchange.fit(self.num_workers) if self.exchange is not None else None


def fixed_share(seconds: Floats, work: Floats) -> float:
    """Return the share of the seconds that does not grow with work, `(num_ranks, num_steps)` both; NaN: not known.

    The slope is that of a worker's own steps, so that slow workers do not count as fixed costs.
    """
    if not np.isfinite(work).all() or not (work > 0).all():
        return math.nan
    off_work = work - work.mean(axis=1, keepdims=True)
    off_s = seconds - seconds.mean(axis=1, keepdims=True)
    squares = float((off_work**2).sum())
    num_free = work.size - len(work) - 1
    if num_free < 1 or math.sqrt(squares / work.size) < _VARIES * work.mean():
        return math.nan
    slope = float((off_work * off_s).sum()) / squares
    error = math.sqrt(float(((off_s - slope * off_work) ** 2).sum()) / num_free / squares)
    if slope <= 0 or error > _SURE * slope:
        return math.nan
    return min(1.0, max(0.0, 1 - slope * float(work.mean()) / float(seconds.mean())))


def _of_steps(timeline: StepTimeline, steps: Ints) -> StepTimeline:
    """Return the timeline with the collectives of these steps alone; nothing else of it is looked at."""
    found = timeline.collectives
    if found is None:
        return timeline
    chosen = replace(
        found, ready_s=found.ready_s[:, steps], start_s=found.start_s[:, steps], end_s=found.end_s[:, steps]
    )
    return replace(timeline, collectives=chosen)
