"""Who met whom in a step, who came last, and how long each of the others waited.

Spans of one collective meet: those of the same group and number, or, in a table of operations, those that its format
says meet (see `gscalar.prediction.pipeline`). A meeting's transfer is the shortest that any of its ranks saw, which
needs no common clock; what a rank was in it before that is waiting (TraceLens). Two ranks that send and receive meet
too, but are no line over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gscalar.model.timeline import NONE, Activity, Floats, Ints, StepTimeline

_OF_A_STAGE: Final = (Activity.GATHER_PARAMETERS, Activity.SCATTER_GRADIENTS, Activity.REDUCE_GRADIENTS)
# In one direction the sender's stage is one below the receiver's, in the other one above.
_PAIRED: Final = {
    Activity.SEND_FORWARD: (0, 0), Activity.RECEIVE_FORWARD: (0, -1),
    Activity.SEND_BACKWARD: (1, -1), Activity.RECEIVE_BACKWARD: (1, 0),
}  # fmt: skip
_BIG: Final = 1 << 20  # more than a step has stages, replicas or numbers


@dataclass(frozen=True, slots=True)
class Meetings:
    """The meetings of some spans: `number` and `wait_s` are one a span, the other columns one a meeting."""

    number: Ints  # NONE where the span meets nobody
    wait_s: Floats  # of a span, from its start; NaN: not known
    latest_s: Floats  # when the last rank came
    last: Ints  # the span of the last rank, an index into the given ones
    waited_s: Floats  # by all ranks together
    is_pair: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    def last_rank(self, rank: Ints) -> int | None:
        """Return whom the others waited for longest in all; `rank` is that of each span.

        None where nobody waited.
        """
        whole = ~self.is_pair
        if not whole.any():
            return None
        ranks = rank[self.last[whole]]
        waited = np.bincount(ranks, weights=self.waited_s[whole])
        latest = int(waited.argmax())
        return latest if waited[latest] > 0 else None


def find_meetings(timeline: StepTimeline, chosen: Ints) -> Meetings:
    """Return the meetings of the chosen spans, which are those of one step."""
    keys = _keys(timeline, chosen)
    start_s, end_s = timeline.spans.start_s[chosen], timeline.spans.end_s[chosen]
    wait_s = np.full(len(chosen), np.nan)
    number = np.full(len(chosen), NONE)
    known = np.flatnonzero(keys[:, 0] != NONE)
    _, group, sizes = np.unique(keys[known], axis=0, return_inverse=True, return_counts=True)
    met = sizes[group.ravel()] > 1
    members = known[met]
    _, group = np.unique(group.ravel()[met], return_inverse=True)
    num = int(group.max(initial=-1)) + 1
    transfer_s = np.full(num, np.inf)
    np.minimum.at(transfer_s, group, (end_s - start_s)[members])
    wait_s[members] = np.maximum((end_s - start_s)[members] - transfer_s[group], 0.0)
    number[members] = group
    order = members[np.lexsort((start_s[members], group))]
    last = order[np.searchsorted(number[order], np.arange(num), side="right") - 1] if num else np.empty(0, np.int64)
    pairs = np.isin(timeline.spans.activity[chosen][last], list(_PAIRED))
    waited_s = np.bincount(group, weights=wait_s[members], minlength=num).astype(np.float64)
    return Meetings(number, wait_s, start_s[last], last, waited_s, pairs)


def _keys(timeline: StepTimeline, chosen: Ints) -> Ints:
    """Return what spans of one meeting have in common, `(num, 3)`; NONE first where one meets nobody."""
    spans = timeline.spans
    activity, sequence, group = (column[chosen] for column in (spans.activity, spans.sequence, spans.group))
    keys = np.full((len(chosen), 3), NONE, np.int64)
    grouped = (group != NONE) & (sequence != NONE)
    keys[grouped] = np.stack([group, sequence, np.zeros_like(group)], axis=1)[grouped]
    if timeline.source != "operations":
        return keys
    stage = np.array([each.stage for each in timeline.ranks])[spans.rank[chosen]]
    replica = np.array([each.data_rank for each in timeline.ranks])[spans.rank[chosen]]
    everybody = np.zeros_like(stage)
    for activities, place in (
        (_OF_A_STAGE, stage),
        ((Activity.REDUCE_EMBEDDING,), replica),
        ((Activity.CLIP,), everybody),
    ):
        here = np.isin(activity, activities) & (sequence != NONE)
        keys[here] = np.stack([_BIG + activity, place, sequence], axis=1)[here]
    if spans.chunk.max(initial=NONE) <= stage.max(initial=0):  # one chunk a stage: numbers pair up
        for kind, (direction, shift) in _PAIRED.items():
            here = (activity == kind) & (sequence != NONE)
            keys[here] = np.stack([2 * _BIG + 2 * (stage + shift) + direction, replica, sequence], axis=1)[here]
    return keys
