"""Signals, requests and deadlines: what becomes of a stop."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from gscalar.control.stopping import StopState, on_request, on_signal, on_time

Turn = Callable[[StopState], StopState]
GRACE_S = 60.0


def sent(signum: int, *, at: float = 0.0, cancelled: bool = False) -> Turn:
    return lambda state: on_signal(state, signum, cancelled=cancelled, now_s=at, grace_s=GRACE_S)


def time_is(now_s: float) -> Turn:
    return lambda state: on_time(state, now_s)


def asked(reason: str) -> Turn:
    return lambda state: on_request(state, reason, now_s=0.0, grace_s=GRACE_S)


TERM, INT = signal.SIGTERM, signal.SIGINT
# sentence: (turns, reason, kill, deadline)
CASES: dict[str, tuple[list[Turn], str, bool, float]] = {
    "nothing happens": ([time_is(1e9)], "", False, float("inf")),
    "SIGTERM is a preemption with a deadline": ([sent(TERM, at=5)], "preempted", False, 65.0),
    "SIGTERM with a cancel file is a cancel": ([sent(TERM, cancelled=True)], "cancelled", False, 60.0),
    "Ctrl-C is an interruption": ([sent(INT)], "interrupted", False, 60.0),
    "Ctrl-C twice kills": ([sent(INT), sent(INT, at=1)], "interrupted", True, 60.0),
    "SIGTERM twice changes nothing": ([sent(TERM), sent(TERM, at=30)], "preempted", False, 60.0),
    "Ctrl-C after SIGTERM waits": ([sent(TERM), sent(INT)], "preempted", False, 60.0),
    "and twice after SIGTERM kills": ([sent(TERM), sent(INT), sent(INT)], "preempted", True, 60.0),
    "before the deadline nobody is killed": ([sent(TERM), time_is(59.9)], "preempted", False, 60.0),
    "at the deadline all are": ([sent(TERM), time_is(60.0)], "preempted", True, 60.0),
    "a request by file": ([asked("cancelled")], "cancelled", False, 60.0),
    "the first reason stays": ([sent(INT), asked("cancelled")], "interrupted", False, 60.0),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_stop(sentence: str) -> None:
    turns, reason, kill, deadline_s = CASES[sentence]
    state = StopState()
    for turn in turns:
        state = turn(state)
    assert (state.reason, state.kill, state.deadline_s) == (reason, kill, deadline_s)
    assert state.asked == bool(reason)
