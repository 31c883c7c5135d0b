"""What fixes do to a step: each is an edit of measured durations, or of what comes after what.

An edit takes measured steps and returns others, so edits of several fixes are applied one after the other and
replayed together: gains of fixes are never added. Where a fix has a likely edit and a ceiling, the ceiling is the
fix taken to its limit (all communication at no time, all compute at the ideal), and the likely one what the knob can
do: it keeps what the fix cannot move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gscalar.model.timeline import Activity, Floats
from gscalar.prediction.graph import ALONE, Bools, Node, Template
from gscalar.prediction.measured import MeasuredSteps, ideal_durations

Edit = Callable[[MeasuredSteps], MeasuredSteps]

COMPUTES: Final = (Activity.COMPUTE, Activity.FORWARD, Activity.BACKWARD)
POINT_TO_POINT: Final = (
    Activity.SEND_FORWARD,
    Activity.RECEIVE_FORWARD,
    Activity.SEND_BACKWARD,
    Activity.RECEIVE_BACKWARD,
)
BACKWARD_SHARE: Final = 2 / 3  # of forward and backward: two products of matrices against one
_BUCKETS: Final = (2, 4, 8, 16, 32)


def transfers(steps: MeasuredSteps) -> Bools:
    """Return which nodes move bytes that could be hidden, `(num_nodes,)`.

    The clip is none: it computes a norm, and what it sums over ranks is one number.
    """
    chosen: Bools = steps.template.communicates & ~steps.nodes(Activity.CLIP)
    return chosen


def with_durations(steps: MeasuredSteps, chosen: Bools, seconds: Floats | float) -> MeasuredSteps:
    """Return the steps with these nodes taking so long; `seconds` broadcasts against the nodes' durations."""
    durations = steps.durations.copy()
    durations[chosen] = np.broadcast_to(seconds, durations[chosen].shape)
    return replace(steps, durations=durations)


def scaled(*activities: Activity, by: float) -> Edit:
    """Return an edit that makes these activities take so many times as long."""

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        chosen = steps.nodes(*activities)
        return with_durations(steps, chosen, steps.durations[chosen] * by)

    return edit


def labels_scaled(*labels: str, by: float) -> Edit:
    """Return an edit that makes the nodes of these accounts take so many times as long."""

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        chosen = steps.labelled(*labels)
        return with_durations(steps, chosen, steps.durations[chosen] * by)

    return edit


def joined(edits: Sequence[Edit]) -> Edit:
    """Return the edit that makes all of these, in order."""

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        for each in edits:
            steps = each(steps)
        return steps

    return edit


def without_transfers(steps: MeasuredSteps) -> MeasuredSteps:
    """Ceiling of overlap: everything that is exchanged takes no time."""
    return with_durations(steps, transfers(steps), 0.0)


def ideal_compute(steps: MeasuredSteps) -> MeasuredSteps:
    """Ceiling of balance: every compute takes what its type takes on average, over all ranks and steps."""
    chosen = steps.nodes(*COMPUTES)
    if steps.template.nodes and any(node.label == "compute" for node in steps.template.nodes):
        return _with_computes(steps, _compute_sums(steps).mean())
    return with_durations(steps, chosen, ideal_durations(steps)[chosen])


def _compute_sums(steps: MeasuredSteps) -> Floats:
    """Return what each rank computes in each frame, `(num_replicas, num_frames)`."""
    total: Floats = steps.durations[steps.nodes(*COMPUTES)].sum(axis=0)
    return total


def _with_computes(steps: MeasuredSteps, seconds: Floats | float) -> MeasuredSteps:
    """Return the steps with ranks computing so long in all; `(num_replicas, num_frames)`, shared out as measured."""
    chosen = steps.nodes(*COMPUTES)
    total = _compute_sums(steps)
    factor = np.divide(seconds, total, out=np.ones_like(total), where=total > 0)
    return with_durations(steps, chosen, steps.durations[chosen] * factor)


