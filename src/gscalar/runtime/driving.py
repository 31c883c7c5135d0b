"""What a trainer's callback needs of a run whose batches and steps it uses from inside that trainer's loop.

The loop is the trainer's, the steps are the run's: unlike a follower, which only hears of steps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

from gscalar.model.spans import SpanKind
from gscalar.observation.step_clock import OpenSpan
from gscalar.runtime.framework import Trainee
from gscalar.runtime.session import Run


class Driver:
    """Drives one run for a trainer."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._evaluation: OpenSpan | None = None

    @property
    def trainee(self) -> Trainee | None:
        """What `run.prepare` has adopted, or None."""
        return self.run._training.trainee if self.run._training is not None else None

    @property
    def accumulate(self) -> int:
        """The micro-steps of an optimizer step."""
        return self.run._spec.plan.accumulate

    def batches(self, data: Any, *, epochs: int | None, steps: int | None) -> Generator[Any, None, None]:
        """Return `run.batches`, which may be closed before its end."""
        return cast("Generator[Any, None, None]", self.run.batches(data, epochs=epochs, steps=steps))

    def begin_evaluation(self) -> None:
        """Keep what follows out of the step's accounts."""
        self._evaluation = self.run._timing.clock.begin(SpanKind.EVALUATION)
        self.beat_evaluation()

    def beat_evaluation(self) -> None:
        """Say that an evaluation lives."""
        self.run._recording.beat("evaluation")

    def end_evaluation(self) -> None:
        """Go on with the step; nothing where no evaluation has begun."""
        if self._evaluation is not None:
            self.run._timing.clock.end(self._evaluation)
            self._evaluation = None

    def save_at_end(self) -> None:
        """Take the checkpoint of a loop's end, where the job wants one, on all ranks together."""
        training = self.run._training
        if training is not None and training.saving.checkpointer.wanted_at_end:
            training.saving.save_last(self.run.state)
            training.saving.checkpointer.wait()
