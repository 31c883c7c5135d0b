"""Measured steps that can be replayed: a template and the durations of its nodes in every step.

The ideal that a training is compared with has one duration for each type of operation, over all ranks and steps: the
mean of what computes (the slow worker included), the median of what transfers. `slowdown` is the mean measured step
over the mean ideal one, both replayed (OSDI 2025, equation 1). It is not the measured step over the ideal: that also
holds what the replay does not model, which `replay_error` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import Activity, Floats, Ints
from gscalar.prediction.graph import Bools, Template


class NotReplayable(ValueError):
    """A timeline lacks what a replay needs; the message says what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSteps:
    """Measured steps, ready to replay. `durations` of what communicates are transfers, without waiting."""

    template: Template
    durations: Floats  # (num_nodes, num_replicas, num_frames)
    frame_s: Floats  # measured, (num_frames,)
    steps: Ints  # number of each frame's step
    rank_index: Ints  # (num_stages, num_replicas): which rank of the timeline a stage of a replica is
    start_s: Floats | None = None  # measured start of each node from the frame's begin, where it was seen
    work: Floats | None = None  # (num_replicas, num_frames), in the timeline's unit; NaN: not known
    notes: tuple[str, ...] = ()

    @property
    def known_work(self) -> Floats | None:
        """Units of work, `(num_replicas, num_frames)`; None where they are not all known."""
        work = self.work
        return work if work is not None and bool(np.all(np.isfinite(work) & (work > 0))) else None

    @property
    def num_frames(self) -> int:
        """Steps that are replayed."""
        return int(self.durations.shape[2])

    @property
    def num_replicas(self) -> int:
        """Ranks along the data-parallel axis."""
        return int(self.durations.shape[1])

    def nodes(self, *activities: Activity) -> Bools:
        """Return which nodes do one of these, `(num_nodes,)`."""
        chosen: Bools = np.isin(self.template.activity, [int(each) for each in activities])
        return chosen

    def labelled(self, *labels: str) -> Bools:
        """Return which nodes have one of these labels, `(num_nodes,)`."""
        return np.array([node.label in labels for node in self.template.nodes], np.bool_)

    @property
    def types(self) -> npt.NDArray[np.int64]:
        """The type of each node, for which the ideal has one duration: numbers, `(num_nodes,)`.

        In data parallel the pieces of the compute and the exchanges between them are cut by position and not by
        kind, so each of them is a type of its own.
        """
        by_position = self.nodes(Activity.COMPUTE, Activity.COMMUNICATION)
        names = [
            f"{node.label}/{node.micro}" if alone else node.label
            for node, alone in zip(self.template.nodes, by_position, strict=True)
        ]
        _, types = np.unique(names, return_inverse=True)
        return types


def ideal_durations(steps: MeasuredSteps) -> Floats:
    """Return one duration a type of operation, of the shape of `steps.durations`."""
    ideal = np.empty_like(steps.durations)
    types = steps.types
    for kind in range(types.max(initial=-1) + 1):
        of_kind = types == kind
        seen = steps.durations[of_kind]
        transfers = steps.template.communicates[of_kind].any()
        ideal[of_kind] = np.median(seen) if transfers else seen.mean()
    return ideal
