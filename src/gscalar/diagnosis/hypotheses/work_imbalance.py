"""Ranks have unequal work: who is last changes from step to step, or follows the work, and a unit takes all as long.

Formula: the mean over steps of (longest compute / mean compute - 1), after what is lasting about each worker is taken
out where the work is not known; where it is, of the work itself, and the time of a unit must be about equal. What
this costs is simulated by giving each step's ranks equal shares. In a pipeline without known work, forwards and
backwards of the same micro-batch that move together (correlation of at least 0.8 here; 0.9 in OSDI 2025) tell work from
noise; both are divided by the pace of their worker first, since a slow worker makes them move together too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import ms, percent, ranks_named
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Activity, Floats
from gscalar.prediction.edits import COMPUTES, Edit, balanced
from gscalar.prediction.measured import MeasuredSteps

LEAST_IMBALANCE: Final = 0.03
LEAST_CORRELATION: Final = 0.8
LEAST_WAIT: Final = 0.02  # of the step
LEAST_PERSISTENCE: Final = 0.7  # of the steps, in which the same rank has more
MOST_UNIT_SPREAD: Final = 0.08  # of the time of a unit between ranks, where the same rank always has more


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    if seen.compute_s.shape[1] < 2:
        return unknown(Cause.WORK_IMBALANCE, "no worker has a peer that does the same")
    return _by_work(seen, seen.work) if seen.work is not None else _by_time(seen)


def _by_work(seen: Seen, work: Floats) -> Hypothesis:
    imbalance = float((work.max(axis=0) / work.mean(axis=0) - 1).mean())
    spread = float(seen.pace.max() / max(seen.pace.min(), 1e-12) - 1)
    unit = seen.timeline.work_unit or "units"
    if imbalance < LEAST_IMBALANCE:
        return rejected(
            Cause.WORK_IMBALANCE, f"ranks have equal work (the most {unit} are {percent(imbalance)} over the mean)"
        )
    compute_s = seen.compute_s.sum(axis=0)
    follows = correlation(work, compute_s)
    supporting = [f"the rank with the most {unit} has {percent(imbalance)} more than the mean, step by step"]
    against: list[str] = []
    equal = f"time per unit is {'about equal' if spread <= MOST_UNIT_SPREAD else 'unequal'} (spread {percent(spread)})"
    (supporting if spread <= MOST_UNIT_SPREAD else against).append(equal)
    if np.isfinite(follows):
        text = f"compute follows the work (correlation {follows:.2f})"
        (supporting if follows >= LEAST_CORRELATION else against).append(text)
        if follows < LEAST_CORRELATION / 2:
            return rejected(Cause.WORK_IMBALANCE, f"compute does not follow the work (correlation {follows:.2f})")
    ranks = tuple(each.rank for at, each in enumerate(seen.timeline.ranks) if _always_more(work, at))
    last = float(seen.last_share.max())
    supporting.append(
        f"{ranks_named(ranks)} {'has' if len(ranks) == 1 else 'have'} more than the mean in nearly every step"
        if ranks
        else f"ranks take turns to be last (the most frequent one in {percent(last)} of the steps)"
    )
    return _supported(seen, supporting, against, doubts=0, ranks=ranks, removal=balanced)


def _always_more(work: Floats, rank: int) -> bool:
    """Whether a rank has more than the mean by the limit in nearly all steps."""
    return bool((work[rank] > (1 + LEAST_IMBALANCE) * work.mean(axis=0)).mean() >= LEAST_PERSISTENCE)


def _by_time(seen: Seen) -> Hypothesis:
    imbalance = seen.turning_imbalance
    together = _forward_with_backward(seen)
    if imbalance < LEAST_IMBALANCE and (together is None or together < LEAST_CORRELATION):
        return rejected(
            Cause.WORK_IMBALANCE, f"without lasting differences ranks compute alike (within {percent(imbalance)})"
        )
    supporting = [
        f"the longest compute of a step exceeds the mean by {percent(imbalance)}, lasting differences taken out",
        f"the rank that is last most often is last in {percent(float(seen.last_share.max()))} of the steps",
    ]
    if together is not None and together < LEAST_CORRELATION:
        return rejected(
            Cause.WORK_IMBALANCE,
            f"forward and backward of a micro-batch do not move together (correlation {together:.2f})",
        )
    if together is not None:
        supporting.append(f"forward and backward of a micro-batch move together (correlation {together:.2f})")
        return _supported(seen, supporting, [], doubts=0, ranks=(), removal=_turning_balanced(seen))
    return unknown(
        Cause.WORK_IMBALANCE,
        f"computes differ from step to step by {percent(imbalance)}, and the work of each rank is not known: "
        "give run.step weight= or tokens=",
    )


def _supported(
    seen: Seen, supporting: list[str], against: list[str], *, doubts: int, ranks: tuple[int, ...], removal: Edit
) -> Hypothesis:
    if seen.wait_s is not None:
        waiting = seen.wait_s[seen.wait_s > max(LEAST_WAIT * seen.step_s, seen.wait_s.max() / 2)]
        if len(waiting):
            supporting.append(
                f"{len(waiting)} of {len(seen.wait_s)} ranks wait {ms(float(waiting.mean()))} +- "
                f"{ms(float(waiting.std()))} a step"
            )
    return Hypothesis(
        cause=Cause.WORK_IMBALANCE, status=Status.SUPPORTED, ranks=ranks, evidence_for=tuple(supporting),
        evidence_against=tuple(against), doubts=doubts, removal=removal,
    )  # fmt: skip


def _turning_balanced(seen: Seen) -> Edit:
    """Return the edit that makes ranks end together but for what lasts: a slow worker's cost is no imbalance's."""
    pace = seen.pace / seen.pace.mean(axis=1, keepdims=True)

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        durations = balanced(steps).durations.copy()
        for at, stage in enumerate(np.unique(steps.template.stage)):
            durations[(steps.template.stage == stage) & steps.nodes(*COMPUTES)] *= pace[at][:, None]
        return replace(steps, durations=durations)

    return edit


def _forward_with_backward(seen: Seen) -> float | None:
    """Return the correlation of forwards with backwards of the same micro-batch; None where there are none."""
    steps = seen.steps
    template = steps.template
    pairs = []
    for at, stage in enumerate(np.unique(template.stage)):
        here = template.stage == stage
        forward = np.nonzero(here & steps.nodes(Activity.FORWARD))[0]
        backward = np.nonzero(here & steps.nodes(Activity.BACKWARD))[0]
        if not len(forward) or len(forward) != len(backward):
            return None
        forward, backward = (nodes[np.argsort(template.micro[nodes], kind="stable")] for nodes in (forward, backward))
        pace = seen.pace[at][None, :, None]
        mean = [steps.durations[nodes] / pace for nodes in (forward, backward)]
        pairs.append([part / part.mean() for part in mean])
    if not pairs:
        return None
    return correlation(
        np.concatenate([pair[0].ravel() for pair in pairs]), np.concatenate([pair[1].ravel() for pair in pairs])
    )


def correlation(left: Floats, right: Floats) -> float:
    """Return Pearson's correlation of all values; NaN where one of the two does not vary."""
    left, right = left.ravel() - left.mean(), right.ravel() - right.mean()
    spread = float(np.sqrt((left @ left) * (right @ right)))
    return float(left @ right) / spread if spread > 0 else float("nan")
