"""The goodput of runs that builders have written. Steps take a second; the builder's own moves are of 0.1 s and less.

`launch` tells of the attempt 0.1 s (and 0.2 s with a checkpoint) before the workers go on, `fail` and `finish` take
10 ms, the end of an attempt and of a run 0.1 s each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gscalar.model import events
from gscalar.testing.builders import RunBuilder

STEP = {"compute": 0.75, "data_wait": 0.125, "checkpoint": 0.0625, "other": 0.0625}
DAY_S = 86_400.0


def train(run: RunBuilder, num_steps: int, *, after_s: float = 0.0) -> RunBuilder:
    run.clock.advance(after_s)
    return run.train(num_steps, accounts=[STEP])


def one_attempt(run: RunBuilder) -> None:
    train(run.launch(2), 8, after_s=10.0).finish().end()


def killed_and_resumed(run: RunBuilder) -> None:
    train(train(run.launch(2), 4, after_s=10.0).checkpoint(), 2).fail().end_attempt("failed")
    run.clock.advance(1.0)
    train(run.launch(2, from_step=4), 4, after_s=5.0).finish().end()


def hung(run: RunBuilder) -> None:
    train(run.launch(2), 4, after_s=10.0)
    silent_s = 30.0
    # Threads beside the training go on, and are no signs of life.
    run.tell(events.Clock(run.clock.advance(silent_s / 2), 0.0, 0.0, 0.0, 1))
    verdict_ns = run.clock.advance(silent_s / 2)
    run.tell_owner(events.Failure(verdict_ns, 1, 4, "hung", "hang", "rank 1 gave no heartbeat"))
    run.end_attempt("failed")
    train(run.launch(2, from_step=4), 4, after_s=5.0).finish().end()


def failed_twice_before_a_step(run: RunBuilder) -> None:
    train(run.launch(), 4, after_s=10.0).checkpoint().fail().end_attempt("failed")
    run.clock.advance(1.0)
    run.launch().clock.advance(7.0)
    run.fail().end_attempt("failed")
    run.clock.advance(2.0)
    train(run.launch(from_step=4), 4, after_s=5.0).finish().end()


def interrupted_for_a_day(run: RunBuilder) -> None:
    train(run.launch(), 4, after_s=10.0).checkpoint().end("interrupted")
    run.clock.advance(DAY_S)
    train(run.launch(from_step=4), 4, after_s=5.0).finish().end()


def going(run: RunBuilder) -> None:
    train(run.launch(), 4, after_s=10.0)
    run.tell(events.Beat(run.clock.advance(3.0), "evaluation"))


def supervisor_died(run: RunBuilder) -> None:
    train(run.launch(), 4, after_s=10.0).checkpoint().abandon()
    run.clock.advance(DAY_S)
    train(run.launch(from_step=4), 4, after_s=5.0).finish().end()


def clock_jumped(run: RunBuilder) -> None:
    train(train(run.launch(), 4, after_s=10.0).jump(3600.0), 4).finish().end()


def clock_jumped_while_waiting(run: RunBuilder) -> None:
    train(run.launch(), 4, after_s=10.0).checkpoint().fail().end_attempt("failed").jump(-3600.0)
    train(run.launch(from_step=4), 4, after_s=5.0).finish().end()


Build = Callable[[RunBuilder], None]
# sentence: (what happens, seconds: productive, and lost to)
CASES: dict[str, tuple[Build, dict[str, float]]] = {
    "one attempt": (
        one_attempt,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "other": 0.21},
    ),
    # Steps 5 and 6 are done again. From the failure: 0.1 s to the end, 1 s, 0.1 s to the launch, 0.2 + 5 s.
    "a kill after a checkpoint and the next attempt": (
        killed_and_resumed,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "lost_progress": 2.0,
         "recovery": 0.1 + 1.0 + 0.1 + 5.2, "other": 0.01 + 0.01 + 0.21},
    ),
    "a hang": (
        hung,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "hang": 30.0,
         "recovery": 0.1 + 0.1 + 5.2, "other": 0.21},
    ),
    "two failures in a row before the next first step": (
        failed_twice_before_a_step,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1,
         "recovery": 0.1 + 1.0 + 0.1 + (0.1 + 7.0 + 0.01) + 0.1 + 2.0 + 0.1 + 5.2, "other": 0.01 + 0.01 + 0.21},
    ),
    "the pause of a run that was interrupted on purpose is not the run's": (
        interrupted_for_a_day,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1 + 5.2, "other": 0.01 + 0.2 + 0.21},
    ),
    "a run that still goes on ends with its newest event": (
        going,
        {"productive": 3.25, "data": 0.5, "checkpoint": 0.25, "start": 10.1, "other": 3.0},
    ),
    "after the death of a supervisor time does not count, and its return is a recovery": (
        supervisor_died,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "recovery": 5.2, "other": 0.01 + 0.21},
    ),
    "an hour that the clock jumped is no time": (
        clock_jumped,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "other": 0.21},
    ),
    "an hour that the clock jumped back between attempts is no time": (
        clock_jumped_while_waiting,
        {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "recovery": 0.1 + 0.1 + 5.2,
         "other": 0.01 + 0.01 + 0.21},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", CASES)
def test_goodput(sentence: str, summed: Callable[..., Any]) -> None:
    build, want = CASES[sentence]
    check(summed(build).measured["goodput"], want)


def check(found: dict[str, Any], want: dict[str, float]) -> None:
    got = {"productive": found["productive_s"]} | {name: each for name, each in found["lost"].items() if each}
    assert got == pytest.approx(want)
    assert found["total_s"] == pytest.approx(sum(want.values()))
    assert found["ratio"] == pytest.approx(want["productive"] / sum(want.values()))


def test_a_script_alone_has_no_supervisor(summed: Callable[..., Any]) -> None:
    want = {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "other": 0.11}
    check(summed(one_attempt, alone=True).measured["goodput"], want)


def test_a_script_alone_that_is_started_again_waits_for_nobody(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        train(run.launch(), 4, after_s=10.0).checkpoint().abandon()
        run.clock.advance(DAY_S)
        train(run.launch(from_step=4), 4, after_s=5.0).finish().end()

    want = {"productive": 6.5, "data": 1.0, "checkpoint": 0.5, "start": 10.1, "recovery": 5.2, "other": 0.01 + 0.11}
    check(summed(build, alone=True).measured["goodput"], want)


def test_a_program_without_steps_has_no_goodput(summed: Callable[..., Any]) -> None:
    assert summed(lambda run: run.launch().end()).measured["goodput"] is None
    assert summed(lambda run: run).measured["goodput"] is None
