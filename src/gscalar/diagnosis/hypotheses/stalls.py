"""Two causes that strike now and then: checkpoints that the training waits for, and garbage collection.

Formula: what the step gains, simulated, where the account is emptied. A stall on one rank holds all up at their next
meeting, so that stalls of few milliseconds at random ranks cost far more than their share of each rank's time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import ms, percent
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import ACCOUNT_NAMES, Signal
from gscalar.prediction.edits import labels_scaled
from gscalar.prediction.forecast import Proposal
from gscalar.prediction.graph import Bools

LEAST_CHECKPOINT_SHARE: Final = 0.03
LEAST_GC_SHARE: Final = 0.02
# Of a checkpoint that is written beside the training the copy stays.
_COPY_SHARE: Final = 0.1


def examine_checkpoints(seen: Seen) -> Hypothesis:
    """Hold "checkpoints stall the training" against what was seen."""
    return _examine(
        seen, Cause.CHECKPOINT_STALL, "checkpoint", Signal.CHECKPOINTS, LEAST_CHECKPOINT_SHARE,
        Proposal(
            name="checkpoint", knob="checkpoint.every_steps larger, or checkpoints written beside the training",
            likely=labels_scaled("checkpoint", by=_COPY_SHARE), ceiling=labels_scaled("checkpoint", by=0.0),
            uncertainty=0.2,
        ),
    )  # fmt: skip


def examine_collections(seen: Seen) -> Hypothesis:
    """Hold "garbage collection stalls the training" against what was seen."""
    return _examine(
        seen, Cause.GARBAGE_COLLECTION, "gc", Signal.GC, LEAST_GC_SHARE,
        Proposal(
            name="gc", knob="gc.freeze() after the first steps, and collections on all ranks in the same step",
            likely=labels_scaled("gc", by=0.1), ceiling=labels_scaled("gc", by=0.0), uncertainty=0.2,
        ),
    )  # fmt: skip


def _examine(
    seen: Seen, cause: Cause, account: str, signal: Signal, least_share: float, proposal: Proposal
) -> Hypothesis:
    assert seen.replay is not None
    seconds = seen.timeline.accounts[:, :, ACCOUNT_NAMES.index(account)]
    if signal in seen.timeline.unknown or not np.isfinite(seconds).any():
        return unknown(cause, seen.timeline.unknown.get(signal, "it is not seen"))
    removal = proposal.ceiling
    share = 1 - float(seen.replay.edited_s([removal])[0].mean() / seen.replay.replayed_s.mean())
    struck = np.nan_to_num(seconds) > 0.005 * seen.step_s
    if share < least_share:
        return rejected(cause, f"it costs {percent(share)} of the steps' time")
    each_s = float(np.nan_to_num(seconds)[struck].mean()) if struck.any() else 0.0
    where = "the same steps on all ranks" if _aligned(struck) else "different steps on different ranks"
    return Hypothesis(
        cause=cause, status=Status.SUPPORTED, removal=removal, proposals=(proposal,),
        evidence_for=(
            f"it strikes {percent(float(struck.any(axis=0).mean()))} of the steps, {ms(each_s)} each, in {where}",
            f"without it steps would take {percent(share)} less, simulated",
        ),
    )  # fmt: skip


def _aligned(struck: Bools) -> bool:
    hit = struck[:, struck.any(axis=0)]
    return bool(hit.size) and float(hit.mean()) > 0.8