def overlapped(*, latency_s: float) -> Edit:
    """Return the likely edit of overlap: what is exchanged begins when it is ready, in pieces.

    A step of a pipeline hides its parameters behind the first forward, its gradients behind the last backward, and what
    stages send one another behind other micro-batches. In data parallel the gradients are exchanged in buckets
    through the backward, each of which costs `latency_s` beside its share of the transfer; of several numbers
    of buckets the best is taken, and what was measured where none is better.
    """

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        if steps.nodes(*POINT_TO_POINT).any() or steps.nodes(Activity.FORWARD).any():
            return _overlapped_pipeline(steps)
        if not transfers(steps).any():
            return steps
        candidates = [steps, *(_in_buckets(steps, num, latency_s) for num in _BUCKETS)]
        means = [each.template.frame_s(each.durations).mean() for each in candidates]
        return candidates[int(np.argmin(means))]

    return edit


def _overlapped_pipeline(steps: MeasuredSteps) -> MeasuredSteps:
    durations = steps.durations.copy()
    durations[steps.nodes(*POINT_TO_POINT)] = 0.0
    for stage in np.unique(steps.template.stage):
        here = steps.template.stage == stage
        for kind, beside in (
            (Activity.GATHER_PARAMETERS, Activity.FORWARD),
            (Activity.SCATTER_GRADIENTS, Activity.BACKWARD),
            (Activity.REDUCE_GRADIENTS, Activity.BACKWARD),
        ):
            moving, computing = here & steps.nodes(kind), here & steps.nodes(beside)
            if moving.any() and computing.any():
                hidden_s = steps.durations[computing].mean(axis=0)
                durations[moving] = np.maximum(steps.durations[moving] - hidden_s, 0.0)
    return replace(steps, durations=durations)


def _in_buckets(steps: MeasuredSteps, num_buckets: int, latency_s: float) -> MeasuredSteps:
    """Return the steps with all that is exchanged in so many buckets, ready one after the other in the backward."""
    moving, computing = transfers(steps), steps.nodes(*COMPUTES)
    meets = any(steps.template.nodes[at].across_replicas for at in np.nonzero(moving)[0])
    transfer_s = steps.durations[moving].sum(axis=0) / num_buckets + latency_s
    compute_s = _compute_sums(steps)
    forward_s = compute_s * (1 - BACKWARD_SHARE)
    piece_s = compute_s * BACKWARD_SHARE / num_buckets
    nodes: list[Node] = []
    durations: list[Floats] = []
    moved: dict[int, int] = {}
    previous: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def add(node: Node, seconds: Floats) -> tuple[int, ...]:
        nodes.append(node)
        durations.append(seconds)
        return (len(nodes) - 1,)

    computed = False
    for at, node in enumerate(steps.template.nodes):
        if not moving[at] and not computing[at]:
            after = tuple(moved[each] for each in node.after if each in moved) if not computed else (*previous, *last)
            previous = add(replace(node, after=after), steps.durations[at])
            moved[at] = previous[0]
        elif not computed:
            computed = True
            previous = add(Node(activity=Activity.COMPUTE, after=previous, label="compute"), forward_s)
            for bucket in range(num_buckets):
                previous = add(Node(activity=Activity.COMPUTE, after=previous, label="compute"), piece_s)
                exchange = Node(
                    activity=Activity.COMMUNICATION, after=(*previous, *last), label="transfer", micro=bucket,
                    meeting=bucket if meets else ALONE, across_replicas=meets,
                )  # fmt: skip
                last = add(exchange, transfer_s)
    return replace(steps, template=Template(nodes), durations=np.stack(durations))


def balanced(steps: MeasuredSteps) -> MeasuredSteps:
    """Likely edit of balance: in each step the ranks share what there is to do so that they end together.

    Where the work of each rank is known, ranks keep the time that a unit takes each of them, and get shares in
    proportion to their speeds: all compute W / sum(1 / c_r) of W units at c_r seconds each, times what disturbed
    the rank in that step, which no share changes. Where the work is not known, all get the step's mean. Stages of a
    pipeline keep what they hold.
    """
    if any(node.label == "compute" for node in steps.template.nodes):
        return _with_computes(steps, _shared_out(steps))
    durations = steps.durations.copy()
    for stage in np.unique(steps.template.stage):
        for kind in COMPUTES:
            chosen = (steps.template.stage == stage) & steps.nodes(kind)
            if chosen.any():
                durations[chosen] = steps.durations[chosen].mean(axis=(0, 1))
    return replace(steps, durations=durations)


