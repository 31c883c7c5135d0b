"""A worker is slow: what it computes takes longer than the same takes its peers, in nearly every step.

Formula: pace(w) = median over steps of t(w) / lower median of its peers' t, where t is the time of a unit of work if
the work is known, else of the step's compute. Slow are workers with a pace above 1.08 and above what the paces of
the others scatter. They must be above half of that excess in 70 % of the steps: a rank that is late now and then
is not slow. M_W (OSDI 2025, equation 5) says whether a few workers explain the slow-down; NVRx calls a relative score
(peers' over own) below 0.75 slow, which is a pace of 1.33.
Forward and backward that correlate are no evidence against it: one slow worker has them too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import percent, ranks_named
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Floats
from gscalar.prediction.edits import replaced
from gscalar.prediction.forecast import Proposal

LEAST_PACE: Final = 1.08
SCATTERS: Final = 4.0  # times what the better half of the paces are off 1
LEAST_PERSISTENCE: Final = 0.7
MOST_SLOW_SHARE: Final = 0.5  # of the workers: where more are slow, the others are fast
FEWEST_STEPS: Final = 3
LEAST_EXPLAINED: Final = 0.5  # 3 % of a few workers is one, which explains little where two are slow


def slow_workers(seen: Seen) -> list[tuple[int, int]]:
    """Return the workers that are slow, as indices of stage and replica, slowest first."""
    pace = seen.pace
    if pace.shape[1] < 2 or seen.relative.shape[2] < FEWEST_STEPS:
        return []
    # Of the better half: with two workers the slow one must not hide itself.
    scatter = np.sort(np.abs(pace - 1), axis=None)[(pace.size - 1) // 2]
    slow = (pace >= LEAST_PACE) & (pace - 1 >= SCATTERS * scatter)
    slow &= _persistence(seen) >= LEAST_PERSISTENCE
    slow &= slow.mean(axis=1, keepdims=True) <= MOST_SLOW_SHARE
    places = [(int(stage), int(replica)) for stage, replica in np.argwhere(slow)]
    return sorted(places, key=lambda place: -pace[place])


def _persistence(seen: Seen) -> Floats:
    """Return the share of the steps in which each worker is above half of its usual excess, of the shape of `pace`."""
    persistence: Floats = (seen.relative > 1 + (seen.pace[:, :, None] - 1) / 2).mean(axis=2)
    return persistence


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    if seen.pace.shape[1] < 2:
        return unknown(Cause.SLOW_WORKER, "no worker has a peer that does the same")
    if seen.relative.shape[2] < FEWEST_STEPS:
        return unknown(Cause.SLOW_WORKER, f"fewer than {FEWEST_STEPS} steps do not show what lasts")
    places = sorted(slow_workers(seen), key=lambda place: seen.rank_of(*place))  # ranks and paces in one order
    if not places:
        return rejected(Cause.SLOW_WORKER, _why_not(seen))
    stages = np.unique(seen.steps.template.stage)
    ranks = tuple(seen.rank_of(*place) for place in places)
    edit = replaced([(int(stages[stage]), replica) for stage, replica in places])
    unit = seen.timeline.work_unit.removesuffix("s") or "unit of work"
    measure = f"a {unit}" if seen.work is not None else "the same work"
    pace = ", ".join(f"{seen.pace[place]:.2f}x" for place in places[:6])
    last = sum(float(seen.last_share[place]) for place in places)
    lasting = min(float(_persistence(seen)[place]) for place in places)
    is_one = len(places) == 1
    supporting = [
        f"{measure} takes {ranks_named(ranks)} {pace} of what it takes {'its' if is_one else 'their'} peers, "
        f"lastingly in {percent(lasting)} of the steps",
        f"{'it computes' if is_one else 'one of them computes'} longest among its peers in "
        f"{percent(min(1.0, last / len({at for at, _ in places})))} of the steps",
    ]
    if seen.worst_workers_share is not None and seen.worst_workers_share >= LEAST_EXPLAINED:
        supporting.append(
            f"M_W: the worst 3 % of the workers explain {percent(min(1.0, seen.worst_workers_share))} of the slow-down"
        )
    against = []
    if seen.work is None:
        against.append("the work of each rank is not known: more work on the same ranks would look alike")
    return Hypothesis(
        cause=Cause.SLOW_WORKER, status=Status.SUPPORTED, ranks=ranks,
        stages=tuple(sorted({int(stages[stage]) for stage, _ in places})) if seen.timeline.is_pipeline else (),
        evidence_for=tuple(supporting), evidence_against=tuple(against), doubts=int(seen.work is None), removal=edit,
        proposals=(
            Proposal(
                name="replace_worker", knob=f"evict {ranks_named(ranks)}, or plan.balance.kind=speed",
                likely=edit, ceiling=edit, uncertainty=0.05,
            ),
        ),
    )  # fmt: skip


def _why_not(seen: Seen) -> str:
    fastest, slowest = float(seen.pace.min()), float(seen.pace.max())
    measure = "time per unit of work" if seen.work is not None else "time of a step's compute"
    return (
        f"{measure} differs by {percent(slowest / fastest - 1 if fastest > 0 else 0)} between peers, or does not last"
    )
