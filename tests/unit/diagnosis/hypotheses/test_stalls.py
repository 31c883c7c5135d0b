"""Where stalls strike, in the words of the evidence."""

from __future__ import annotations

import numpy as np
import pytest

from gscalar.diagnosis.hypotheses.stalls import examine_collections
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Status
from gscalar.model.timeline import Floats
from gscalar.testing.timelines import data_parallel_timeline, periodic


def on(ranks: list[int], of_steps: Floats) -> Floats:
    """Return stalls of these ranks, `(8, 40)`; others have none."""
    stalls = np.zeros((8, 40))
    stalls[ranks] = of_steps
    return stalls


def in_turn() -> Floats:
    """Return stalls that strike one rank after the other."""
    return 0.05 * np.array([[step % 8 == rank for step in range(40)] for rank in range(8)])


STRUCK = {
    "all at once": (np.broadcast_to(periodic(40, 5, 0.05), (8, 40)), "in the same steps on all ranks"),
    "one after the other": (in_turn(), "in different steps on all ranks"),
    "always the same one": (on([3], periodic(40, 5, 0.05)), "on rank 3 alone"),
    "two of them together": (on([2, 6], periodic(40, 5, 0.05)), "in the same steps on ranks 2, 6"),
}


@pytest.mark.parametrize("case", STRUCK)
def test_who_is_struck_is_said(case: str) -> None:
    gc_s, want = STRUCK[case]
    timeline = data_parallel_timeline(np.random.default_rng(0), transfer_s=0.002, gc_s=gc_s)
    found = examine_collections(Seen.of(timeline))
    assert found.status is Status.SUPPORTED
    assert found.evidence_for[0].endswith(want)


def test_of_one_rank_nothing_is_said_of_others() -> None:
    timeline = data_parallel_timeline(np.random.default_rng(0), ranks=1, transfer_s=0.0, gc_s=periodic(40, 5, 0.05))
    assert "rank" not in examine_collections(Seen.of(timeline)).evidence_for[0]
