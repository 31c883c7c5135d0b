"""Two causes that strike now and then: checkpoints that the training waits for, and garbage collection.

Formula: what the step gains, simulated, where the account is emptied. A stall on one rank holds all up at their next
meeting, so that stalls of few milliseconds at random ranks cost far more than their share of each rank's time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import ms, percent, ranks_named
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
_PLANNED_SHARE: Final = 0.1  # of collections stays where they are planned
STRUCK: Final = 0.005  # of the mean step: a step that a stall of this length strikes
SAME_STEPS: Final = 0.8  # of the ranks that are ever struck, struck in the same step

CHECKPOINT_FIX: Final = Proposal(
    name="checkpoint", knob="checkpoint.every_steps larger, or checkpoints written beside the training",
    likely=labels_scaled("checkpoint", by=_COPY_SHARE), ceiling=labels_scaled("checkpoint", by=0.0), uncertainty=0.2,
)  # fmt: skip
GC_FIX: Final = Proposal(
    name="gc", knob="gc.freeze() after the first steps, and collections on all ranks in the same step",
    likely=labels_scaled("gc", by=_PLANNED_SHARE), ceiling=labels_scaled("gc", by=0.0), uncertainty=0.2,
)  # fmt: skip


def examine_checkpoints(seen: Seen) -> Hypothesis:
    """Hold "checkpoints stall the training" against what was seen."""
    return _examine(
        seen, Cause.CHECKPOINT_STALL, "checkpoint", Signal.CHECKPOINTS, LEAST_CHECKPOINT_SHARE, CHECKPOINT_FIX
    )


def examine_collections(seen: Seen) -> Hypothesis:
    """Hold "garbage collection stalls the training" against what was seen."""
    return _examine(seen, Cause.GARBAGE_COLLECTION, "gc", Signal.GC, LEAST_GC_SHARE, GC_FIX)


def _examine(
    seen: Seen, cause: Cause, account: str, signal: Signal, least_share: float, proposal: Proposal
) -> Hypothesis:
    assert seen.replay is not None
    seconds = seen.timeline.accounts[:, :, ACCOUNT_NAMES.index(account)]
    if signal in seen.timeline.unknown or not np.isfinite(seconds).any():
        return unknown(cause, seen.timeline.unknown.get(signal, "it is not seen"))
    removal = proposal.ceiling
    share = 1 - float(seen.replay.edited_s([removal])[0].mean() / seen.replay.replayed_s.mean())
    struck = np.nan_to_num(seconds) > STRUCK * seen.step_s
    if share < least_share:
        return rejected(cause, f"it costs {percent(share)} of the steps' time")
    struck_share = float(struck.any(axis=0).mean())
    each_s = float(np.nan_to_num(seconds)[struck].mean()) if struck.any() else 0.0
    return Hypothesis(
        cause=cause, status=Status.SUPPORTED, removal=removal, proposals=(proposal,),
        evidence_for=(
            f"it strikes {percent(struck_share)} of the steps, {ms(each_s)} each{_where(seen, struck)}",
            f"without it steps would take {percent(share)} less, simulated",
        ),
    )  # fmt: skip


def _where(seen: Seen, struck: Bools) -> str:
    """Return on which ranks, and whether on all of them at once; `struck` is `(num_ranks, num_steps)`."""
    hit = np.nonzero(struck.any(axis=1))[0]
    if seen.timeline.num_ranks < 2 or not len(hit):
        return ""
    ranks = ranks_named([seen.timeline.ranks[at].rank for at in hit])
    if len(hit) == 1:
        return f", on {ranks} alone"
    whom = "all ranks" if len(hit) == len(struck) else ranks
    together = float(struck[hit][:, struck.any(axis=0)].mean()) > SAME_STEPS
    return f", in {'the same' if together else 'different'} steps on {whom}"
