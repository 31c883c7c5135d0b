"""What a trainer's callback needs of a run whose batches and steps it uses from inside that trainer's loop.

The loop is the trainer's, the steps are the run's: unlike a follower, which only hears of steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from gscalar.model.spans import SpanKind
from gscalar.observation.step_clock import OpenSpan
from gscalar.runtime.cursor import Cursor
from gscalar.runtime.framework import Batch, Trainee
from gscalar.runtime.session import Run, _Training


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

    @property
    def leaves_gradients(self) -> bool:
        """Whether the job wants nothing of gradients but that the optimizer moves by them, at its own rate."""
        plan, looks = self.run._spec.plan, self.run._spec.on_nonfinite == "stop"
        return plan.accumulate == 1 and plan.clip_norm is None and plan.schedule is None and not looks

    def batches(self, data: Any, *, epochs: int | None, steps: int | None) -> Generator[Any, None, None]:
        """Return `run.batches`, which may be closed before its end."""
        return cast("Generator[Any, None, None]", self.run.batches(data, epochs=epochs, steps=steps))

    def leave_sharding(self) -> None:
        """Say that the trainer shares the data over the workers by itself."""
        self.run._feeds.used = True

    def expect(self, samples: int) -> None:
        """Say how many samples the next step consumes, where the run does not see its batch."""
        batch = Batch(None, samples, None, Cursor(), False)
        self._training().engine.expect(batch)

    @contextmanager
    def looping(self, total_steps: int | None = None) -> Iterator[None]:
        """Be in a loop that takes `run.step` and crosses its borders itself: a stop waits for the next of them."""
        run, training = self.run, self._training()
        training.saving.ready_random(run.state, run.seed, run._spec.deterministic)
        run._total_steps = total_steps
        run._exits.in_loop = True
        run._timing.start()
        try:
            yield
        finally:
            run._exits.in_loop = False
            training.saving.checkpointer.wait()

    @property
    def border_wanted(self) -> bool:
        """Whether the step that is done ends with a checkpoint or a stop."""
        training = self._training()
        agreed = training.agreement
        if agreed is None:
            return False
        return agreed.checkpoint or agreed.stop or training.saving.checkpointer.due_by_step(self.run.state.step)

    def cross_border(self) -> None:
        """Save at the step that is done, and stop there where that was asked for."""
        self.run._timing.resume()
        self.run._cross_border(self._training(), save=True)
        self.run._timing.yield_to_script()

    @contextmanager
    def waiting_for_others(self) -> Iterator[None]:
        """Time what is inside as a wait for what other processes compute."""
        timing = self.run._timing
        timing.resume()
        waiting = timing.clock.begin(SpanKind.COMMUNICATION)
        try:
            yield
        finally:
            timing.clock.end(waiting)
            timing.yield_to_script()

    def _training(self) -> _Training:
        return self.run._trained("step")

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
