"""What a rank's record tells its supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from gscalar.control.watch import GangWatch, RankTrace
from gscalar.model import events
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder

HEADER = events.Header(1, "run", 0, 0, 1, "worker", "host", 77, 0.0, 1, "0")
STARTED = events.WorkerStarted(2, "p", "n", {}, {}, {})
STEP = events.Step(4, 3, 0.1, 8.0, 0.0, 0.1, 1.0)


def fold(*told: events.AnyEvent) -> RankTrace:
    trace = RankTrace(0)
    for place, event in enumerate(told):
        trace.fold(event, float(place))
    return trace


# sentence: (events, (started, armed, finished as a beat, step))
CASES: dict[str, tuple[list[events.AnyEvent], tuple[bool, bool, bool, int]]] = {
    "nothing yet": ([], (False, False, False, 0)),
    "init does not start the clock": ([HEADER, STARTED], (True, False, False, 0)),
    "the first beat after init does": ([HEADER, STARTED, events.Beat(3, "compile")], (True, True, False, 0)),
    "a beat before init does not": ([HEADER, events.Beat(3, "init")], (False, False, False, 0)),
    "the first step does": ([HEADER, STARTED, STEP], (True, True, False, 4)),
    "a resumed rank is at its checkpoint's step": (
        [HEADER, STARTED, events.Resumed(3, 20, "c")],
        (True, False, False, 20),
    ),
    "the end of the session stops the clock": (
        [HEADER, STARTED, STEP, events.Finished(4, 4, 0.0, 0.0, {})],
        (True, True, True, 4),
    ),
    "an acknowledged stop does": ([HEADER, STARTED, STEP, events.StopAcknowledged(4, 4)], (True, True, True, 4)),
    "a failure does": (
        [HEADER, STARTED, STEP, events.Failure(4, 0, 4, "user_error", "ValueError", "x")],
        (True, True, True, 4),
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_record(sentence: str) -> None:
    told, want = CASES[sentence]
    beat = fold(*told).beat()
    assert (beat.started, beat.armed, beat.finished, beat.step) == want


def test_every_frame_is_a_heartbeat() -> None:
    trace = fold(HEADER, STARTED, STEP, events.Points(4, 9, 0, b""))
    assert (trace.beat().arrived_s, trace.beat().time_ns) == (3.0, 9)


BESIDE = {
    "hardware": events.Hardware(9, 0, 0, b""),
    "an estimate of the clock": events.Clock(9, 0.0, 0.0, 0.0, 8),
    "a clock that was set": events.ClockJumped(9, 3600.0),
}


@pytest.mark.parametrize("sentence", BESIDE)
def test_what_threads_beside_the_training_write_is_no_heartbeat(sentence: str) -> None:
    trace = fold(HEADER, STARTED, STEP, BESIDE[sentence])
    assert (trace.beat().arrived_s, trace.beat().time_ns) == (2.0, 3)


def test_an_end_before_the_first_step_loses_nothing() -> None:
    assert fold(HEADER, STARTED, events.Resumed(3, 20, "c")).lost_nothing
    assert not fold(HEADER, STARTED, STEP).lost_nothing
    assert not fold(HEADER).lost_nothing


def test_an_end_after_an_acknowledged_stop_loses_nothing() -> None:
    assert fold(HEADER, STARTED, STEP, events.StopAcknowledged(4, 4)).lost_nothing


def test_the_steps_of_all_ranks_say_where_the_time_goes(home: Path) -> None:
    run = RunBuilder(Home(home)).launch(2)
    run.train(3, accounts=[{"compute": 0.06, "exposed_communication": 0.04}, {"compute": 0.1}])
    watch = GangWatch(run.folder, 0, 2)
    watch.poll(1.0)
    got = watch.progress(0)
    run.abandon()
    assert (got.step, got.world) == (3, 2)
    assert got.shares is not None
    assert (got.shares.compute, got.shares.slowest_rank) == (pytest.approx(0.8), 1)
