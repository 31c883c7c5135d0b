"""Damage that is exactly what was asked, and no filler on a real disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gscalar.base.errors import UserError
from gscalar.testing.faults.disk import change_file, fill_disk

BEFORE = bytes(range(1, 201))


def damaged(tmp_path: Path, how: str, num_bytes: int, seed: int = 1) -> bytes:
    path = tmp_path / "file"
    path.write_bytes(BEFORE)
    change_file(path, how, num_bytes, random.Random(seed))
    return path.read_bytes()


def test_flipping_changes_one_bit_in_so_many_bytes(tmp_path: Path) -> None:
    after = damaged(tmp_path, "flip", 9)
    changed = [one ^ other for one, other in zip(BEFORE, after, strict=True) if one != other]
    assert len(changed) == 9
    assert all(change.bit_count() == 1 for change in changed)


def test_zeroing_overwrites_one_region(tmp_path: Path) -> None:
    after = damaged(tmp_path, "zero", 40)
    start = after.index(0)
    assert after == BEFORE[:start] + bytes(40) + BEFORE[start + 40 :]


def test_truncating_cuts_the_end(tmp_path: Path) -> None:
    assert damaged(tmp_path, "truncate", 50) == BEFORE[:150]


@pytest.mark.parametrize("how", ["flip", "zero"])
def test_the_seed_decides_where(tmp_path: Path, how: str) -> None:
    assert damaged(tmp_path, how, 5, seed=1) == damaged(tmp_path, how, 5, seed=1)
    assert len({damaged(tmp_path, how, 5, seed=seed) for seed in range(5)}) > 1


def test_a_file_that_is_too_short_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        damaged(tmp_path, "truncate", 201)
    assert caught.value.code == "fault-impossible"
    assert (tmp_path / "file").read_bytes() == BEFORE


def test_only_a_file_system_that_is_mounted_for_it_is_filled(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/")):
        with pytest.raises(UserError, match="no mounted file system") as caught:
            fill_disk(folder / ".filler", leave_bytes=0, most_bytes=1 << 20)
        assert caught.value.code == "fault-impossible"
        assert not (folder / ".filler").exists()


def test_a_large_file_system_is_taken_for_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.ismount", lambda path: True)
    with pytest.raises(UserError, match="taken for a mistake"):
        fill_disk(tmp_path / ".filler", leave_bytes=0, most_bytes=4096)
    assert not (tmp_path / ".filler").exists()
