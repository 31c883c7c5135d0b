"""What one device did over its span, and why it was idle: HTA's temporal split, over all of a device's streams.

Operations of several streams run at once, so every figure is the length of a union or of an intersection of unions,
computed by sorting and a running maximum; nothing is looped over. The span reaches from the first operation to the end
of the last one. Exposed communication is what its union adds to that of everything else, so a copy hides it as well as
a kernel does; overlap is told both with and without copies.

Limits: a gap is judged by the one operation that ends it. An operation that was held back by an event of another
stream looks like one that was queued and came late: its gap is `other`, and never the host's fault.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gscalar.importers.layers import NOTHING, Intervals, merged
from gscalar.model.timeline import DeviceUse, Floats

# HTA takes a gap of up to 30 ns between queued kernels for what starting one takes.
_QUEUED_S: Final = 30e-9
# Times of a trace are decimals of microseconds, counted from far away: equal moments differ in the last binary digit.
_ROUNDING_S: Final = 1e-12


def device_use(
    rank: int,
    device: int,
    *,
    compute: Intervals,
    communication: Intervals,
    copies: Intervals,
    launch_s: Floats | None = None,
) -> DeviceUse:
    """Return what a device did.

    Intervals are starts and ends in seconds, in any order. `launch_s` says when the host issued each of all these
    operations, sorted by their start; NaN where it is not known, None where no launch is known.
    """
    starts, ends = joined(compute, communication, copies)
    busy = merged(starts, ends)
    compute_s, communication_s = length_s(compute), length_s(communication)
    busy_s = float((busy[1] - busy[0]).sum())
    exposed_s = max(0.0, busy_s - length_s(compute, copies))
    beside_kernels_s = max(0.0, compute_s + communication_s - length_s(compute, communication))
    launch, queued, other = _idle_s(starts, busy, launch_s)
    return DeviceUse(
        rank=rank,
        device=device,
        span_s=float(busy[1][-1] - busy[0][0]) if len(starts) else 0.0,
        busy_s=busy_s,
        compute_s=compute_s,
        communication_s=communication_s,
        copy_s=length_s(copies),
        exposed_s=exposed_s,
        overlap_s=beside_kernels_s,
        idle_launch_s=launch,
        idle_queued_s=queued,
        idle_other_s=other,
        num_operations=len(starts),
        median_operation_s=float(np.median(ends - starts)) if len(starts) else math.nan,
        overlap_with_copies_s=max(0.0, communication_s - exposed_s),
    )


def joined(*intervals: Intervals) -> Intervals:
    """Return all the intervals as one pair of columns."""
    starts, ends = zip(*(intervals or (NOTHING,)), strict=True)
    return np.concatenate(starts), np.concatenate(ends)


def length_s(*intervals: Intervals) -> float:
    """Return how long at least one of the intervals goes on."""
    starts, ends = merged(*joined(*intervals))
    return float((ends - starts).sum())


def _idle_s(starts: Floats, busy: Intervals, launch_s: Floats | None) -> tuple[float, float, float]:
    """Return the gaps' seconds by cause: a late launch, starting what was queued, anything else."""
    if launch_s is None or not np.isfinite(launch_s).any():
        return math.nan, math.nan, math.nan
    assert len(launch_s) == len(starts)
    gap_s = busy[0][1:] - busy[1][:-1]
    issued_s = launch_s[np.searchsorted(np.sort(starts), busy[0][1:])]
    late = issued_s > busy[1][:-1]  # not so where the launch is not known
    queued = ~late & np.isfinite(issued_s) & (gap_s <= _QUEUED_S + _ROUNDING_S)
    return float(gap_s[late].sum()), float(gap_s[queued].sum()), float(gap_s[~late & ~queued].sum())
