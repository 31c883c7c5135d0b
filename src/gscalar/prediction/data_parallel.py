"""The step of a training in data parallel, as a template to replay.

Each rank works through the accounts of its step one after the other, its compute cut where gradients were ready to be
exchanged. Collectives of a group run one after the other, beside the compute, and meet all ranks; the step goes on
when both are done. A frame reaches from the end of one step's last collective to that of the next: at that moment
all ranks stand at the same place, so that frames can be replayed independently, and a rank that was held up after
it (by a checkpoint, say) comes late to the next. Transfers are what is left of a collective after the last rank came:
no clock is needed for them. Ranks that never meet, and a single one, are replayed step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gscalar.model.timeline import Activity, Collectives, Floats, Ints, StepTimeline
from gscalar.prediction.graph import ALONE, Node, Template
from gscalar.prediction.measured import MeasuredSteps, NotReplayable

# What comes before and after the exchange of gradients, in order.
BEFORE: Final = {
    "host_gap": Activity.HOST,
    "data_wait": Activity.DATA_WAIT,
    "h2d": Activity.H2D,
    "gc": Activity.GC,
}
AFTER: Final = {"optimizer": Activity.OPTIMIZER, "checkpoint": Activity.CHECKPOINT, "other": Activity.OTHER}
# Of a large training fewer collectives are told apart, and fewer steps are replayed, so that its memory is bounded.
_MOST_COLLECTIVES: Final = 32
_MOST_LANES: Final = 32_000  # ranks x collectives
_MOST_CELLS: Final = 250_000  # ranks x steps
_FEWEST_STEPS: Final = 12


def measure_data_parallel(timeline: StepTimeline) -> MeasuredSteps:
    """Return the measured steps of ranks that all do the same, ready to replay.

    Replicas are the ranks. Raises `NotReplayable` where there is no step that all ranks have.
    """
    steps: Ints = np.nonzero(np.isfinite(timeline.step_s).all(axis=0))[0]
    if not len(steps):
        raise NotReplayable("there is no step that all ranks have")
    steps = steps[-max(_FEWEST_STEPS, _MOST_CELLS // timeline.num_ranks) :]
    seconds = {
        name: np.nan_to_num(timeline.account(name)[:, steps])
        for name in (*BEFORE, *AFTER, "compute", "exposed_communication")
    }
    seconds["other"] += np.maximum(timeline.step_s[:, steps] - sum(seconds.values()), 0.0)
    exchange = _exchange(timeline, steps, seconds["exposed_communication"])
    meets = timeline.num_ranks > 1 and exchange.transfer_s.shape[1] > 0
    if meets and len(steps) > 1:
        # From one meeting to the next: what follows the first comes before what leads to the second.
        seconds = {name: (column[:, :-1] if name in AFTER else column[:, 1:]) for name, column in seconds.items()}
        exchange = exchange.without_first()
        steps = steps[1:]
    measured: Floats = sum(seconds.values(), np.zeros(())).mean(axis=0) if meets else _longest(seconds)
    template, durations = _template(seconds, exchange, meets=meets)
    return MeasuredSteps(
        template=template,
        durations=durations,
        frame_s=measured,
        steps=timeline.steps[steps],
        rank_index=np.arange(timeline.num_ranks)[None, :],
        work=timeline.work[:, steps] if timeline.work is not None else None,
    )


def _longest(seconds: dict[str, Floats]) -> Floats:
    longest: Floats = sum(seconds.values(), np.zeros(())).max(axis=0)
    return longest


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What is exchanged in a step: `lead_s` is how long before the end of its compute a rank was ready for it."""

    group: Ints  # (num,)
    lead_s: Floats  # (num_ranks, num_steps, num)
    transfer_s: Floats  # (num_steps, num)

    def without_first(self) -> _Exchange:
        return replace(self, lead_s=self.lead_s[:, 1:], transfer_s=self.transfer_s[1:])


