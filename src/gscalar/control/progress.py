"""How a training goes, for the live line: from rank 0's steps to rates and a time to go.

Rates are over the last steps within `WINDOW_S`, and not since the start: a slow first step
(compilation, cold files) would weigh on the rate for minutes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gscalar.model.events import Step

WINDOW_S: Final = 15.0
_MOST_STEPS: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What the live line shows. None: not known (yet)."""

    attempt: int
    world: int
    phase: str  # starting, training, evaluation, checkpoint, ..., waiting
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    lr: float | None = None
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None


@dataclass(slots=True)
class StepWindow:
    """The last steps of one attempt."""

    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS))

    def add(self, step: Step) -> None:
        """Take a step; older ones than the window fall out, but two stay, for a rate."""
        self.steps.append(step)
        while len(self.steps) > 2 and step.time_ns - self.steps[0].time_ns > WINDOW_S * 1e9:
            self.steps.popleft()

    def progress(self, attempt: int, world: int, phase: str) -> Progress:
        """Return the figures of now."""
        if not self.steps:
            return Progress(attempt=attempt, world=world, phase=phase)
        first, last = self.steps[0], self.steps[-1]
        seconds = (last.time_ns - first.time_ns) / 1e9 if len(self.steps) > 1 else last.duration_s
        counted = list(self.steps)[1:] or [last]
        rate = len(counted) / seconds if seconds > 0 else None
        left = last.total_steps - last.step
        return Progress(
            attempt=attempt,
            world=world,
            phase=phase,
            step=last.step,
            total_steps=last.total_steps,
            epoch=last.epoch,
            loss=last.loss,
            lr=last.lr,
            steps_per_s=rate,
            tokens_per_s=_per_second(sum(step.tokens for step in counted), seconds),
            samples_per_s=_per_second(sum(step.samples for step in counted), seconds),
            eta_s=left / rate if rate and last.total_steps and left >= 0 else None,
        )


def _per_second(amount: float, seconds: float) -> float | None:
    return amount / seconds if amount > 0 and seconds > 0 else None
