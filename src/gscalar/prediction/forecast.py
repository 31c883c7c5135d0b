"""What a fix is worth: the replay of the edited steps against the replay of the measured ones, with an interval.

    gain      = mean replayed step / mean edited step
    predicted = median over steps of (edited step + what the replay of that step had missed)

The interval is of 90 %: a bootstrap over steps for the predicted median, and beside it, as independent errors, the
replay's own error, what the edit does not know (a share of the time that it saves or adds), and the error of the
clocks where starts of several ranks were compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gscalar.model.timeline import Floats
from gscalar.prediction.edits import Edit
from gscalar.prediction.graph import Template
from gscalar.prediction.measured import MeasuredSteps, ideal_durations

_RESAMPLES: Final = 400
_SEED: Final = 20_250_711
_TO_90: Final = 1.645  # standard deviations on either side that hold 90 %


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A fix to be priced: the likely edit, and the edit taken to its limit."""

    name: str
    knob: str
    likely: Edit
    ceiling: Edit
    uncertainty: float  # standard deviation, as a share of what the step changes by
    extra_s: float = 0.0  # standard deviation of what the edit adds of its own, in seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a fix is worth. `predicted_step_s` is a median, `predicted_mean_s` a mean; `gain` is of means."""

    name: str
    knob: str
    predicted_step_s: float
    low_s: float
    high_s: float
    predicted_mean_s: float
    gain: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class Replay:
    """Measured steps with their replay, `(num_frames,)` each, in seconds."""

    measured: MeasuredSteps
    replayed_s: Floats
    ideal_s: Floats

    @classmethod
    def of(cls, steps: MeasuredSteps) -> Replay:
        """Replay measured steps as they were, and at the ideal."""
        replayed_s, ideal_s = steps.template.frames_of([steps.durations, ideal_durations(steps)])
        return cls(steps, replayed_s, ideal_s)

    @property
    def slowdown(self) -> float:
        """S: the mean replayed step over the mean ideal one."""
        return _ratio(self.replayed_s.mean(), self.ideal_s.mean())

    @property
    def measured_over_ideal(self) -> float:
        """The mean measured step over the mean ideal one."""
        return _ratio(self.measured.frame_s.mean(), self.ideal_s.mean())

    @property
    def error(self) -> float:
        """The mean measured step over the mean replayed one, minus 1."""
        return _ratio(self.measured.frame_s.mean(), self.replayed_s.mean()) - 1

    def edited_s(self, edits: Sequence[Edit]) -> list[Floats]:
        """Return the frames of each edit, `(num_frames,)`; edits that keep the template are replayed together."""
        edited = [edit(self.measured) for edit in edits]
        frames: dict[int, Floats] = {}
        by_template: dict[int, tuple[Template, list[int]]] = {}
        for at, steps in enumerate(edited):
            by_template.setdefault(id(steps.template), (steps.template, []))[1].append(at)
        for template, members in by_template.values():
            frames.update(zip(members, template.frames_of([edited[at].durations for at in members]), strict=True))
        return [frames[at] for at in range(len(edited))]

    def forecast(self, proposals: Sequence[Proposal], *, clock_error_s: float = 0.0) -> list[Forecast]:
        """Return what each of the proposals is worth, in their order."""
        frames = self.edited_s([edit for each in proposals for edit in (each.likely, each.ceiling)])
        return [
            self._one(each, likely_s, ceiling_s, clock_error_s)
            for each, likely_s, ceiling_s in zip(proposals, frames[::2], frames[1::2], strict=True)
        ]

    def _one(self, proposal: Proposal, likely_s: Floats, ceiling_s: Floats, clock_error_s: float) -> Forecast:
        # An edit that draws its frames from the measured ones may have fewer or more of them.
        missed_s = np.resize(self.measured.frame_s - self.replayed_s, likely_s.shape)
        predicted = np.maximum(likely_s + missed_s, 0.0)
        middle_s = float(np.median(predicted))
        low_s, high_s = _bootstrap(predicted)
        changed_s = abs(float(self.replayed_s.mean() - likely_s.mean()))
        other_s = _TO_90 * math.hypot(
            abs(self.error) * middle_s,
            proposal.uncertainty * changed_s,
            proposal.extra_s,
            0.0 if math.isnan(clock_error_s) else clock_error_s,
        )
        return Forecast(
            name=proposal.name,
            knob=proposal.knob,
            predicted_step_s=middle_s,
            low_s=max(0.0, middle_s - math.hypot(middle_s - low_s, other_s)),
            high_s=middle_s + math.hypot(high_s - middle_s, other_s),
            predicted_mean_s=float(predicted.mean()),
            gain=_ratio(self.replayed_s.mean(), likely_s.mean()),
            # A limit is one: what is likely cannot pass it.
            ceiling=max(
                _ratio(self.replayed_s.mean(), ceiling_s.mean()), _ratio(self.replayed_s.mean(), likely_s.mean())
            ),
        )


def _bootstrap(values: Floats) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles of the median over resampled steps."""
    draw = np.random.default_rng(_SEED)
    chosen = draw.integers(0, len(values), (_RESAMPLES, len(values)))
    medians = np.median(values[chosen], axis=1)
    low, high = np.quantile(medians, (0.05, 0.95))
    return float(low), float(high)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 1.0
