"""Retention counts from the newest that loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from gscalar.state.checkpoints import (
    SavedCheckpoint,
    list_checkpoints,
    prune_checkpoints,
    read_latest,
    save_checkpoint,
)

# Steps 1 to 5 are saved; which are damaged, how many are kept; which are left, newest first.
CASES: dict[str, tuple[set[int], int, list[int]]] = {
    "the newest few stay": (set(), 2, [5, 4]),
    "one is enough": (set(), 1, [5]),
    "all stay where there are no more": (set(), 5, [5, 4, 3, 2, 1]),
    "more are allowed than there are": (set(), 9, [5, 4, 3, 2, 1]),
    "a damaged newest does not count": ({5}, 1, [5, 4]),
    "the newest that loads stays, however old": ({5, 4, 3, 2}, 1, [5, 4, 3, 2, 1]),
    "damage below the newest that loads is counted": ({3}, 3, [5, 4, 3]),
    "nothing goes where nothing loads": ({1, 2, 3, 4, 5}, 1, [5, 4, 3, 2, 1]),
}


def save(folder: Path, step: int) -> SavedCheckpoint:
    return save_checkpoint(folder, step, {}, lambda draft: (draft / "file").write_text("x"))


def steps(folder: Path) -> list[int]:
    return [each.step for each in list_checkpoints(folder)]


@pytest.mark.parametrize("sentence", CASES)
def test_pruning(sentence: str, tmp_path: Path) -> None:
    damaged, keep, want = CASES[sentence]
    for step in range(1, 6):
        saved = save(tmp_path, step)
        if step in damaged:
            (saved.path / "file").write_text("rot")
    removed = prune_checkpoints(tmp_path, keep)
    assert steps(tmp_path) == want
    assert sorted(path.name for path in removed) == [f"step-{step:012d}" for step in range(1, 6) if step not in want]
    assert list(tmp_path.glob(".*")) == []


def test_latest_never_names_what_is_pruned(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "latest").write_text("step-000000000001\n")  # a crash after the rename, before `latest`
    prune_checkpoints(tmp_path, 1)
    assert read_latest(tmp_path) == tmp_path / "step-000000000002"


def test_a_trusted_checkpoint_is_not_read_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    trusted = save(tmp_path, 2)
    (trusted.path / "file").write_text("rot")
    prune_checkpoints(tmp_path, 1, trusted=trusted)
    assert steps(tmp_path) == [2]


def test_a_missing_folder_has_nothing_to_prune(tmp_path: Path) -> None:
    assert prune_checkpoints(tmp_path / "missing", 1) == []