def _shared_out(steps: MeasuredSteps) -> Floats:
    compute_s = _compute_sums(steps)
    work = steps.known_work
    if work is None:
        mean: Floats = np.broadcast_to(compute_s.mean(axis=0), compute_s.shape)
        return mean
    unit_s = np.maximum(np.median(compute_s / work, axis=1), 1e-12)[:, None]  # of each rank
    together = work.sum(axis=0) / (1.0 / unit_s).sum()
    disturbed = compute_s / (unit_s * work)
    shared: Floats = together * disturbed
    return shared


def replaced(places: Sequence[tuple[int, int]]) -> Edit:
    """Return the edit that gives slow workers, by stage and replica, the speed of their peers.

    Peers are the other replicas of the stage. An operation takes their median; in data parallel a unit of work does,
    where the work of each rank is known.
    """

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        durations = steps.durations.copy()
        unit_s = _unit_s(steps)
        for stage in {stage for stage, _ in places}:
            slow = [replica for at, replica in places if at == stage]
            peers = [replica for replica in range(steps.num_replicas) if replica not in slow]
            chosen = (steps.template.stage == stage) & steps.nodes(*COMPUTES)
            if not peers or not chosen.any():
                continue
            for replica in slow:
                if unit_s is not None:
                    durations[chosen, replica] *= np.median(unit_s[peers]) / unit_s[replica]
                else:
                    durations[chosen, replica] = np.median(steps.durations[chosen][:, peers], axis=1)
        return replace(steps, durations=durations)

    return edit


def _unit_s(steps: MeasuredSteps) -> Floats | None:
    """Return the time that a unit of work takes each replica, `(num_replicas,)`; None where the work is not known."""
    if steps.known_work is None:
        return None
    unit_s: Floats = np.median(_compute_sums(steps) / steps.known_work, axis=1)
    return unit_s


def repartitioned(steps: MeasuredSteps) -> MeasuredSteps:
    """Likely edit of another partition: every stage takes the mean over stages, of each type of compute."""
    durations = steps.durations.copy()
    for kind in COMPUTES:
        of_kind = steps.nodes(kind)
        if not of_kind.any():
            continue
        overall_s = np.mean([_mean_of(steps, of_kind, stage) for stage in np.unique(steps.template.stage[of_kind])])
        for stage in np.unique(steps.template.stage[of_kind]):
            durations[of_kind & (steps.template.stage == stage)] *= overall_s / max(
                _mean_of(steps, of_kind, stage), 1e-12
            )
    return replace(steps, durations=durations)


def _mean_of(steps: MeasuredSteps, chosen: Bools, stage: int) -> float:
    return float(steps.durations[chosen & (steps.template.stage == stage)].mean())


def transfers_scaled(by: float, *, latency_s: float = 0.0) -> Edit:
    """Return the edit of a faster link, or of fewer bytes: what moves takes so many times as long.

    `latency_s` of each transfer stays as it is.
    """

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        chosen = transfers(steps)
        fixed_s = np.minimum(steps.durations[chosen], latency_s)
        return with_durations(steps, chosen, fixed_s + (steps.durations[chosen] - fixed_s) * by)

    return edit


def waits_set(seconds: Floats) -> Edit:
    """Return the edit of a loader: the wait for data takes so long, `(num_replicas, num_frames)`."""

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        return with_durations(steps, steps.nodes(Activity.DATA_WAIT), seconds)

    return edit


def readers_evened(ranks: Sequence[int]) -> Edit:
    """Return the edit of re-striped data: these replicas wait for data as long as the median of the others."""

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        chosen = steps.nodes(Activity.DATA_WAIT)
        others = [replica for replica in range(steps.num_replicas) if replica not in ranks]
        if not others or not chosen.any():
            return steps
        durations = steps.durations.copy()
        for replica in ranks:
            durations[chosen, replica] = np.median(durations[chosen][:, others], axis=1)
        return replace(steps, durations=durations)

    return edit


def tails_cut(quantile: float = 0.5) -> Edit:
    """Return the edit of an isolated machine: no operation of a rank takes longer than this quantile of its own."""

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        usual = np.quantile(steps.durations, quantile, axis=2, keepdims=True)
        chosen = steps.nodes(*COMPUTES, Activity.HOST, Activity.OTHER, Activity.OPTIMIZER)
        return with_durations(steps, chosen, np.minimum(steps.durations, usual)[chosen])

    return edit
