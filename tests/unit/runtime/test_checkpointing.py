"""When a checkpoint is due, how it is written beside the training, and what a full disk does to it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gscalar.model import events
from gscalar.model.spec import CheckpointPolicy
from gscalar.runtime.checkpointing import Checkpointer
from gscalar.runtime.framework import Snapshot
from gscalar.state.checkpoints import list_checkpoints, read_latest, verify_checkpoint
from gscalar.testing.disk_faults import disk_faults


class Kept:
    """A sink that keeps events in order, seals too."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: events.Event) -> None:
        self.events.append(event)

    def log(self, step: int, time_ns: int, values: object) -> None:
        raise AssertionError("checkpoints log nothing")

    def seal(self, reason: str) -> None:
        self.events.append(f"seal {reason}")

    def names(self) -> list[str]:
        return [event if isinstance(event, str) else type(event).__name__ for event in self.events]

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    path.mkdir()
    (path / "all.json").write_text(json.dumps(arrays))


def read_arrays(path: Path) -> dict[str, Any]:
    return json.loads((path / "all.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def make(folder: Path, kept: Kept, writing: Any = write_arrays, **policy: Any) -> Checkpointer:
    return Checkpointer(
        folder,
        CheckpointPolicy(**policy),
        kept,
        facts={"run": "r", "attempt": 0, "world": 2},
        write_arrays=writing,
        read_arrays=read_arrays,
    )


def save(checkpointer: Checkpointer, step: int, *, wait: bool = True) -> None:
    snapshot = Snapshot(arrays={"w": [1.0 * step]}, values={"lr": 0.1})
    checkpointer.save(step, snapshot, {"step": step}, [b"rank 0", b"rank 1"], time.monotonic())
    if wait:
        checkpointer.wait()


def test_what_was_saved_is_loaded(tmp_path: Path, kept: Kept) -> None:
    save(make(tmp_path, kept), 7)
    again = make(tmp_path, kept)
    path, damaged = again.newest()
    assert path is not None
    assert damaged == []
    restored = again.load(path.name)
    assert restored.step == 7
    assert restored.snapshot == Snapshot(arrays={"w": [7.0]}, values={"lr": 0.1})
    assert restored.run_state == {"step": 7}
    assert restored.ranks == [b"rank 0", b"rank 1"]
    assert again.is_saved(7)


def test_blobs_of_many_ranks_stay_in_rank_order(tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept)
    ranks = [str(rank).encode() for rank in range(12)]
    checkpointer.save(1, Snapshot({}, {}), {"step": 1}, ranks, time.monotonic())
    checkpointer.wait()
    path, _ = checkpointer.newest()
    assert path is not None
    assert checkpointer.load(path.name).ranks == ranks


def test_it_is_recorded_when_it_is_durable_and_the_record_is_sealed(tmp_path: Path, kept: Kept) -> None:
    save(make(tmp_path, kept), 7)
    # A slow disk would add signs of life.
    assert [name for name in kept.names()[1:] if name != "Beat"] == ["CheckpointSaved", "seal checkpoint"]
    assert kept.names()[0] == "Beat"
    (saved,) = kept.of(events.CheckpointSaved)
    (found,) = list_checkpoints(tmp_path)
    assert (saved.step, saved.path) == (7, f"{tmp_path.name}/{found.path.name}")
    assert (saved.num_bytes, saved.sha256) == (found.num_bytes, found.sha256)
    assert saved.stall_s >= 0
    assert saved.write_s > 0


def test_training_goes_on_while_it_is_written_and_one_write_is_in_flight_at_a_time(tmp_path: Path, kept: Kept) -> None:
    may_write, running, most = threading.Event(), [], []

    def slow(path: Path, arrays: dict[str, Any]) -> None:
        running.append(1)
        most.append(len(running))
        assert may_write.wait(30)
        write_arrays(path, arrays)
        running.pop()

    checkpointer = make(tmp_path, kept, slow, keep=5)
    save(checkpointer, 1, wait=False)
    assert kept.of(events.CheckpointSaved) == []
    may_write.set()
    save(checkpointer, 2, wait=False)
    checkpointer.wait()
    assert [saved.step for saved in kept.of(events.CheckpointSaved)] == [1, 2]
    assert most == [1, 1]


def test_a_slow_disk_is_told_as_stall(tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept)
    checkpointer.save(1, Snapshot({}, {}), {"step": 1}, [b""], time.monotonic() - 5.0)
    checkpointer.wait()
    assert kept.of(events.CheckpointSaved)[0].stall_s >= 5.0


def test_old_ones_are_pruned_and_that_is_recorded(tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept, keep=2)
    for step in (3, 6, 9):
        save(checkpointer, step)
    assert [saved.step for saved in list_checkpoints(tmp_path)] == [9, 6]
    (removed,) = kept.of(events.CheckpointRemoved)
    first = kept.of(events.CheckpointSaved)[0]
    assert (removed.step, removed.path, removed.reason) == (3, first.path, "pruned")


FAULTS = {"the disk is full": "full", "a call fails once": "fail"}


@pytest.mark.parametrize("case", FAULTS)
def test_a_disk_that_fails_costs_the_checkpoint_and_not_the_training(case: str, tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept)
    save(checkpointer, 3)
    with disk_faults(at=2, kind=FAULTS[case]) as faults:
        save(checkpointer, 6)
    assert faults.struck
    (failed,) = kept.of(events.CheckpointFailed)
    assert failed.step == 6
    assert "OSError" in failed.reason
    assert [saved.step for saved in list_checkpoints(tmp_path)] == [3]
    latest = read_latest(tmp_path)
    assert latest is not None
    verify_checkpoint(latest)
    save(checkpointer, 9)
    assert [saved.step for saved in list_checkpoints(tmp_path)] == [9, 3]


def test_a_failure_is_known_until_the_next_write_and_can_be_forgotten_as_saved(tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept)
    with disk_faults(at=2, kind="full"):
        save(checkpointer, 6)
    assert checkpointer.failed
    assert checkpointer.is_saved(6), "other ranks believe so too, until all agree"
    checkpointer.forget()
    assert not checkpointer.is_saved(6)
    save(checkpointer, 6)
    assert not checkpointer.failed
    assert [saved.step for saved in list_checkpoints(tmp_path)] == [6]


def test_waiting_for_a_slow_disk_gives_signs_of_life(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gscalar.runtime.checkpointing._BEAT_EVERY_S", 0.001)
    beaten = threading.Event()
    monkeypatch.setattr(kept, "emit", lambda event: (Kept.emit(kept, event), len(kept.events) > 3 and beaten.set()))

    def slow(path: Path, arrays: dict[str, Any]) -> None:
        assert beaten.wait(30)
        write_arrays(path, arrays)

    save(make(tmp_path, kept, slow), 1)
    assert kept.names()[:3] == ["Beat"] * 3
    assert kept.of(events.CheckpointSaved)


def test_a_state_that_cannot_be_written_is_told_too(tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept)
    checkpointer.save(1, Snapshot({}, {"odd": object()}), {"step": 1}, [b""], time.monotonic())
    checkpointer.wait()
    (failed,) = kept.of(events.CheckpointFailed)
    assert "object" in failed.reason
    assert list_checkpoints(tmp_path) == []


def test_a_pruning_that_fails_is_told_and_the_new_checkpoint_stands(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, keep: int, **options: Any) -> list[Path]:
        raise OSError("read-only")

    monkeypatch.setattr("gscalar.runtime.checkpointing.prune_checkpoints", refuse)
    save(make(tmp_path, kept), 3)
    assert "pruning failed: read-only" in kept.of(events.CheckpointFailed)[0].reason
    assert [saved.step for saved in list_checkpoints(tmp_path)] == [3]


def test_a_damaged_one_is_passed_over_with_the_reason(tmp_path: Path, kept: Kept) -> None:
    checkpointer = make(tmp_path, kept)
    for step in (3, 6):
        save(checkpointer, step)
    newest, before = (saved.path for saved in list_checkpoints(tmp_path))
    (newest / "arrays" / "all.json").write_text("[]")
    path, damaged = checkpointer.newest()
    assert path == before
    assert [bad for bad, _ in damaged] == [newest]


def test_nothing_there_is_a_fresh_start(tmp_path: Path, kept: Kept) -> None:
    assert make(tmp_path / "absent", kept).newest() == (None, [])


def test_when_one_is_due(tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    checkpointer = make(tmp_path, kept, every_s=10.0, every_steps=4)
    assert [step for step in range(1, 13) if checkpointer.due_by_step(step)] == [4, 8, 12]
    jumping = [(1, 0), (3, 1), (5, 3), (7, 5), (13, 7)]  # a trainer with several optimizers counts every move
    assert [step for step, before in jumping if checkpointer.due_by_step(step, before)] == [5, 13]
    assert not checkpointer.due_by_time()
    now_s = 1010.0
    assert checkpointer.due_by_time()
    checkpointer.skip(4)
    assert checkpointer.is_saved(4)
    assert not checkpointer.due_by_time()
    now_s = 1020.0
    assert checkpointer.due_by_time()


WANTED = {
    "by time": ({"every_s": 5.0, "every_steps": None}, True),
    "by step": ({"every_s": None, "every_steps": 5}, True),
    "never": ({"every_s": None, "every_steps": None}, False),
}


@pytest.mark.parametrize("case", WANTED)
def test_the_end_of_training_writes_one_unless_none_are_wanted_at_all(case: str, tmp_path: Path, kept: Kept) -> None:
    policy, want = WANTED[case]
    checkpointer = make(tmp_path, kept, **policy)
    assert checkpointer.wanted_at_end is want
    if not want:
        assert not checkpointer.due_by_time()
        assert not checkpointer.due_by_step(5)
