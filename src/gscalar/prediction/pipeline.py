"""The step of a training in pipeline and data parallel, as a template to replay.

Each rank computes one operation at a time, in the order in which it was measured. A receive comes before the compute
that needs it and after the one before of its type; a send follows its compute and blocks nothing; the two of a pair
transfer together. Parameters are gathered before the first forward of their chunk. After the last compute
come, one after the other: garbage collection, the sums of layer norms and embeddings, the exchange of gradients,
the clip and the optimizer.

What meets: parameters and gradients, the ranks of a stage; embeddings, the first and the last stage of a
replica; the clip, everybody; layer norms, nobody (among the ranks that are seen). After "Understanding Stragglers in
Large Model Training Using What-if Analysis" (OSDI 2025). Stages may hold several chunks of the model: the k-th send
of a rank belongs to its k-th forward whose result goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from gscalar.model.timeline import COMMUNICATES, NONE, Activity, Floats, Ints, Spans, StepTimeline
from gscalar.prediction.graph import ALONE, Node, Template
from gscalar.prediction.measured import MeasuredSteps, NotReplayable

_COMPUTES = (Activity.FORWARD, Activity.BACKWARD)
_TAIL = (
    Activity.GC,
    Activity.REDUCE_LAYERNORM,
    Activity.REDUCE_EMBEDDING,
    Activity.SCATTER_GRADIENTS,
    Activity.REDUCE_GRADIENTS,
    Activity.CLIP,
    Activity.OPTIMIZER,
)
_SENDS = {Activity.SEND_FORWARD: Activity.FORWARD, Activity.SEND_BACKWARD: Activity.BACKWARD}
_RECEIVES = {Activity.RECEIVE_FORWARD: Activity.FORWARD, Activity.RECEIVE_BACKWARD: Activity.BACKWARD}
_PAIRS = {Activity.SEND_FORWARD: Activity.RECEIVE_FORWARD, Activity.SEND_BACKWARD: Activity.RECEIVE_BACKWARD}
_OF_A_STAGE = (Activity.GATHER_PARAMETERS, Activity.SCATTER_GRADIENTS, Activity.REDUCE_GRADIENTS)


def measure_pipeline(timeline: StepTimeline) -> MeasuredSteps:
    """Return the measured steps of a table of operations, ready to replay.

    Replicas are the data-parallel ranks. Steps that lack operations are left out, with a note. Raises
    `NotReplayable` where no step is whole, or a rank is missing.
    """
    operations, steps, notes = _tables(timeline)
    template, keys = _Builder(operations).build()
    start_s = np.stack([operations[stage, activity].start_s[:, :, at] for stage, activity, at in keys])
    end_s = np.stack([operations[stage, activity].end_s[:, :, at] for stage, activity, at in keys])
    transfer_s = end_s - _latest_starts(template, start_s)
    durations = np.where(
        template.communicates[:, None, None], np.clip(transfer_s, 0.0, None), np.maximum(end_s - start_s, 0.0)
    )
    replicas = sorted({each.data_rank for each in timeline.ranks})
    by_place = {(each.data_rank, each.stage): index for index, each in enumerate(timeline.ranks)}
    stages = sorted({each.stage for each in timeline.ranks})
    begin_s = np.nanmin(timeline.begin_s[:, steps], axis=0)
    return MeasuredSteps(
        template=template,
        durations=durations,
        frame_s=np.nanmax(timeline.end_s[:, steps], axis=0) - begin_s,
        steps=timeline.steps[steps],
        rank_index=np.array([[by_place[replica, stage] for replica in replicas] for stage in stages]),
        start_s=start_s - begin_s,
        notes=tuple(notes),
    )


@dataclass(slots=True)
class _Operations:
    """The operations of one type on one stage, `(num_replicas, num_steps, num)`, in the order of their numbers."""

    start_s: Floats
    end_s: Floats
    micro: Ints
    chunk: Ints


_Tables = dict[tuple[int, int], _Operations]


def _tables(timeline: StepTimeline) -> tuple[_Tables, Ints, list[str]]:
    """Return the operations by stage and type, the steps that are whole, and what is to be said of the others."""
    places = {(each.data_rank, each.stage): index for index, each in enumerate(timeline.ranks)}
    replicas, stages = sorted({place[0] for place in places}), sorted({place[1] for place in places})
    if len(places) < len(timeline.ranks):
        raise NotReplayable("two ranks have the same place on the data-parallel and pipeline axes")
    if len(places) < len(replicas) * len(stages):
        raise NotReplayable(
            f"{len(replicas) * len(stages) - len(places)} of {len(replicas) * len(stages)} ranks are missing"
        )
    spans = timeline.spans
    num_steps, num_types = timeline.num_steps, len(Activity)
    cell = (spans.rank * num_steps + spans.step) * num_types + spans.activity
    counts = np.bincount(cell, minlength=timeline.num_ranks * num_steps * num_types)
    counts = counts.reshape(timeline.num_ranks, num_steps, num_types)
    usual = np.median(counts, axis=1).astype(np.int64)
    for stage in stages:  # replicas must agree
        same = [places[replica, stage] for replica in replicas]
        usual[same] = np.median(usual[same], axis=0).astype(np.int64)
    usual[:, Activity.OTHER] = 0
    # Collections come and go: a step without one is whole.
    collects = counts[:, :, Activity.GC].any()
    usual[:, Activity.GC], counts[:, :, Activity.GC] = 0, 0
    if not usual.any():
        raise NotReplayable("there are no operations of a known type")
    whole = (counts[:, :, 1:] == usual[:, None, 1:]).all(axis=(0, 2))
    steps: Ints = np.nonzero(whole)[0]
    if not len(steps):
        raise NotReplayable("no step has all operations on all ranks")
    left_out = num_steps - len(steps)
    notes = [f"{left_out} of {num_steps} steps lack operations and are left out"] if left_out else []
    order = np.lexsort((spans.start_s, spans.sequence, spans.activity, spans.step, spans.rank))
    order = order[np.isin(spans.step[order], steps) & (spans.activity[order] != Activity.OTHER)]
    tables: _Tables = {}
    for stage in stages:
        of_stage = np.array([places[replica, stage] for replica in replicas])
        for activity in np.nonzero(usual[of_stage[0]])[0]:
            chosen = order[np.isin(spans.rank[order], of_stage) & (spans.activity[order] == activity)]
            # Sorted by rank, step and number; ranks into the order of the replicas.
            tables[stage, int(activity)] = _shaped(spans, chosen, np.argsort(np.argsort(of_stage)), len(steps))
        if collects:
            tables[stage, int(Activity.GC)] = _collections(spans, of_stage, steps)
    return tables, steps, notes


def _collections(spans: Spans, of_stage: Ints, steps: Ints) -> _Operations:
    """Return how long each replica collected garbage in each step, as one operation of a step."""
    chosen = (spans.activity == Activity.GC) & np.isin(spans.rank, of_stage) & np.isin(spans.step, steps)
    seconds = np.zeros((len(of_stage), len(steps), 1))
    replica = np.argsort(of_stage)[np.searchsorted(np.sort(of_stage), spans.rank[chosen])]
    np.add.at(seconds, (replica, np.searchsorted(steps, spans.step[chosen]), 0), spans.duration_s[chosen])
    unknown = np.array([NONE])
    return _Operations(start_s=np.zeros_like(seconds), end_s=seconds, micro=unknown, chunk=unknown)


def _shaped(spans: Spans, chosen: Ints, replica_order: Ints, num_steps: int) -> _Operations:
    shape = (len(replica_order), num_steps, -1)
    return _Operations(
        start_s=spans.start_s[chosen].reshape(shape)[replica_order],
        end_s=spans.end_s[chosen].reshape(shape)[replica_order],
        micro=spans.micro[chosen].reshape(shape)[0, 0],
        chunk=spans.chunk[chosen].reshape(shape)[0, 0],
    )


_Key = tuple[int, int, int]  # stage, activity, number


@dataclass(slots=True)
class _Builder:
    """Makes the nodes of a template, stage by stage, and then their meetings."""

    operations: _Tables
    keys: list[_Key] = field(default_factory=list)
    index: dict[_Key, int] = field(default_factory=dict)
    after: dict[_Key, list[_Key]] = field(default_factory=dict)
    meeting: dict[_Key, int] = field(default_factory=dict)
    num_meetings: int = 0

    def build(self) -> tuple[Template, list[_Key]]:
        stages = sorted({stage for stage, _ in self.operations})
        for stage in stages:
            self._stage(stage)
        for key in self.after:
            self.index[key] = len(self.keys)
            self.keys.append(key)
        self._pair_up(stages)
        self._meet()
        nodes = [self._node(key) for key in self.keys]
        return Template(nodes), self.keys

    def _node(self, key: _Key) -> Node:
        stage, activity, at = key
        return Node(
            activity=Activity(activity),
            after=tuple(self.index[each] for each in self.after[key]),
            stage=stage,
            micro=int(self.operations[stage, activity].micro[at]),
            meeting=self.meeting.get(key, ALONE),
            across_replicas=activity in (*_OF_A_STAGE, Activity.CLIP),
            label=Activity(activity).name.lower(),
        )

    def _num(self, stage: int, activity: int) -> int:
        table = self.operations.get((stage, activity))
        return table.start_s.shape[2] if table is not None else 0

    def _stage(self, stage: int) -> None:
        order = self._compute_order(stage)
        previous: _Key | None = None
        for at in range(self._num(stage, Activity.GATHER_PARAMETERS)):
            key = (stage, int(Activity.GATHER_PARAMETERS), at)
            self.after[key] = [previous] if previous else []
            previous = key
        for key in order:
            self.after[key] = [previous] if previous else []
            previous = key
        for receive, compute in _RECEIVES.items():
            needing = self._crossing(stage, compute, incoming=True)
            for at, target in enumerate(needing[: self._num(stage, receive)]):
                number = target[2]
                key = (stage, int(receive), at)
                self.after[key] = [(stage, int(compute), number - 1)] if number else []
                self.after[target].append(key)
        for send, compute in _SENDS.items():
            giving = self._crossing(stage, compute, incoming=False)
            for at, source in enumerate(giving[: self._num(stage, send)]):
                self.after[stage, int(send), at] = [source]
        for activity in _TAIL:
            for at in range(self._num(stage, activity)):
                key = (stage, int(activity), at)
                self.after[key] = [previous] if previous else []
                previous = key

    def _compute_order(self, stage: int) -> list[_Key]:
        """Return the computes of a stage in the order in which most replicas and steps began them."""
        keys = [(stage, int(kind), at) for kind in _COMPUTES for at in range(self._num(stage, kind))]
        tables = [self.operations[stage, kind].start_s for kind in _COMPUTES if self._num(stage, kind)]
        if not keys:
            return []
        places = np.argsort(np.argsort(np.concatenate(tables, axis=2), axis=2), axis=2)
        return [keys[at] for at in np.argsort(np.median(places, axis=(0, 1)), kind="stable")]

    def _crossing(self, stage: int, compute: Activity, *, incoming: bool) -> list[_Key]:
        """Return the computes of a stage, in their order, whose input (or output) crosses to another stage."""
        if not self._num(stage, compute):
            return []
        chunk = self.operations[stage, compute].chunk
        chunks = [
            int(each) for (_, kind), table in self.operations.items() if kind in _COMPUTES for each in table.chunk
        ]
        last = max(chunks)
        # Forwards come from the chunk before and go to the one after; backwards the other way round.
        edge = 0 if incoming == (compute is Activity.FORWARD) else last
        if last == NONE:  # not said: one chunk a stage
            stages = sorted({each for each, _ in self.operations})
            outermost = stages[0] if edge == 0 else stages[-1]
            return [] if stage == outermost else [(stage, int(compute), at) for at in range(len(chunk))]
        return [(stage, int(compute), at) for at, each in enumerate(chunk) if each != edge]

    def _pair_up(self, stages: list[int]) -> None:
        """Let each send meet the receive of the same micro-batch on the next chunk."""
        for send, receive in _PAIRS.items():
            forward = send is Activity.SEND_FORWARD
            waiting = {}
            for stage in stages:
                for at, target in enumerate(self._crossing(stage, _RECEIVES[receive], incoming=True)):
                    if (stage, int(receive), at) in self.after:
                        waiting[self._place(target)] = (stage, int(receive), at)
            for stage in stages:
                for at, source in enumerate(self._crossing(stage, _SENDS[send], incoming=False)):
                    chunk, micro = self._place(source)
                    partner = waiting.get((chunk + (1 if forward else -1), micro))
                    if partner is not None and (stage, int(send), at) in self.after:
                        self._let_meet([(stage, int(send), at), partner])

    def _place(self, key: _Key) -> tuple[int, int]:
        stage, activity, at = key
        table = self.operations[stage, activity]
        return (int(table.chunk[at]) if table.chunk[at] != NONE else stage), int(table.micro[at])

    def _meet(self) -> None:
        for activity in _OF_A_STAGE:
            for key in self._all(activity):
                self._let_meet([key])
        for activity in (Activity.REDUCE_EMBEDDING, Activity.CLIP):
            for _, group in groupby(sorted(self._all(activity), key=lambda key: key[2]), key=lambda key: key[2]):
                self._let_meet(list(group))

    def _all(self, activity: Activity) -> Iterator[_Key]:
        return (key for key in self.keys if key[1] == activity)

    def _let_meet(self, keys: list[_Key]) -> None:
        for key in keys:
            self.meeting[key] = self.num_meetings
        self.num_meetings += 1


def _latest_starts(template: Template, start_s: Floats) -> Floats:
    """Return, for each node, the latest start in its meeting."""
    latest = start_s.copy()
    groups: dict[int, list[int]] = {}
    for index, node in enumerate(template.nodes):
        if node.meeting != ALONE:
            groups.setdefault(node.meeting, []).append(index)
    for members in groups.values():
        together = start_s[members].max(axis=0)
        if template.nodes[members[0]].across_replicas:
            together = np.broadcast_to(together.max(axis=0), together.shape)
        latest[members] = together
    return latest


assert set(_PAIRS) | set(_PAIRS.values()) <= COMMUNICATES
