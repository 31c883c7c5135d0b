"""The keeper's way with what workers print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gscalar.engines.local.keeper import _Log


def test_a_worker_that_prints_without_end_does_not_hold_the_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, other_end = os.pipe()
    file = tmp_path / "rank-00000.log"
    log = _Log(str(file), pipe)
    monkeypatch.setattr(os, "read", lambda fd, num_bytes: b"x" * num_bytes)
    log.pump()
    monkeypatch.undo()
    assert log.open
    # The largest pipe of an unprivileged process is emptied by one call.
    assert file.stat().st_size == 1 << 20
    log.close()
    os.close(other_end)


def test_the_end_of_the_output_closes_the_log(tmp_path: Path) -> None:
    pipe, other_end = os.pipe()
    file = tmp_path / "rank-00000.log"
    log = _Log(str(file), pipe)
    os.write(other_end, b"last words")
    os.close(other_end)
    log.pump()
    assert not log.open
    assert file.read_bytes() == b"last words"