def _exchange(timeline: StepTimeline, steps: Ints, exposed_s: Floats) -> _Exchange:
    found = timeline.collectives
    if found is None or not len(found.kind):
        # One at the end of the compute: ranks that wait for one another see the same end.
        transfer_s = exposed_s.min(axis=0)[:, None]
        if not exposed_s.any():
            transfer_s = transfer_s[:, :0]
        num = transfer_s.shape[1]
        return _Exchange(np.zeros(num, np.int64), np.zeros((*exposed_s.shape, num)), transfer_s)
    merged = _merged(found)
    transfer_s = merged.transfer_s[steps]
    ready_s = merged.ready_s[:, steps]
    # The last gradient is ready where the backward ends.
    lead_s = np.maximum(ready_s.max(axis=2, keepdims=True) - ready_s, 0.0)
    return _Exchange(merged.group, lead_s, np.nan_to_num(transfer_s))


def _merged(found: Collectives) -> Collectives:
    """Return at most so many collectives that a replay stays short: neighbours of a group as one."""
    num = len(found.kind)
    most = min(_MOST_COLLECTIVES, max(1, _MOST_LANES // found.ready_s.shape[0]))
    if num <= most:
        return found
    first = np.unique(np.linspace(0, num, most, endpoint=False).astype(np.int64))
    last = np.r_[first[1:], num] - 1
    return Collectives(
        kind=tuple(found.kind[at] for at in first),
        group=found.group[first],
        num_bytes=np.add.reduceat(found.num_bytes, first),
        ready_s=found.ready_s[:, :, last],
        start_s=found.start_s[:, :, first],
        end_s=found.end_s[:, :, last],
    )


def _template(seconds: dict[str, Floats], exchange: _Exchange, *, meets: bool) -> tuple[Template, Floats]:
    nodes: list[Node] = []
    durations: list[Floats] = []

    def add(node: Node, duration: Floats) -> int:
        nodes.append(node)
        durations.append(duration)
        return len(nodes) - 1

    previous: tuple[int, ...] = ()
    order = (*AFTER, *BEFORE) if meets else tuple(BEFORE)
    for name in order:
        activity = (AFTER | BEFORE)[name]
        previous = (add(Node(activity=activity, after=previous, label=name), seconds[name]),)
    pieces = _pieces(seconds["compute"], exchange.lead_s)
    last_of_group: dict[int, int] = {}
    for at, piece in enumerate(pieces):
        previous = (add(Node(activity=Activity.COMPUTE, after=previous, label="compute", micro=at), piece),)
        if at == len(pieces) - 1:
            break
        group = int(exchange.group[at])
        after = previous + ((last_of_group[group],) if group in last_of_group else ())
        moved = np.broadcast_to(exchange.transfer_s[:, at], piece.shape)
        node = Node(
            activity=Activity.COMMUNICATION, after=after, micro=at, meeting=at if meets else ALONE,
            across_replicas=meets, label="transfer",
        )  # fmt: skip
        last_of_group[group] = add(node, moved)
    if not meets:
        previous = (*previous, *last_of_group.values())
        for name, activity in AFTER.items():
            previous = (add(Node(activity=activity, after=previous, label=name), seconds[name]),)
    return Template(nodes), np.stack(durations)


def _pieces(compute_s: Floats, lead_s: Floats) -> list[Floats]:
    """Cut the compute where each collective could begin; the last piece comes after all of them.

    What is ready after the compute's end was ready at it. Of one rank the pieces sum to the compute.
    """
    num = lead_s.shape[2]
    remaining = compute_s.copy()
    cuts = np.minimum(lead_s, compute_s[:, :, None])
    pieces = []
    for at in range(num):
        piece = np.clip(remaining - cuts[:, :, at], 0.0, None)
        pieces.append(piece)
        remaining = remaining - piece
    return [*pieces, remaining]
