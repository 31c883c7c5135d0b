"""The metrics that gscalar itself records: name, unit, meaning. docs/metrics.md is generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric's definition."""

    unit: str
    meaning: str


METRICS: Final[dict[str, Metric]] = {
    "train/loss": Metric(unit="1", meaning="Mean loss of this rank's micro-steps of the step, by their weights."),
    "train/lr": Metric(unit="1", meaning="Learning rate of the first parameter group in the step."),
    "train/step_s": Metric(unit="s", meaning="Wall time from the end of the step before to the end of this one."),
    "train/grad_norm": Metric(unit="1", meaning="Global gradient norm before clipping, where the plan clips."),
    "train/tokens_per_s": Metric(unit="1/s", meaning="Tokens of all ranks in the step over its wall time."),
    "train/samples_per_s": Metric(unit="1/s", meaning="Samples of all ranks in the step over its wall time."),
}
