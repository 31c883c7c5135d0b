"""One link is slow: the same bytes take longer over it than over its peers, though all who meet come in time.

Formula: the median transfer of each meeting (a pair of stages in one replica; a stage's collective) over the median of
the meetings of its type. A link needs a peer to be slow against: where all ranks share one group, a slow network looks
like much to exchange, and is called exposed communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import ms, ranks_named
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Activity, Floats
from gscalar.prediction.edits import POINT_TO_POINT, Edit
from gscalar.prediction.forecast import Proposal
from gscalar.prediction.measured import MeasuredSteps

LEAST_RATIO: Final = 2.0
LEAST_GAIN: Final = 0.02  # of the step, simulated
FEWEST_LINKS: Final = 3  # of two nobody can say which is the usual one
_OF_A_STAGE: Final = (Activity.GATHER_PARAMETERS, Activity.SCATTER_GRADIENTS, Activity.REDUCE_GRADIENTS)


@dataclass(frozen=True, slots=True)
class _Link:
    """A link that may be slow: nodes of one stage and type, of one replica or (None) of all."""

    activity: Activity
    stage: int
    replica: int | None
    ratio: float
    taken_s: float


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    steps = seen.steps
    if not steps.template.communicates.any():
        return unknown(Cause.SLOW_LINK, "no transfer is seen")
    links = _links(steps)
    if not links:
        return unknown(Cause.SLOW_LINK, f"there are no {FEWEST_LINKS} links that move the same, to compare one with")
    slow = [link for link in links if link.ratio >= LEAST_RATIO]
    edit = _evened(slow)
    assert seen.replay is not None
    gain = float(seen.replay.replayed_s.mean() / seen.replay.edited_s([edit])[0].mean()) - 1 if slow else 0.0
    if gain < LEAST_GAIN:
        worst = max(links, key=lambda link: link.ratio)
        return rejected(
            Cause.SLOW_LINK,
            f"no link that is slower than its peers costs time (the slowest takes {worst.ratio:.1f}x of theirs)",
        )
    worst = max(slow, key=lambda link: link.ratio * link.taken_s)
    stages = tuple(sorted({link.stage for link in slow}))
    at = {stage: index for index, stage in enumerate(np.unique(steps.template.stage).tolist())}
    ranks = tuple(sorted({seen.rank_of(at[link.stage], link.replica) for link in slow if link.replica is not None}))
    at_worst = [] if worst.replica is None else [seen.rank_of(at[worst.stage], worst.replica)]
    of_worst = ranks_named(at_worst) if at_worst else f"stage {worst.stage}"
    where = ranks_named(ranks) if ranks else of_worst
    # Stages hold unlike numbers of parameters (the first has the embeddings); messages between stages are alike.
    unequal = any(link.replica is None for link in slow)
    return Hypothesis(
        cause=Cause.SLOW_LINK, status=Status.SUPPORTED, ranks=ranks, stages=stages,
        evidence_for=(
            f"{worst.activity.name.lower().replace('_', ' ')} of {of_worst} takes {ms(worst.taken_s)} once all came, "
            f"{worst.ratio:.1f}x of what it takes its peers",
        ),
        evidence_against=("how many bytes each stage moves is not known: more of them would look alike",) * unequal,
        doubts=int(unequal), removal=edit,
        proposals=(
            Proposal(
                name="faster_link", knob=f"re-route {where}, or compress", likely=edit, ceiling=edit, uncertainty=0.1
            ),
        ),
    )  # fmt: skip


def _links(steps: MeasuredSteps) -> list[_Link]:
    """Return every link that has peers, with its ratio to them."""
    links: list[_Link] = []
    stages = np.unique(steps.template.stage).tolist()
    for activity in (*POINT_TO_POINT, *_OF_A_STAGE):
        taken: dict[tuple[int, int | None], float] = {}
        for stage in stages:
            chosen = (steps.template.stage == stage) & steps.nodes(activity)
            if not chosen.any():
                continue
            seconds: Floats = steps.durations[chosen]
            if activity in _OF_A_STAGE:
                taken[stage, None] = float(np.median(seconds))
            else:
                for replica in range(steps.num_replicas):
                    taken[stage, replica] = float(np.median(seconds[:, replica]))
        usual = float(np.median(list(taken.values()))) if taken else 0.0
        if len(taken) < FEWEST_LINKS or usual <= 0:
            continue
        links += [_Link(activity, *place, seconds / usual, seconds) for place, seconds in taken.items()]
    return links


def _evened(links: Sequence[_Link]) -> Edit:
    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        durations = steps.durations.copy()
        for link in links:
            chosen = (steps.template.stage == link.stage) & steps.nodes(link.activity)
            replicas = slice(None) if link.replica is None else slice(link.replica, link.replica + 1)
            durations[chosen, replicas] /= link.ratio
        return replace(steps, durations=durations)

    return edit
