"""Replay of measured steps: the same operations with other durations, as early as their dependencies allow.

A step is a template of nodes, repeated over replicas (the data-parallel axis) and over frames (steps). A node starts
when the nodes that it comes after have ended. Nodes of one meeting (a collective, a send with its receive) transfer
from the latest start of all of them on; what came before is waiting, and belongs to whoever came last. Nothing else
is in the model: no launch delay, no contention.

    start(n) = max(end of every node in after(n))
    end(n)   = (max of start over the members of n's meeting, or its own start) + duration(n)

The definitions are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025,
section 3), where a frame is one step and all ranks start at 0. Nodes are evaluated level by level, all replicas and
frames at once, and several sets of durations in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import COMMUNICATES, Activity, Floats, Ints

Bools = npt.NDArray[np.bool_]
ALONE: Final = -1
_MOST_CELLS: Final = 4_000_000  # durations in one pass: 32 MB


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One operation of the template."""

    activity: Activity
    after: tuple[int, ...] = ()  # indices of nodes before it in the template
    stage: int = 0
    micro: int = 0
    meeting: int = ALONE  # nodes with the same number transfer together
    across_replicas: bool = False  # whether its meeting is over all replicas too
    label: str = ""  # the account or operation that it stands for


@dataclass(frozen=True, slots=True)
class _Level:
    nodes: Ints  # (num_nodes,), those of one meeting beside one another
    after: Ints  # (num_nodes, most), padded with the index of a row of zeros
    first: Ints  # where each meeting (or single node) begins in `nodes`
    meeting_of: Ints  # (num_nodes,), index into `first`
    across: Ints  # indices into `first` of the meetings over all replicas
    has_meetings: bool


class Template:
    """The nodes of a step, in an order in which each comes after those that it needs."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.activity = np.array([node.activity for node in nodes], np.int64)
        self.stage = np.array([node.stage for node in nodes], np.int64)
        self.micro = np.array([node.micro for node in nodes], np.int64)
        self.communicates: Bools = np.isin(self.activity, [int(each) for each in COMMUNICATES])
        self._levels = _levels(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def ends(self, durations: Floats) -> Floats:
        """Return when each node ends, `(num_nodes, num_replicas, num_frames)`, of durations of that shape."""
        ends: Floats = np.zeros((len(self.nodes) + 1, *durations.shape[1:]))
        for level in self._levels:
            start = ends[level.after[:, 0]]
            for column in range(1, level.after.shape[1]):
                np.maximum(start, ends[level.after[:, column]], out=start)
            if level.has_meetings:
                latest = np.maximum.reduceat(start, level.first, axis=0)
                if len(level.across):
                    latest[level.across] = latest[level.across].max(axis=1, keepdims=True)
                start = latest[level.meeting_of]
            ends[level.nodes] = start + durations[level.nodes]
        return ends[:-1]

    def frame_s(self, durations: Floats) -> Floats:
        """Return how long each frame takes: until the last node of all replicas has ended, `(num_frames,)`."""
        longest: Floats = self.ends(durations).max(axis=(0, 1))
        return longest

    def frames_of(self, edits: Sequence[Floats]) -> list[Floats]:
        """Return `frame_s` of each of several sets of durations, evaluated together as far as memory is bounded."""
        found: list[Floats] = []
        for at in range(0, len(edits), num_together := max(1, _MOST_CELLS // max(1, edits[0].size if edits else 1))):
            some = edits[at : at + num_together]
            together = self.frame_s(np.concatenate(some, axis=2))
            found += np.split(together, np.cumsum([edit.shape[2] for edit in some])[:-1])
        return found


def _levels(nodes: tuple[Node, ...]) -> tuple[_Level, ...]:
    """Sort nodes so that each level needs only those before it; a meeting is on one level."""
    level_of = _level_of_each(nodes)
    levels = []
    for number in range(max(level_of, default=-1) + 1):
        members = [index for index, level in enumerate(level_of) if level == number]
        # A node alone is a meeting of its own.
        members.sort(key=lambda index: (nodes[index].meeting, index))
        levels.append(_one_level(nodes, members))
    return tuple(levels)


def _level_of_each(nodes: tuple[Node, ...]) -> list[int]:
    members: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.meeting != ALONE:
            members.setdefault(node.meeting, []).append(index)
    needs = [set(node.after) for node in nodes]
    for group in members.values():
        together = set[int]().union(*(needs[index] for index in group))
        for index in group:
            needs[index] = together
    needed_by: list[list[int]] = [[] for _ in nodes]
    for index, need in enumerate(needs):
        for each in need:
            needed_by[each].append(index)
    level, missing = [0] * len(nodes), [len(need) for need in needs]
    ready = [index for index, count in enumerate(missing) if not count]
    num_done = 0
    while ready:
        index = ready.pop()
        num_done += 1
        for later in needed_by[index]:
            level[later] = max(level[later], level[index] + 1)
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if num_done < len(nodes):
        raise ValueError("operations wait for one another in a circle")
    return level


def _one_level(nodes: tuple[Node, ...], members: list[int]) -> _Level:
    zero = len(nodes)
    most = max(1, *(len(nodes[index].after) for index in members))
    after = [[*nodes[index].after, *[zero] * (most - len(nodes[index].after))] for index in members]
    first: list[int] = []
    meeting_of: list[int] = []
    across: list[int] = []
    for at, index in enumerate(members):
        meeting = nodes[index].meeting
        if at == 0 or meeting == ALONE or meeting != nodes[members[at - 1]].meeting:
            if nodes[index].across_replicas:
                across.append(len(first))
            first.append(at)
        meeting_of.append(len(first) - 1)
    return _Level(
        nodes=np.array(members),
        after=np.array(after),
        first=np.array(first),
        meeting_of=np.array(meeting_of),
        across=np.array(across, np.int64),
        has_meetings=len(first) < len(members) or bool(across),
    )
