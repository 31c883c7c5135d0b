"""Operations that the memory's bandwidth binds, by counters that are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gscalar.diagnosis.diagnose import diagnose
from gscalar.diagnosis.hypotheses.memory_bandwidth import ARITHMETIC, BANDWIDTH, examine
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Status
from gscalar.model.timeline import StepTimeline
from gscalar.testing.timelines import data_parallel_timeline


def timeline(bandwidth: float, arithmetic: float) -> StepTimeline:
    found = data_parallel_timeline(np.random.default_rng(0), transfer_s=0.002)
    return replace(found, counters={BANDWIDTH: np.full(8, bandwidth), ARITHMETIC: np.full(8, arithmetic)})


COUNTERS = {
    "near the memory's ceiling, far below the arithmetic's": (0.8, 0.2, Status.SUPPORTED),
    "near both": (0.8, 0.7, Status.REJECTED),
    "near none": (0.3, 0.2, Status.REJECTED),
    "no arithmetic counted": (0.8, np.nan, Status.UNKNOWN),
    "no bytes counted": (np.nan, 0.2, Status.UNKNOWN),
}


@pytest.mark.parametrize("case", COUNTERS)
def test_it_takes_both_counters(case: str) -> None:
    bandwidth, arithmetic, want = COUNTERS[case]
    assert examine(Seen.of(timeline(bandwidth, arithmetic))).status is want


def test_a_bound_training_has_it_as_its_cause_with_what_it_may_cost() -> None:
    found = diagnose(timeline(0.8, 0.2))
    assert found.principal.cause is Cause.MEMORY_BANDWIDTH
    assert found.accounts["compute"] is not None
    assert found.step_mean_s is not None
    want = 0.75 * found.accounts["compute"] / found.step_mean_s  # three quarters of the compute move bytes
    assert found.principal.cost_share == pytest.approx(want, rel=0.05)
