"""Exclusive shares of a window of time: what happens at once counts for what comes first in a list of layers.

A device computes, communicates and copies at once, while its host waits for data. Each layer counts in a window for
what it adds to the layers before it: the length of their union with it, less that without it. So the shares and what
is left sum to the window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gscalar.model.timeline import Floats

Intervals = tuple[Floats, Floats]  # starts and ends, in any order, overlapping or not

NOTHING: Intervals = (np.empty(0), np.empty(0))


def layered(begin_s: Floats, end_s: Floats, layers: Sequence[Intervals]) -> list[Floats]:
    """Return the share of each layer in each window, and of what no layer covers: `(num_windows,)` each."""
    shares, before_s = [], np.zeros_like(begin_s)
    starts, ends = NOTHING
    for more_starts, more_ends in layers:
        starts, ends = merged(np.concatenate([starts, more_starts]), np.concatenate([ends, more_ends]))
        covered_s = covered(begin_s, end_s, (starts, ends))
        shares.append(np.maximum(covered_s - before_s, 0.0))
        before_s = covered_s
    return [*shares, np.maximum(end_s - begin_s - before_s, 0.0)]


def merged(starts: Floats, ends: Floats) -> Intervals:
    """Return the union as disjoint intervals in order."""
    if not len(starts):
        return NOTHING
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.r_[True, starts[1:] > reach[:-1]]
    last = np.r_[np.flatnonzero(first)[1:] - 1, len(starts) - 1]
    return starts[first], reach[last]


def covered(begin_s: Floats, end_s: Floats, disjoint: Intervals) -> Floats:
    """Return how much of each window disjoint intervals in order cover."""
    starts, ends = disjoint
    if not len(starts):
        return np.zeros_like(begin_s)
    before = np.r_[0.0, np.cumsum(ends - starts)]

    def until(moments: Floats) -> Floats:
        at = np.searchsorted(starts, moments, side="right")
        running = np.where(at > 0, np.maximum(ends[at - 1] - moments, 0.0), 0.0)
        return np.asarray(before[at] - running)

    seconds: Floats = until(end_s) - until(begin_s)
    return seconds
