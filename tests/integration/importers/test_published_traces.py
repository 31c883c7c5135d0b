"""Kineto traces that others have published, with what is known of them (shared/data/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import UserError
from gscalar.importers.recognition import open_traces
from gscalar.model.timeline import DeviceUse, Signal, StepTimeline

POINT = 0.001  # of a share


def opened(folder: Path, *names: str) -> StepTimeline:
    return open_traces([folder / name for name in names])


def only_device(timeline: StepTimeline) -> DeviceUse:
    (use,) = timeline.devices
    return use


# how many loader processes: median step, median exposed wait (seconds; None: nothing is published)
LOADERS = {0: (0.1763, 0.0594), 4: (0.1265, None)}


@pytest.mark.parametrize("workers", LOADERS)
def test_a_training_before_and_after_it_got_loaders(shared_data: Path, workers: int) -> None:
    step_s, exposed_s = LOADERS[workers]
    got = opened(shared_data, f"kineto/resnet50_workers{workers}.pt.trace.json.gz")
    assert got.steps.tolist() == [5, 6, 7, 8, 9, 10]
    assert np.median(got.step_s) == pytest.approx(step_s, abs=1e-4)
    loading = got.loading
    assert loading is not None
    assert loading.batch_bytes == 32 * 3 * 224 * 224 * 4 + 32 * 8
    assert (loading.num_workers == 0) == (workers == 0)
    assert np.nansum(got.accounts, axis=2) == pytest.approx(got.step_s)
    if exposed_s is not None:
        assert np.median(loading.exposed_wait_s) == pytest.approx(exposed_s, abs=1e-4)
        assert got.account("data_wait").sum() / got.step_s.sum() == pytest.approx(0.334, abs=0.01)


def test_a_training_whose_device_waits_for_queued_work(shared_data: Path) -> None:
    got = opened(shared_data, "hta/negative_queue_rank0.json.gz")
    use = only_device(got)
    assert use.busy_s / use.span_s == pytest.approx(0.356, abs=POINT)
    assert use.exposed_s / use.span_s == pytest.approx(0.150, abs=POINT)
    assert use.overlap_s / use.communication_s == pytest.approx(0.014, abs=POINT)
    assert use.overlap_with_copies_s / use.communication_s == pytest.approx(0.018, abs=POINT)
    assert use.idle_other_s > 0.95 * use.idle_s
    assert got.num_steps == 5
    assert (got.num_ranks, got.world) == (1, 16)


def test_a_training_that_is_launch_bound(shared_data: Path) -> None:
    use = only_device(opened(shared_data, "hta/nccl_data.json.gz"))
    assert use.busy_s / use.span_s == pytest.approx(0.238, abs=POINT)
    assert use.exposed_s / use.span_s == pytest.approx(0.059, abs=POINT)
    assert use.idle_launch_s > 0.99 * use.idle_s


def test_two_of_many_ranks(shared_data: Path) -> None:
    got = opened(shared_data, "hta/sampled_rank-1.json.gz", "hta/sampled_rank-0.json.gz")
    assert [each.rank for each in got.ranks] == [0, 1]
    assert got.world == 128
    assert got.steps.tolist() == [551, 552]
    assert [use.device for use in got.devices] == [0, 1]
    assert any("2 of 128 ranks" in note for note in got.notes)
    assert Signal.CLOCKS in got.unknown  # the files hold a sample of the events: no collective has a counterpart


def test_a_rank_without_a_device(shared_data: Path) -> None:
    got = opened(shared_data, "hta/cpu_only_rank-34.json.gz")
    assert (got.ranks[0].rank, got.world, got.num_steps) == (34, 300, 1)
    assert not got.devices
    assert len(got.spans) == 10
    assert {Signal.DEVICE, Signal.COMPUTE, Signal.ARRIVALS} <= got.unknown.keys()
    assert np.isnan(got.accounts).all()


def test_a_window_without_steps(shared_data: Path) -> None:
    got = opened(shared_data, "hta/simple_add.json.gz")
    assert got.num_steps == 0
    assert Signal.STEPS in got.unknown
    assert only_device(got).num_operations == 98


MIXED = (
    ("hta/sampled_rank-0.json.gz", "hta/cpu_only_rank-34.json.gz"),
    ("hta/sampled_rank-0.json.gz", "hta/sampled_rank-0.json.gz"),
    ("kineto/resnet50_workers0.pt.trace.json.gz", "kineto/resnet50_workers4.pt.trace.json.gz"),
)


@pytest.mark.parametrize("names", MIXED)
def test_traces_of_two_trainings_are_refused(shared_data: Path, names: tuple[str, str]) -> None:
    with pytest.raises(UserError) as raised:
        opened(shared_data, *names)
    assert raised.value.code == "trace-mixed"
    assert all(name in raised.value.what for name in names)
