"""What is said of slow workers."""

from __future__ import annotations

import numpy as np

from gscalar.diagnosis.hypotheses.slow_worker import examine
from gscalar.diagnosis.seen import Seen
from gscalar.testing.timelines import data_parallel_timeline


def said(**slow: float) -> list[str]:
    timeline = data_parallel_timeline(
        np.random.default_rng(0), transfer_s=0.002, work=np.full((8, 40), 9.0),
        slow={int(rank[1:]): factor for rank, factor in slow.items()},
    )  # fmt: skip
    return list(examine(Seen.of(timeline)).evidence_for)


def test_each_slow_rank_stands_beside_its_own_pace() -> None:
    first, second, *_ = said(r3=1.3, r6=1.8)
    assert "ranks 3, 6 1.3" in first
    assert "x, 1.8" in first
    assert "their peers" in first
    assert second.startswith("one of them")


def test_one_slow_rank_is_one() -> None:
    first, second, *_ = said(r5=1.5)
    assert "its peers" in first
    assert "100 % of the steps" in first
    assert second.startswith("it computes longest")
