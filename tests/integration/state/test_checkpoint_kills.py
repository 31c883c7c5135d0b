"""Processes killed while they save; `benchmarks/checkpoints.py` does the same 200 times."""

from __future__ import annotations

from pathlib import Path

from gscalar.testing.checkpoint_kills import kill_writers


def test_twenty_kills_around_saves_never_leave_a_latest_that_does_not_load(tmp_path: Path) -> None:
    report = kill_writers(tmp_path, kills=20, seed=20)
    assert report.broken == []
    assert report.kills == 20
    assert report.in_a_save >= 3, f"the kills missed the saves: {report}"
