"""What exchanging gradients costs a step of N workers, of which the backward hides a part.

Gradients are exchanged in buckets, one after the other. A bucket can go once its gradients are there, `lead` before the
backward ends, and the group is free; what goes on after the backward's end is exposed:

    end_c   = max(end_(c-1), -lead_c) + time_c(N)              0 is the end of the backward
    exposed = max(0, end_last)

So more workers on the same link first fill the room that the backward leaves, and are felt after that. The link is
that of the median step; what the mean measured step exposed more (a busy host, a retransmission) is a stall, and stays
on the measured link. Where nobody saw when buckets were ready, they are taken to be ready evenly in the backward, as
DistributedDataParallel's are; the interval then reaches to no overlap at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gscalar.model.spans import CollectiveKind
from gscalar.model.timeline import Floats, Ints, StepTimeline
from gscalar.prediction.collectives import Algorithm, AlphaBeta, kind_named
from gscalar.prediction.edits import BACKWARD_SHARE

BUCKET_BYTES: Final = 25 * 2**20  # of DistributedDataParallel


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """The buckets of a step, `(num_buckets,)`, in the order in which they go."""

    kind: tuple[CollectiveKind, ...]
    num_bytes: Floats
    lead_s: Floats  # how long before the end of the backward each is ready
    lead_seen: bool = True  # False: taken from how frameworks do it
    transfer_s: Floats | None = None  # as measured, (num_steps, num_buckets), not finite where unseen
    measured_s: Floats | None = None  # exposed after the last worker had come, (num_steps,)

    def exposed_s(
        self,
        link: AlphaBeta,
        num_workers: int,
        *,
        compute_ratio: float = 1.0,
        algorithm: Algorithm = Algorithm.RING,
        overlaps: bool = True,
    ) -> float:
        """Return what of a step is left to exchange after the backward, which takes so many times the measured one."""
        end_s = 0.0 if not overlaps else -math.inf
        for kind, num_bytes, lead_s in zip(self.kind, self.num_bytes.tolist(), self.lead_s.tolist(), strict=True):
            end_s = max(end_s, -lead_s * compute_ratio) + link.time_s(kind, num_bytes, num_workers, algorithm)
        return max(0.0, end_s)

    def stall_s(self, link: AlphaBeta) -> float:
        """Return what the mean measured step exposed more than this link, fitted to it, explains; it may be less."""
        if self.measured_s is None or not link.group_size:
            return 0.0
        return float(self.measured_s.mean()) - self.exposed_s(link, link.group_size)

    def of_steps(self, steps: Ints) -> Exchange:
        """Return the exchange as if it had had these steps."""
        chosen = (None if each is None else each[steps] for each in (self.transfer_s, self.measured_s))
        transfer_s, measured_s = chosen
        return replace(self, transfer_s=transfer_s, measured_s=measured_s)

    def fit(self, group_size: int) -> AlphaBeta | None:
        """Return the link of the measured transfers; None where there are none.

        It is fitted to each bucket's median over steps, and all buckets must be of one kind.
        """
        if self.transfer_s is None or group_size < 2 or not len(self.num_bytes):
            return None
        try:
            return AlphaBeta.fit(self.num_bytes, _medians(self.transfer_s), group_size, self.kind[0])
        except ValueError:
            return None


def even_exchange(gradient_bytes: float, compute_s: float) -> Exchange:
    """Return buckets of usual size, ready one after the other in a backward that nobody looked into."""
    num = max(1, math.ceil(gradient_bytes / BUCKET_BYTES))
    backward_s = compute_s * BACKWARD_SHARE
    return Exchange(
        kind=(CollectiveKind.ALL_REDUCE,) * num,
        num_bytes=np.full(num, gradient_bytes / num),
        lead_s=backward_s * (1 - np.arange(1, num + 1) / num),
        lead_seen=False,
    )


def measured_exchange(timeline: StepTimeline, exposed_s: Floats, gradient_bytes: float) -> Exchange | None:
    """Return what the timeline's ranks exchange; None where they exchange nothing that was seen.

    `exposed_s` is each rank's wait, `(num_ranks, num_steps)`. Without collectives, what is exposed on the rank that
    waits least is one transfer after the backward.
    """
    found = timeline.collectives
    # Whoever waits least came last: what it waits for is moving bytes.
    least_s = exposed_s.min(axis=0)
    if found is not None and len(found.kind):
        lead_s = (found.ready_s.max(axis=2, keepdims=True) - found.ready_s).reshape(-1, len(found.kind))
        return Exchange(
            kind=tuple(kind_named(each) for each in found.kind),
            num_bytes=np.nan_to_num(found.num_bytes),
            lead_s=np.maximum(np.nan_to_num(_medians(lead_s)), 0.0),
            transfer_s=found.transfer_s,
            measured_s=least_s,
        )
    if timeline.world < 2 or not least_s.any() or math.isnan(gradient_bytes):
        return None
    return Exchange(
        kind=(CollectiveKind.ALL_REDUCE,),
        num_bytes=np.array([gradient_bytes]),
        lead_s=np.zeros(1),
        transfer_s=least_s[:, None],
        measured_s=least_s,
    )


def _medians(rows: Floats) -> Floats:
    """Return the median of each column over the rows where it was seen; NaN where it never was."""
    known = np.isfinite(rows)
    return np.array([np.median(rows[seen, at]) if seen.any() else np.nan for at, seen in enumerate(known.T)])
