"""A run that was stopped in the middle of an epoch goes on with another number of workers."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gscalar.model import events
from gscalar.model.shares import Share, unpack_shares
from gscalar.state.home import RunFolder
from gscalar.state.records import Frame, read_record
from gscalar.views.samples import consumed_samples

SCRIPT = Path(__file__).parents[1] / "scripts" / "toy_train.py"
COMMAND = ["python", str(SCRIPT)]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say what the script does in every attempt; the last attempt shall not take its time."""

    def tell(**told: Any) -> None:
        monkeypatch.setenv("TOY", json.dumps(told))

    return tell


def worker_events(folder: RunFolder, attempt: int, rank: int = 0) -> Iterator[events.Event]:
    for item in read_record(folder.worker_record(attempt, rank)):
        assert isinstance(item, Frame)
        yield item.event


def shares_by_step(folder: RunFolder, attempt: int, world: int) -> dict[int, list[list[Share]]]:
    """Return for each step of an attempt what each rank took."""
    steps: dict[int, list[list[Share]]] = {}
    for rank in range(world):
        for event in worker_events(folder, attempt, rank):
            if isinstance(event, events.Step):
                steps.setdefault(event.step, [[] for _ in range(world)])[rank] += unpack_shares(event.shares)
    return steps


# (world before, world after, how it ends, samples of each rank in a step of 4 samples a worker at the start)
CHANGES = {
    "two workers become one": (2, 1, "stopped", {(8,)}),
    "two workers become three": (2, 3, "killed", {(3, 3, 2)}),
    "four workers become two": (4, 2, "stopped", {(8, 8)}),
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_goes_on_with_each_sample_once_and_the_same_steps(sentence: str, begin, gscalar, show, toy) -> None:
    before, after, end, want_sizes = CHANGES[sentence]
    per_epoch = 40
    steps, size = 2 * per_epoch, per_epoch * 4 * before
    toy(size=size, steps=steps, pace_s=0.1)
    run = begin(command=COMMAND, workers=before, options=("--set", "retries=0"))
    run.wait_for_step(5, ranks=before)
    if end == "stopped":
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 75, run.err
    else:
        os.kill(run.pids()[1], signal.SIGKILL)
        assert run.wait() == 1, run.err
    toy(size=size, steps=steps)
    resumed = gscalar("run", "--resume", run.run, "--set", f"workers={after}")
    assert resumed.returncode == 0, resumed.stderr

    for epoch in (0, 1):
        assert consumed_samples(run.folder, epoch) == Counter(range(size)), epoch
    (began,) = (event for event in worker_events(run.folder, 1) if isinstance(event, events.Resumed))
    assert 4 <= began.step < per_epoch, "the change lies inside the first epoch"
    told = shares_by_step(run.folder, 1, after)
    assert sorted(told) == list(range(began.step + 1, steps + 1))
    sizes = {tuple(sum(share.end - share.begin for share in rank) for rank in ranks) for ranks in told.values()}
    assert sizes == want_sizes
    for step, ranks in told.items():
        positions = [place for rank in ranks for share in rank for place in range(share.begin, share.end)]
        first = (step - 1) % per_epoch * 4 * before
        assert sorted(positions) == list(range(first, first + 4 * before)), "the same global batch as at the start"
    summary = show(run.run)
    assert (summary["steps"], summary["total_steps"], summary["samples"]) == (steps, steps, 2 * size)
    assert [attempt["world"] for attempt in summary["attempts"]] == [before, after]
    assert [note["code"] for note in summary["notes"] if note["code"] == "world-changed"] == ["world-changed"]
    orders = {attempt: list(worker_events(run.folder, attempt)) for attempt in (0, 1)}
    for told_events in orders.values():
        (order,) = (event for event in told_events if isinstance(event, events.SampleOrder))
        assert (order.data, order.size, order.global_batch, order.shuffle) == (0, size, 4 * before, True)


def test_data_too_small_for_the_new_world_fails_and_loses_nothing(begin, gscalar, show, toy) -> None:
    toy(size=2, steps=40, pace_s=0.1)
    run = begin(command=COMMAND)
    run.wait_for_step(4)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err
    toy(size=2, steps=40)
    refused = gscalar("run", "--resume", run.run, "--workers", "3")
    assert refused.returncode == 1
    assert "[data-too-small]" in refused.stderr
    assert "workers: 2" in refused.stderr
    assert show(run.run)["status"] == "failed"
    done = gscalar("run", "--resume", run.run, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert show(run.run)["steps"] == 40
    for epoch in range(40):
        assert consumed_samples(run.folder, epoch) == Counter([0, 1]), epoch


def test_what_the_order_follows_from_cannot_change(begin, gscalar, show, toy) -> None:
    toy(size=16, steps=4)
    run = begin(command=COMMAND)
    assert run.wait() == 0, run.err
    files = sorted(run.folder.records.iterdir())
    refused = gscalar("run", "--resume", run.run, "--set", "seed=9")
    assert refused.returncode == 2
    assert "[fixed-key]" in refused.stderr
    assert sorted(run.folder.records.iterdir()) == files
    assert len(show(run.run)["attempts"]) == 1
