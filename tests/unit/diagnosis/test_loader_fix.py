"""The loader fix: as few loaders as will do, or as many as are tried."""

from __future__ import annotations

import numpy as np
import pytest

from gscalar.diagnosis.loader_fix import loader_proposal
from gscalar.diagnosis.seen import Seen
from gscalar.testing.timelines import data_parallel_timeline

LOADERS = {
    "four will do": (0.04, 0, 4),
    "eight will do": (0.4, 2, 8),
    "not even sixteen will do": (9.0, 2, 16),
    "there are more already": (9.0, 16, 32),
}


@pytest.mark.parametrize("case", LOADERS)
def test_more_loaders_are_proposed_where_there_is_a_wait(case: str) -> None:
    work_s, now, want = LOADERS[case]
    timeline = data_parallel_timeline(
        np.random.default_rng(0), transfer_s=0.002, loader_work_s=work_s, loaders=now, compute_s=0.08
    )
    found = loader_proposal(Seen.of(timeline))
    assert found is not None
    assert found.knob == f"num_workers={want}"


def test_where_nothing_waits_there_is_nothing_to_fix() -> None:
    timeline = data_parallel_timeline(np.random.default_rng(0), data_wait_s=0.0, loader_work_s=None)
    assert loader_proposal(Seen.of(timeline)) is None
