"""Who says lines on stderr, and how often."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gscalar.model.spec import JobSpec
from gscalar.runtime.telling import Telling


def telling(*, supervised: bool = False, rank: int = 0, world: int = 1) -> Telling:
    opened: Any = SimpleNamespace(
        run_id="r1",
        name="mine",
        attempt=2,
        supervised=supervised,
        launch=SimpleNamespace(rank=rank, world=world),
        gang=SimpleNamespace(rank=rank, world=world),
        resolved=SimpleNamespace(spec=JobSpec(workers=world)),
        folder=SimpleNamespace(path=Path("/home/runs/r1")),
    )
    return Telling(opened)


def test_alone_the_run_says_which_it_is_and_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    alone = telling(world=2)
    alone.begun()
    alone.ended("interrupted", 7)
    assert capsys.readouterr().err.splitlines() == [
        "gscalar: run r1 (mine), attempt 2, 2 workers",
        "gscalar: record /home/runs/r1",
        "gscalar: run r1 interrupted after step 7; gscalar show r1",
    ]


@pytest.mark.parametrize("place", [{"supervised": True}, {"rank": 1}], ids=["under a supervisor", "another rank"])
def test_nothing_is_said_twice(place: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    telling(**place).begun()
    assert capsys.readouterr() == ("", "")


def test_a_warning_is_said_three_times_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    alone = telling()
    for step in range(5):
        alone.warn("nonfinite", f"step {step}")
    alone.warn("other", "another")
    assert capsys.readouterr().err.splitlines() == [
        "gscalar: step 0", "gscalar: step 1", "gscalar: step 2; further ones are only recorded", "gscalar: another",
    ]  # fmt: skip


def test_a_closed_stderr_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    telling().begun()
