"""When a failed run gets another attempt, after what wait, and what is said."""

from __future__ import annotations

import pytest

from gscalar.control.restarts import FailedAttempt, RestartPolicy, decide
from gscalar.model.events import Failure


def attempt(
    failure_class: str = "killed",
    message: str = "x",
    *,
    kind: str = "ValueError",
    failed_at: int = 5,
    last_step: int | None = None,
    started: bool = True,
) -> FailedAttempt:
    failure = Failure(0, 0, failed_at, failure_class, kind, message)
    return FailedAttempt(failure=failure, started=started, last_step=failed_at if last_step is None else last_step)


error = "user_error"
# sentence: (history, retries, delay or None, words of the reason)
VERDICTS = {
    "a kill is retried after half a second": ([attempt()], 3, 0.5, "restart 1 of 3"),
    "the wait doubles at each failure without progress": ([attempt(), attempt()], 3, 1.0, "restart 2 of 3"),
    "and again": ([attempt()] * 3, 3, 2.0, "restart 3 of 3"),
    "and ends at a minute": ([attempt()] * 20, 99, 60.0, "restart 20 of 99"),
    "progress sets the wait back": (
        [attempt(failed_at=5), attempt(failed_at=5), attempt(failed_at=9)],
        3,
        0.5,
        "restart 3 of 3",
    ),
    "no more than was reached before is no progress": (
        [attempt(failed_at=9), attempt(failed_at=5), attempt(failed_at=9)],
        3,
        2.0,
        "restart 3 of 3",
    ),
    "progress does not refill the budget": (
        [attempt(failed_at=1), attempt(failed_at=2), attempt(failed_at=3)],
        2,
        None,
        "all 2 restarts are used",
    ),
    "no budget, no restart": ([attempt()], 0, None, "no restarts are allowed"),
    "an error of the user's code is retried once": ([attempt(error)], 3, 0.5, "restart 1 of 3"),
    "the same error at the same step is not": (
        [attempt(error), attempt(error)],
        3,
        None,
        "the same error came twice at step 5",
    ),
    "the same error after another failure is not": (
        [attempt(error), attempt("killed"), attempt(error)],
        9,
        None,
        "the same error came twice",
    ),
    "an address in the message does not make it another error": (
        [attempt(error, "at 0x7f01"), attempt(error, "at 0x7f02")],
        3,
        None,
        "the same error came twice",
    ),
    "the same error at another step is retried": (
        [attempt(error, failed_at=5), attempt(error, failed_at=6)],
        3,
        0.5,
        "restart 2 of 3",
    ),
    "another message at the same step is retried": (
        [attempt(error, "a"), attempt(error, "b")],
        3,
        1.0,
        "restart 2 of 3",
    ),
    "a kill at the same step twice is retried": ([attempt(), attempt()], 3, 1.0, "restart 2 of 3"),
    "a hang is retried": ([attempt("hung")], 3, 0.5, "restart 1 of 3"),
    "memory that runs out is retried": ([attempt("out_of_memory")], 3, 0.5, "restart 1 of 3"),
    "an error before init is not retried": (
        [attempt(error, started=False, failed_at=0)],
        3,
        None,
        "before it calls `gscalar.init`",
    ),
    "a kill before init is retried": ([attempt(started=False, failed_at=0)], 3, 0.5, "restart 1 of 3"),
    "an error after init and before the first step is retried once": (
        [attempt(error, failed_at=0)],
        3,
        0.5,
        "restart 1 of 3",
    ),
    "what gscalar itself refuses is not retried": (
        [attempt(error, kind="TrainingError")],
        3,
        None,
        "a restart would meet the same",
    ),
}


@pytest.mark.parametrize("sentence", VERDICTS)
def test_the_verdict(sentence: str) -> None:
    history, retries, delay_s, words = VERDICTS[sentence]
    got = decide(history, RestartPolicy(retries=retries))
    assert got.restart == (delay_s is not None)
    assert got.delay_s == (delay_s or 0.0)
    assert words in got.reason
