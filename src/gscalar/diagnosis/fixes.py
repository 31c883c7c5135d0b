"""The fixes that are priced: those of every diagnosis, those that a finding asks for, and those asked for by name.

Overlap and balance, and both together, are always answered, since they are what people choose between. The others are
priced where a hypothesis is supported, or where somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gscalar.base.errors import UserError
from gscalar.diagnosis.hypotheses.launch_bound import launch_fixes
from gscalar.diagnosis.hypotheses.loading import reader_fix, slow_readers
from gscalar.diagnosis.hypotheses.noise import ISOLATE
from gscalar.diagnosis.hypotheses.slow_worker import slow_workers
from gscalar.diagnosis.hypotheses.stalls import CHECKPOINT_FIX, GC_FIX
from gscalar.diagnosis.loader_fix import loader_proposal
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import FIX_NAMES, Cause, Hypothesis, Status
from gscalar.prediction.edits import (
    balanced,
    ideal_compute,
    joined,
    overlapped,
    repartitioned,
    replaced,
    transfers,
    transfers_scaled,
    without_transfers,
)
from gscalar.prediction.forecast import Proposal

_LATENCY_S: Final = 50e-6  # of one more collective, where no small one was measured
_SMALL_BYTES: Final = 65_536
_BF16: Final = 0.5  # of the bytes of float32 gradients
_TWICE_AS_FAST: Final = 0.5  # of the time that bytes take


def proposals_for(seen: Seen, hypotheses: Sequence[Hypothesis]) -> list[Proposal]:
    """Return the fixes to price, the three that are always answered first."""
    found = {each.name: each for each in standing_proposals(seen)}
    for hypothesis in hypotheses:
        if hypothesis.status is not Status.SUPPORTED:
            continue
        for proposal in hypothesis.proposals:
            found.setdefault(proposal.name, proposal)
        for name in _ASKED_BY.get(hypothesis.cause, ()):
            if name not in found:
                proposed = _by_name(seen, name)
                if proposed is not None:
                    found[name] = proposed
    return list(found.values())


_ASKED_BY: Final = {
    Cause.INPUT_BOUND: ("loader",),
    Cause.EXPOSED_COMMUNICATION: ("compress",),
}


def standing_proposals(seen: Seen) -> list[Proposal]:
    """Return overlap, balance and both."""
    overlap = overlapped(latency_s=latency_s(seen))
    knobs = ("plan.overlap.buckets_mb=auto", _balance_knob(seen))
    return [
        Proposal(name="overlap", knob=knobs[0], likely=overlap, ceiling=without_transfers, uncertainty=0.3),
        Proposal(name="balance", knob=knobs[1], likely=balanced, ceiling=ideal_compute, uncertainty=0.1),
        Proposal(
            name="overlap+balance", knob=" ".join(knobs), likely=joined([balanced, overlap]),
            ceiling=joined([ideal_compute, without_transfers]), uncertainty=0.2,
        ),
    ]  # fmt: skip


def _balance_knob(seen: Seen) -> str:
    if seen.work is not None and slow_workers(seen):
        return "plan.balance.kind=speed"
    return "plan.balance.kind=cost"


def latency_s(seen: Seen) -> float:
    """Return what one more collective costs beside its bytes: the median of the small ones that were seen."""
    found = seen.timeline.collectives
    if found is None:
        return _LATENCY_S
    small_s = found.transfer_s[:, found.num_bytes <= _SMALL_BYTES]
    known = np.isfinite(small_s)
    return float(np.median(small_s[known])) if known.any() else _LATENCY_S


def proposal_named(seen: Seen, name: str, hypotheses: Sequence[Hypothesis]) -> Proposal:
    """Return the fix of this name, as one of the findings asks for it, else as it would be in general.

    Raises `UserError` fix-unknown.
    """
    if name not in FIX_NAMES:
        raise UserError(
            code="fix-unknown",
            what="There is no fix of this name.",
            value=name,
            next_step=f"One of {', '.join(FIX_NAMES)}.",
        )
    for proposal in proposals_for(seen, hypotheses):
        if proposal.name == name:
            return proposal
    proposed = _by_name(seen, name)
    if proposed is None:
        raise UserError(
            code="fix-unknown",
            what=f"The fix {name} does not apply to what was measured: {_WHY_NOT[name]}.",
            value=seen.timeline.name,
            next_step="gscalar diagnose lists the fixes that do.",
        )
    return proposed


_WHY_NOT: Final = {
    "replace_worker": "no worker has peers that it is slower than",
    "repartition": "there are no stages",
    "faster_link": "no transfer is seen",
    "compress": "no transfer is seen",
    "loader": "no wait for data is seen",
    "reader": "no rank waits for data longer than the others",
    "larger_batch": "no time between operations is seen",
    "fuse": "no time between operations is seen",
    "checkpoint": "no checkpoint is seen",
    "gc": "no garbage collection is seen",
    "isolate": "there are no steps to compare",
}


def _by_name(seen: Seen, name: str) -> Proposal | None:
    """Return a fix in its general form; None where there is nothing that it could change."""
    steps = seen.steps
    if name == "loader":
        return loader_proposal(seen)
    if name == "compress" and transfers(steps).any():
        edit = transfers_scaled(_BF16, latency_s=latency_s(seen))
        return Proposal(
            name=name, knob="plan.compression.kind=bf16", likely=edit, ceiling=without_transfers, uncertainty=0.3
        )
    if name == "faster_link" and transfers(steps).any():
        edit = transfers_scaled(_TWICE_AS_FAST, latency_s=latency_s(seen))
        return Proposal(
            name=name, knob="a link of twice the bandwidth", likely=edit, ceiling=without_transfers, uncertainty=0.2
        )
    if name == "repartition" and seen.timeline.is_pipeline:
        return Proposal(
            name=name, knob="layers moved between stages", likely=repartitioned, ceiling=repartitioned, uncertainty=0.2
        )
    if name == "replace_worker" and seen.pace.shape[1] > 1:
        stage, replica = (int(at) for at in np.unravel_index(seen.pace.argmax(), seen.pace.shape))
        edit = replaced([(int(np.unique(steps.template.stage)[stage]), replica)])
        return Proposal(
            name=name, knob=f"evict rank {seen.rank_of(stage, replica)}", likely=edit, ceiling=edit, uncertainty=0.05
        )
    if name == "reader" and slow_readers(seen):
        return reader_fix(seen, slow_readers(seen))
    for label, proposals in (("host_gap", launch_fixes()), ("checkpoint", (CHECKPOINT_FIX,)), ("gc", (GC_FIX,))):
        for proposal in proposals:
            if proposal.name == name and steps.durations[steps.labelled(label)].any():
                return proposal
    if name == "isolate" and steps.num_frames > 1:
        return ISOLATE
    return None
