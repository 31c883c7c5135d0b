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

from gscalar.model.timeline import Activity, Floats, Ints, StepTimeline
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
        first, second = _neighbours(timeline.steps[steps])
        seconds = {name: column[:, first if name in AFTER else second] for name, column in seconds.items()}
        exchange = exchange.of(second)
        steps = steps[second]
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


def _neighbours(steps: Ints) -> tuple[Ints, Ints]:
    """Return the places of steps that follow one another; where none do (steps were sampled), of all as they come."""
    first: Ints = np.nonzero(np.diff(steps) == 1)[0]
    if not len(first):
        first = np.arange(len(steps) - 1)
    return first, first + 1


def _longest(seconds: dict[str, Floats]) -> Floats:
    longest: Floats = sum(seconds.values(), np.zeros(())).max(axis=0)
    return longest


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What is exchanged in a step: `lead_s` is how long before the end of its compute a rank was ready for it."""

    group: Ints  # (num,)
    lead_s: Floats  # (num_ranks, num_steps, num)
    transfer_s: Floats  # (num_steps, num)

    def of(self, frames: Ints) -> _Exchange:
        return replace(self, lead_s=self.lead_s[:, frames], transfer_s=self.transfer_s[frames])


def _exchange(timeline: StepTimeline, steps: Ints, exposed_s: Floats) -> _Exchange:
    found = timeline.collectives
    if found is None or not len(found.kind):
        # One at the end of the compute: ranks that wait for one another see the same end.
        transfer_s = exposed_s.min(axis=0)[:, None]
        if not exposed_s.any():
            transfer_s = transfer_s[:, :0]
        num = transfer_s.shape[1]
        return _Exchange(np.zeros(num, np.int64), np.zeros((*exposed_s.shape, num)), transfer_s)
    ready_s = found.ready_s[:, steps]
    # The last gradient is ready where the backward ends.
    lead_s = np.maximum(ready_s.max(axis=2, keepdims=True) - ready_s, 0.0)
    return _merged(_Exchange(found.group, np.nan_to_num(lead_s), np.nan_to_num(found.transfer_s[steps])))


def _merged(exchange: _Exchange) -> _Exchange:
    """Return so few collectives that a replay stays short: neighbours of a group as one.

    It is ready so late that it ends with its last: at the latest, over its collectives, of when a rank had its part of
    one, less what those before it transfer.
    """
    num = len(exchange.group)
    most = min(_MOST_COLLECTIVES, max(1, _MOST_LANES // exchange.lead_s.shape[0]))
    if num <= most:
        return exchange
    order = np.argsort(exchange.group, kind="stable")
    group = exchange.group[order]
    ends = np.nonzero(np.r_[np.diff(group) != 0, True])[0]
    even = np.linspace(0, num, most, endpoint=False).astype(np.int64)
    first = np.unique(np.r_[even, (ends + 1)[:-1]])
    before_s = np.cumsum(exchange.transfer_s[:, order], axis=1) - exchange.transfer_s[:, order]
    before_s -= np.repeat(before_s[:, first], np.diff(np.r_[first, num]), axis=1)
    lead_s = np.minimum.reduceat(exchange.lead_s[:, :, order] + before_s, first, axis=2)
    transfer_s = np.add.reduceat(exchange.transfer_s[:, order], first, axis=1)
    issued = np.argsort(-lead_s.mean(axis=(0, 1)), kind="stable")
    return _Exchange(group[first][issued], lead_s[:, :, issued], transfer_s[:, issued])


def _template(seconds: dict[str, Floats], exchange: _Exchange, *, meets: bool) -> tuple[Template, Floats]:
    nodes: list[Node] = []
    durations: list[Floats] = []

    def add(node: Node, duration: Floats) -> int:
        nodes.append(node)
        durations.append(duration)
        return len(nodes) - 1

    previous: tuple[int, ...] = ()
    for name, activity in ((AFTER | BEFORE) if meets else BEFORE).items():
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
