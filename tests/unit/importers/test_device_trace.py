"""Timelines from operations of devices: several devices of a rank, bytes of a batch, moments and their steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gscalar.importers.device_trace import DeviceOperations, Windows, as_timeline
from gscalar.importers.layers import Intervals
from gscalar.model.timeline import NONE, Activity, Lane, Rank, Signal, StepTimeline

KERNEL, REDUCE, COPY = 0, 1, 2
NAMES = {KERNEL: "gemm", REDUCE: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", COPY: "Memcpy HtoD (Pinned -> Device)"}


def device(operations: list[tuple[float, float, int]], *, rank: int = 0, number: int = 0, bytes_each: float = np.nan):
    starts, ends, names = (np.array(column) for column in zip(*operations, strict=True))
    return DeviceOperations.of(
        rank=rank, device=number, intervals=(starts.astype(float), ends.astype(float)), name=names.astype(np.int64),
        names=NAMES, activities={}, num_bytes=np.full(len(starts), bytes_each),
    )  # fmt: skip


def timeline(
    operations: list[DeviceOperations],
    steps: list[Mapping[int, tuple[float, float]]],
    waits: list[list[Intervals]] | None = None,
) -> StepTimeline:
    return as_timeline(
        source="nsight", name="a", ranks=[Rank(rank=rank) for rank in range(len(steps))], operations=operations,
        steps=[Windows.of(each) for each in steps], waits=waits or [[] for _ in steps],
        unknown={} if waits else {Signal.DATA_WAIT: "not seen"},
    )  # fmt: skip


def test_accounts_of_several_devices_are_their_mean_and_sum_to_the_step() -> None:
    busy, idle = device([(0, 6, KERNEL), (5, 8, REDUCE)]), device([(0, 2, COPY)], number=1)
    got = timeline([busy, idle], [{0: (0, 10)}], [[(np.array([7.0]), np.array([9.0]))]])
    want = {"compute": 3.0, "exposed_communication": 1.0, "h2d": 1.0, "data_wait": 1.5, "host_gap": 3.5}
    assert {name: got.account(name)[0, 0] for name in want} == pytest.approx(want)
    assert np.nansum(got.accounts) == pytest.approx(10.0)
    assert got.loading is not None
    assert got.loading.exposed_wait_s.tolist() == [[pytest.approx(1.5)]]
    assert got.loading.wait_s.tolist() == [[2.0]]


def test_a_wait_that_is_not_known_is_unknown_and_in_the_gap() -> None:
    got = timeline([device([(0, 6, KERNEL)])], [{0: (0, 10)}])
    assert np.isnan(got.account("data_wait")).all()
    assert got.account("host_gap").tolist() == [[4.0]]


def test_the_bytes_of_a_batch_are_what_a_step_usually_copies_to_a_device() -> None:
    copies = device([(0, 1, COPY), (2, 3, COPY), (10, 11, COPY), (12, 13, COPY), (20, 21, COPY)], bytes_each=64)
    got = timeline([copies], [{0: (0, 10), 1: (10, 20), 2: (20, 30)}])
    assert got.loading is not None
    assert got.loading.batch_bytes == 128
    assert got.loading.copy_s.tolist() == [[2.0, 2.0, 1.0]]


def test_spans_know_their_step_lane_and_rank() -> None:
    first, second = device([(1, 2, KERNEL), (12, 14, REDUCE)]), device([(1, 2, KERNEL)], rank=1)
    got = timeline([second, first], [{4: (0, 10), 5: (11, 20)}, {5: (0, 3)}])
    assert got.spans.rank.tolist() == [0, 0, 1]
    assert got.spans.step.tolist() == [0, 1, 1]
    assert got.spans.lane.tolist() == [Lane.COMPUTE, Lane.COMMUNICATION, Lane.COMPUTE]
    assert [got.names[name] for name in got.spans.name] == [NAMES[KERNEL], NAMES[REDUCE], NAMES[KERNEL]]


def test_a_moment_between_steps_is_in_none() -> None:
    windows = Windows.of({2: (10, 20), 1: (0, 8)})
    moments = np.array([-1.0, 0.0, 7.9, 8.0, 10.0, 20.0])
    assert windows.holding(moments).tolist() == [NONE, 0, 0, NONE, 1, NONE]


def test_names_of_copies_and_sets_say_what_they_do() -> None:
    names = {
        0: "MemcpyH2D",
        1: "Memcpy DtoD (Device -> Device)",
        2: "Memset (Device)",
        3: "memcpy32_post",
        4: "memset_mine",
    }
    got = DeviceOperations.of(
        rank=0, device=0, intervals=(np.arange(5.0), np.arange(5.0) + 1), name=np.arange(5), names=names, activities={}
    )  # fmt: skip
    assert got.activity.tolist() == [Activity.H2D, Activity.COPY, Activity.SET, Activity.COMPUTE, Activity.COMPUTE]
