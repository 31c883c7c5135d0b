"""Where the time of real runs went, as their supervisors and workers recorded it."""

from __future__ import annotations

import json
from datetime import datetime

import pytest


def shown(gscalar, run) -> dict:
    said = gscalar("show", run.run, "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_a_hang_costs_its_silence_and_what_follows_is_recovery(begin, gscalar) -> None:
    run = begin(
        "init", "meet=start", "pace=0.05", "a0:step=20", "a0:silent=60", "a1:resume=10", "a1:step=10", "finish",
        workers=2, options=("--set", "hang_after_s=1.5"),
    )  # fmt: skip
    assert run.wait() == 0, run.err
    goodput = shown(gscalar, run)["goodput"]
    lost = goodput["lost"]
    assert goodput["productive_s"] == pytest.approx(20 * 0.05)
    assert lost["lost_progress"] == pytest.approx(10 * 0.05)
    assert 1.5 <= lost["hang"] < 10
    assert 0.5 <= lost["recovery"] < 30  # the supervisor waits half a second before it starts anew
    assert goodput["productive_s"] + sum(filter(None, lost.values())) == pytest.approx(goodput["total_s"])
    assert (lost["data"], lost["checkpoint"]) == (None, None)  # scripted workers measure no accounts


def test_time_between_an_interruption_and_its_resumption_is_not_the_runs(begin, gscalar) -> None:
    run = begin("init", "pace=0.02", "forever", workers=1)
    run.wait_for_step(5)
    run.process.terminate()
    assert run.wait() == 75, run.err
    again = begin(arguments=["--resume", run.run])
    run.wait_for_step(5, attempt=1)
    again.process.terminate()
    assert again.wait() == 75, again.err
    found = shown(gscalar, run)
    first, second = found["attempts"]
    assert (first["outcome"], second["outcome"]) == ("stopped", "stopped")
    assert found["goodput"]["lost"]["recovery"] == 0
    # A new process of Python lies between the two, which takes far longer than what the first has to do at its end.
    pause_s = seconds(first["ended"], second["started"])
    assert found["goodput"]["total_s"] < seconds(first["started"], found["ended"]) - pause_s / 2


def seconds(first: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(first)).total_seconds()
