from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gscalar.model.accounts import ACCOUNTS
from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    COMMUNICATES,
    NONE,
    Activity,
    Collectives,
    DeviceUse,
    Rank,
    Spans,
    StepTimeline,
    no_steps,
)

NAN = math.nan


def timeline(*ranks: Rank, **changes: Any) -> StepTimeline:
    fields = no_steps(len(ranks)) | {"spans": Spans.of(0), "names": ()} | changes
    return StepTimeline(source="record", name="a run", ranks=ranks, **fields)


def collectives(ready_s: Any, start_s: Any, end_s: Any) -> Collectives:
    """Of one step, `(num_ranks, num_collectives)` each."""
    num = len(end_s[0])
    return Collectives(
        kind=("all_reduce",) * num,
        group=np.zeros(num, np.int64),
        num_bytes=np.full(num, NAN),
        ready_s=np.array(ready_s)[:, None],
        start_s=np.array(start_s)[:, None],
        end_s=np.array(end_s)[:, None],
    )


def test_spans_are_sorted_by_rank_and_start() -> None:
    got = Spans.of(4, rank=[1, 0, 1, 0], start_s=[3.0, 2.0, 1.0, 4.0], end_s=[3.5, 2.5, 1.5, 4.5], micro=[0, 1, 2, 3])

    assert got.rank.tolist() == [0, 0, 1, 1]
    assert got.start_s.tolist() == [2.0, 4.0, 1.0, 3.0]
    assert got.end_s.tolist() == [2.5, 4.5, 1.5, 3.5]
    assert got.micro.tolist() == [1, 3, 2, 0]
    assert got.duration_s.tolist() == [0.5] * 4
    assert len(got) == 4


def test_columns_that_are_left_out_are_not_known() -> None:
    got = Spans.of(2, start_s=[-1.0, 0.0], end_s=[0.0, 1.0])

    assert got.rank.tolist() == [0, 0]
    assert np.isnan(got.num_bytes).all()
    for name in ("step", "lane", "activity", "name", "group", "sequence", "micro", "chunk", "device"):
        column = getattr(got, name)
        assert (column.dtype, column.tolist()) == (np.int64, [NONE, NONE]), name


def test_there_may_be_no_spans() -> None:
    got = Spans.of(0)

    assert len(got) == 0
    assert (got.start_s.dtype, got.rank.dtype) == (np.float64, np.int64)


# name: when each rank starts a collective, when it ends for each, its transfer, what each rank waits
MEETINGS: dict[str, tuple[list[float], list[float], float, list[float]]] = {
    "the last rank waits for nobody": ([0.0, 3.0, 1.0], [5.0, 5.0, 5.0], 2.0, [3.0, 0.0, 2.0]),
    "all come at once": ([1.0, 1.0], [2.5, 2.5], 1.5, [0.0, 0.0]),
    "clocks that differ do not matter": ([100.0, 3.0], [105.0, 5.0], 2.0, [3.0, 0.0]),
    "an end before the start is no transfer": ([0.0, 5.0], [4.0, 4.0], 0.0, [4.0, 0.0]),
    "a rank that is not known is left out": ([0.0, NAN], [4.0, NAN], 4.0, [0.0, NAN]),
    "a collective that no rank knows is not known": ([NAN, NAN], [NAN, NAN], NAN, [NAN, NAN]),
}


@pytest.mark.parametrize("case", MEETINGS)
def test_a_collective_is_transfer_from_the_last_start_on_and_waiting_before(case: str) -> None:
    start_s, end_s, want_transfer_s, want_wait_s = MEETINGS[case]
    column = [[each] for each in start_s]

    got = collectives(column, column, [[each] for each in end_s])

    assert np.array_equal(got.transfer_s, [[want_transfer_s]], equal_nan=True)
    assert np.array_equal(got.wait_s[:, 0, 0], want_wait_s, equal_nan=True)


def test_each_collective_of_a_step_has_its_own_last_rank() -> None:
    start_s, end_s = [[0.0, 4.0], [1.0, 3.0]], [[2.0, 6.0], [2.0, 6.0]]

    got = collectives(start_s, start_s, end_s)

    assert got.transfer_s.tolist() == [[1.0, 2.0]]
    assert got.wait_s[:, 0].tolist() == [[1.0, 0.0], [0.0, 1.0]]


CLOCKS: dict[str, tuple[list[float], float]] = {
    "one rank": ([NAN], 0.0),
    "no rank": ([], 0.0),
    "the largest error counts": ([0.0, 0.002, 0.001], 0.002),
    "one that is not known makes all unknown": ([0.0, NAN, 0.001], NAN),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_clocks_are_as_good_as_the_worst_of_them(case: str) -> None:
    errors_s, want = CLOCKS[case]

    got = timeline(*(Rank(rank=at, clock_error_s=each) for at, each in enumerate(errors_s))).clock_error_s

    assert got == want or (math.isnan(got) and math.isnan(want))


def test_a_rank_of_which_nothing_is_said_has_a_clock_that_nobody_knows() -> None:
    assert math.isnan(timeline(Rank(rank=0), Rank(rank=1)).clock_error_s)


def test_a_timeline_without_steps_has_its_ranks() -> None:
    got = timeline(Rank(rank=0), Rank(rank=4))

    assert (got.num_ranks, got.num_steps) == (2, 0)
    assert got.step_s.shape == (2, 0)
    assert got.account("compute").shape == (2, 0)


def test_an_account_is_found_by_its_name() -> None:
    accounts = np.arange(2 * 3 * len(ACCOUNTS), dtype=float).reshape(2, 3, len(ACCOUNTS))
    got = timeline(
        Rank(rank=0), Rank(rank=1), steps=np.arange(3), begin_s=np.zeros((2, 3)), end_s=np.ones((2, 3)),
        accounts=accounts,
    )  # fmt: skip

    assert got.account("data_wait").tolist() == accounts[:, :, 2].tolist()
    assert got.step_s.tolist() == [[1.0] * 3] * 2
    with pytest.raises(ValueError):
        got.account("coffee")


def test_the_accounts_are_those_of_the_record_in_its_order() -> None:
    assert tuple(ACCOUNTS) == ACCOUNT_NAMES
    assert ACCOUNT_NAMES[:3] == ("compute", "exposed_communication", "data_wait")


PIPELINES = {
    "ranks without a stage": ([NONE, NONE], False),
    "one stage": ([0, 0], False),
    "two stages": ([0, 1], True),
    "only a later stage is seen": ([2, 2], True),
}


@pytest.mark.parametrize("case", PIPELINES)
def test_ranks_on_stages_are_a_pipeline(case: str) -> None:
    stages, want = PIPELINES[case]

    assert timeline(*(Rank(rank=at, stage=stage) for at, stage in enumerate(stages))).is_pipeline is want


def test_a_device_is_idle_when_nothing_runs() -> None:
    got = DeviceUse(
        rank=0, device=0, span_s=10.0, busy_s=7.0, compute_s=5.0, communication_s=3.0, copy_s=0.5, exposed_s=2.0,
        overlap_s=1.0, idle_launch_s=NAN, idle_queued_s=NAN, idle_other_s=NAN, num_operations=4,
        median_operation_s=0.1,
    )  # fmt: skip

    assert got.idle_s == 3.0


def test_every_activity_between_ranks_communicates_and_no_other() -> None:
    words = ("COMMUNICATION", "SEND", "RECEIVE", "GATHER", "SCATTER", "REDUCE", "CLIP")

    want = {each for each in Activity if each.name.startswith(words)}

    assert set(COMMUNICATES) == want
