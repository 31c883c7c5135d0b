"""What the guard remembers, and that it signals nobody by pid alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gscalar.testing.faults import guard as module
from gscalar.testing.faults.guard import Guard, listen, read_stat, signal_process


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    signals: list[tuple[int, int, int]] = []

    def send(pid: int, ticks: int, signum: int) -> bool:
        signals.append((pid, ticks, signum))
        return True

    monkeypatch.setattr(module, "signal_process", send)
    return signals


def told(*words: tuple[str, object]) -> Guard:
    guard = Guard()
    for word, value in words:
        guard.hear(json.dumps({word: value}).encode())
    return guard


def test_who_is_held_at_the_end_goes_on(sent: list[tuple[int, int, int]]) -> None:
    told(("hold", [7, 50]), ("hold", [8, 60]), ("beat", 1), ("free", [7, 50]), ("free", [9, 1])).undo()
    assert sent == [(8, 60, signal.SIGCONT)]


def test_the_files_that_are_not_gone_are_removed(tmp_path: Path) -> None:
    kept, filler = tmp_path / "kept", tmp_path / "filler"
    kept.touch()
    filler.touch()
    told(("file", str(filler)), ("file", str(kept)), ("gone", str(kept)), ("file", str(tmp_path / "never made"))).undo()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_listening_ends_when_the_other_end_is_closed(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    read, write = os.pipe()
    os.write(write, b'{"hold": [7, 50]}\n{"hold": [8, 6')
    os.write(write, b'0]}\n{"free": [7, 50]}\n')
    os.close(write)
    guard = Guard()
    listen(read, guard, 60.0)
    os.close(read)
    assert guard.held == {(8, 60)}


def test_listening_ends_after_a_silence() -> None:
    read, write = os.pipe()
    listen(read, Guard(), 0.0)
    os.close(read)
    os.close(write)


def test_a_process_with_another_start_is_not_signalled() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    # Signal 0 asks whether a signal could be sent.
    assert signal_process(os.getpid(), stat[1], 0)
    assert not signal_process(os.getpid(), stat[1] + 1, 0)
    assert not signal_process(2**22 + 1, stat[1], 0)
