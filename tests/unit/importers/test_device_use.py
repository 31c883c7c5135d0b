from __future__ import annotations

import numpy as np
import pytest

from gscalar.importers.device_use import device_use
from gscalar.importers.layers import NOTHING, Intervals


def intervals(*pairs: tuple[float, float]) -> Intervals:
    starts, ends = np.array(pairs, np.float64).reshape(-1, 2).T
    return starts, ends


# compute, communication, copies; then span, busy, compute, communication, copies, exposed, overlap, overlap with copies
SPLITS = {
    "one kernel is all there is": (
        (intervals((0, 2)), NOTHING, NOTHING),
        (2, 2, 2, 0, 0, 0, 0, 0),
    ),
    "kernels of two streams count once where they run at once": (
        (intervals((0, 4), (1, 2), (3, 6)), NOTHING, NOTHING),
        (6, 6, 6, 0, 0, 0, 0, 0),
    ),
    "communication is exposed where nothing else runs": (
        (intervals((0, 4)), intervals((3, 6)), NOTHING),
        (6, 6, 4, 3, 0, 2, 1, 1),
    ),
    "a copy hides communication, and is overlap only where copies count": (
        (intervals((0, 1)), intervals((2, 6)), intervals((5, 8))),
        (8, 7, 1, 4, 3, 3, 0, 1),
    ),
    "gaps are idle, and times may be negative": (
        (intervals((-5, -4), (3, 4)), NOTHING, NOTHING),
        (9, 2, 2, 0, 0, 0, 0, 0),
    ),
    "one collective over many kernels overlaps each": (
        (intervals((0, 1), (2, 3), (4, 5)), intervals((0, 5)), NOTHING),
        (5, 5, 3, 5, 0, 2, 3, 3),
    ),
    "nothing ran": ((NOTHING, NOTHING, NOTHING), (0, 0, 0, 0, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("case", SPLITS)
def test_a_device_s_time_is_split(case: str) -> None:
    (compute, communication, copies), want = SPLITS[case]
    use = device_use(1, 3, compute=compute, communication=communication, copies=copies)
    got = (
        use.span_s, use.busy_s, use.compute_s, use.communication_s, use.copy_s, use.exposed_s, use.overlap_s,
        use.overlap_with_copies_s,
    )  # fmt: skip
    assert got == pytest.approx(want)
    assert (use.rank, use.device) == (1, 3)


# when the second kernel was issued, where it starts; then idle for a late launch, queued, other. The first ends at 1.
GAPS = {
    "issued after the one before had ended": (1.5, 2.0, (1.0, 0.0, 0.0)),
    "issued before, began at once": (0.5, 1.0 + 20e-9, (0.0, 20e-9, 0.0)),
    "issued before, began much later": (0.5, 2.0, (0.0, 0.0, 1.0)),
    "nobody knows when it was issued": (np.nan, 2.0, (0.0, 0.0, 1.0)),
}


@pytest.mark.parametrize("case", GAPS)
def test_a_gap_is_blamed_on_what_ends_it(case: str) -> None:
    issued, start, want = GAPS[case]
    use = device_use(
        0, 0, compute=intervals((start, 3), (0, 1)), communication=NOTHING, copies=NOTHING,
        launch_s=np.array([-0.1, issued]),
    )  # fmt: skip
    assert (use.idle_launch_s, use.idle_queued_s, use.idle_other_s) == pytest.approx(want, abs=1e-15)
    assert use.idle_launch_s + use.idle_queued_s + use.idle_other_s == pytest.approx(use.idle_s)


def test_without_launches_the_cause_of_idle_time_is_not_known() -> None:
    for launch_s in (None, np.full(2, np.nan)):
        use = device_use(
            0, 0, compute=intervals((0, 1), (2, 3)), communication=NOTHING, copies=NOTHING, launch_s=launch_s
        )  # fmt: skip
        assert np.isnan([use.idle_launch_s, use.idle_queued_s, use.idle_other_s]).all()
        assert use.idle_s == 1


def test_the_median_operation_is_over_all_kinds() -> None:
    use = device_use(0, 0, compute=intervals((0, 1), (1, 3)), communication=intervals((0, 9)), copies=NOTHING)
    assert (use.num_operations, use.median_operation_s) == (3, 2)
