"""What the hypotheses look at: measured steps, their replay, and the features that several of them share.

Computes of data-parallel ranks and of a pipeline's stages have one shape, `(num_stages, num_replicas, num_frames)`:
how long a worker computed in a step. A worker's pace is that time over the lower median of its peers', the other
replicas of its stage; where the work of the ranks is known it is the time of a unit of work, so that having more to do
is not being slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from gscalar.model.timeline import ACCOUNT_NAMES, Floats, Signal, StepTimeline
from gscalar.prediction.data_parallel import measure_data_parallel
from gscalar.prediction.edits import COMPUTES, transfers
from gscalar.prediction.forecast import Replay
from gscalar.prediction.measured import MeasuredSteps, NotReplayable, ideal_durations
from gscalar.prediction.pipeline import measure_pipeline

_MOST_REPLICAS_SCORED: Final = 64
_WORST: Final = 0.03  # of the workers, as M_W takes


@dataclass(frozen=True)
class Seen:
    """A timeline with what can be computed from it. `replay` is None where nothing can be replayed."""

    timeline: StepTimeline
    replay: Replay | None
    why_no_replay: str = ""

    @classmethod
    def of(cls, timeline: StepTimeline) -> Seen:
        """Look at a timeline."""
        if not timeline.num_steps:
            return cls(timeline, None, timeline.unknown.get(Signal.STEPS, "there are no steps"))
        try:
            replay = Replay.of(measured_steps(timeline))
        except NotReplayable as error:
            return cls(timeline, None, str(error))
        if not replay.replayed_s.mean() > 0:
            return cls(timeline, None, "what was measured takes no time")
        return cls(timeline, replay)

    @property
    def steps(self) -> MeasuredSteps:
        """The measured steps; only where there is a replay."""
        assert self.replay is not None
        return self.replay.measured

    @cached_property
    def step_s(self) -> float:
        """Mean measured step in seconds; 0 where there is none."""
        return float(self.steps.frame_s.mean()) if self.replay is not None else 0.0

    @cached_property
    def accounts(self) -> dict[str, float | None]:
        """Mean seconds a step of each account, over ranks and steps; None where it is not known."""
        found: dict[str, float | None] = {}
        for at, name in enumerate(ACCOUNT_NAMES):
            column = self.timeline.accounts[:, :, at]
            known = np.isfinite(column)
            found[name] = float(column[known].mean()) if known.any() else None
        return found

    def share(self, account: str) -> float:
        """Mean share of the step that an account has; 0 where it is not known."""
        seconds = self.accounts[account]
        return seconds / self.step_s if seconds is not None and self.step_s > 0 else 0.0

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds that each worker computes in each frame, `(num_stages, num_replicas, num_frames)`."""
        steps = self.steps
        computing = steps.nodes(*COMPUTES)
        return np.stack(
            [
                steps.durations[computing & (steps.template.stage == stage)].sum(axis=0)
                for stage in np.unique(steps.template.stage)
            ]
        )

    @cached_property
    def work(self) -> Floats | None:
        """Units of work of each replica and frame; None where they are not all known."""
        return self.steps.known_work

    @cached_property
    def relative(self) -> Floats:
        """Each worker's time over its peers', by frame, of the shape of `compute_s`; per unit of work where known."""
        taken = self.compute_s if self.work is None else self.compute_s / self.work
        usual = lower_median(taken)[:, None]
        return np.divide(taken, usual, out=np.ones_like(taken), where=usual > 0)

    @cached_property
    def pace(self) -> Floats:
        """Median over frames of `relative`, `(num_stages, num_replicas)`."""
        pace: Floats = np.median(self.relative, axis=2)
        return pace

    @cached_property
    def last_share(self) -> Floats:
        """Share of the frames in which each worker computed longest among its peers, `(num_stages, num_replicas)`."""
        last = self.compute_s.argmax(axis=1)
        return np.stack([(last == replica).mean(axis=1) for replica in range(self.compute_s.shape[1])], axis=1)

    @cached_property
    def evened(self) -> Floats:
        """`compute_s` without what is lasting about each worker: what is left changes from step to step."""
        pace = self.pace[:, :, None]
        return np.divide(self.compute_s, pace, out=self.compute_s.copy(), where=pace > 0)

    @cached_property
    def turning_imbalance(self) -> float:
        """Mean over frames of the longest compute over its peers' mean, minus 1, lasting differences taken out."""
        mean = self.evened.mean(axis=1)
        excess = np.divide(self.evened.max(axis=1), mean, out=np.ones_like(mean), where=mean > 0) - 1
        return float(excess.max(axis=0).mean())

    @cached_property
    def worker_scores(self) -> Floats | None:
        """min(S of its replica, S of its stage) of each worker, `(num_stages, num_replicas)`; None where too many.

        S of X: only X as measured, all else at the ideal, over the ideal (OSDI 2025, equations 3 and 4).
        """
        assert self.replay is not None
        ideal, steps = self._ideal, self.steps
        num = steps.num_replicas
        if num > _MOST_REPLICAS_SCORED:
            return None
        edited = []
        for replica in range(num):
            durations = ideal.copy()
            durations[:, replica] = steps.durations[:, replica]
            edited.append(durations)
        stages = np.unique(steps.template.stage)
        for stage in stages:
            here = steps.template.stage == stage
            durations = ideal.copy()
            durations[here] = steps.durations[here]
            edited.append(durations)
        whole = self.replay.ideal_s.mean()
        scores = [frames.mean() / whole for frames in steps.template.frames_of(edited)]
        of_stage = scores[num:] if len(stages) > 1 else [np.inf]
        lower: Floats = np.minimum(np.array(scores[:num])[None, :], np.array(of_stage)[:, None])
        return lower

    @cached_property
    def _ideal(self) -> Floats:
        return ideal_durations(self.steps)

    @cached_property
    def worst_workers_share(self) -> float | None:
        """M_W: how much of the slow-down goes where the worst 3 % of the workers are at the ideal."""
        scores = self.worker_scores
        if scores is None or self.replay is None:
            return None
        num = max(1, round(_WORST * scores.size))
        worst = np.argsort(scores, axis=None, kind="stable")[::-1][:num]
        durations = self.steps.durations.copy()
        stages = np.unique(self.steps.template.stage)
        for each in worst:
            stage, replica = np.unravel_index(each, scores.shape)
            here = self.steps.template.stage == stages[stage]
            durations[here, replica] = self._ideal[here, replica]
        return self._recovered(durations)

    @cached_property
    def last_stage_share(self) -> float | None:
        """M_S: how much of the slow-down goes where the last stage is at the ideal."""
        if self.replay is None or len(np.unique(self.steps.template.stage)) < 2:
            return None
        here = self.steps.template.stage == self.steps.template.stage.max()
        durations = self.steps.durations.copy()
        durations[here] = self._ideal[here]
        return self._recovered(durations)

    def _recovered(self, durations: Floats) -> float:
        assert self.replay is not None
        slow, ideal = self.replay.replayed_s.mean(), self.replay.ideal_s.mean()
        if slow <= ideal:
            return 0.0
        return float((slow - self.steps.template.frame_s(durations).mean()) / (slow - ideal))

    @cached_property
    def wait_s(self) -> Floats | None:
        """Seconds a frame that each replica waits for the last one, `(num_replicas,)`; None where nobody waits."""
        steps = self.steps
        if self.timeline.is_pipeline or steps.num_replicas < 2 or not transfers(steps).any():
            return None
        busy = steps.durations[~steps.template.communicates].sum(axis=0)
        waited: Floats = (busy.max(axis=0) - busy).mean(axis=1)
        return waited

    @cached_property
    def transfer_s(self) -> float:
        """Mean seconds of all that is exchanged in a frame, waiting excluded."""
        steps = self.steps
        return float(steps.durations[transfers(steps)].sum(axis=0).mean())

    def rank_of(self, stage: int, replica: int) -> int:
        """Return the rank of a worker, by the index of its stage and replica."""
        return self.timeline.ranks[int(self.steps.rank_index[stage, replica])].rank

    @property
    def knows_arrivals(self) -> bool:
        """Whether waiting can be told from transfer."""
        return Signal.ARRIVALS not in self.timeline.unknown and self.timeline.num_ranks > 1

    @property
    def world(self) -> int:
        """Ranks of the training, those that are not seen included."""
        return max(self.timeline.world, self.timeline.num_ranks)

    @property
    def knows_compute(self) -> bool:
        """Whether it is seen what computes: replayed as no time at all, it would make every rank as fast as another."""
        return self.accounts["compute"] is not None

    @property
    def why_no_compute(self) -> str:
        """Why it is not seen what computes."""
        return self.timeline.unknown.get(Signal.COMPUTE, "what computes is not seen")

    @property
    def clock_error_s(self) -> float:
        """The clocks' error where starts of several ranks are compared: transfers are durations, and need none."""
        return self.timeline.clock_error_s if self.timeline.is_pipeline else 0.0


def lower_median(of_workers: Floats) -> Floats:
    """Return the median over workers, axis 1; of an even number the lower, so that the slow one of two differs."""
    median: Floats = np.sort(of_workers, axis=1)[:, (of_workers.shape[1] - 1) // 2]
    return median


def measured_steps(timeline: StepTimeline) -> MeasuredSteps:
    """Return the steps of a timeline, ready to replay. Raises `NotReplayable` with what is missing."""
    if timeline.is_pipeline or timeline.source == "operations":
        return measure_pipeline(timeline)
    return measure_data_parallel(timeline)
