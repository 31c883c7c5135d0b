"""A stage of the pipeline has more to compute than the others, usually the last one, with the loss and the vocabulary.

Formula: the lower median over replicas of a stage's compute in a step (so that one slow worker makes no stage slow),
its mean over steps, and the largest of these over their mean, minus 1. M_S (OSDI 2025, section 5.2) is how much of the
slow-down goes where the last stage is at the ideal.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import percent
from gscalar.diagnosis.seen import Seen, lower_median
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.prediction.edits import repartitioned
from gscalar.prediction.forecast import Proposal

LEAST_IMBALANCE: Final = 0.05


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    if not seen.timeline.is_pipeline:
        return rejected(Cause.STAGE_IMBALANCE, "there are no stages")
    num = seen.compute_s.shape[1]
    of_stage = lower_median(seen.compute_s).mean(axis=1)
    imbalance = float(of_stage.max() / of_stage.mean() - 1)
    if imbalance < LEAST_IMBALANCE:
        return rejected(
            Cause.STAGE_IMBALANCE, f"stages compute alike (the longest is {percent(imbalance)} over the mean)"
        )
    if num < 2:
        return unknown(Cause.STAGE_IMBALANCE, "with one replica a slow worker and a larger stage look alike")
    longest = int(of_stage.argmax())
    stage = int(np.unique(seen.steps.template.stage)[longest])
    supporting = [f"stage {stage} computes {percent(imbalance)} longer than the mean of the stages, in all replicas"]
    if seen.last_stage_share is not None and longest == len(of_stage) - 1:
        supporting.append(f"M_S: the last stage explains {percent(seen.last_stage_share)} of the slow-down")
    return Hypothesis(
        cause=Cause.STAGE_IMBALANCE, status=Status.SUPPORTED, stages=(stage,),
        ranks=tuple(seen.rank_of(longest, replica) for replica in range(num)),
        evidence_for=tuple(supporting), removal=repartitioned,
        proposals=(
            Proposal(
                name="repartition", knob=f"fewer layers on stage {stage}", likely=repartitioned, ceiling=repartitioned,
                uncertainty=0.2,  # layers are whole
            ),
        ),
    )  # fmt: skip
