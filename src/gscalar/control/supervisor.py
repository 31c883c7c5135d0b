"""A run from its first attempt of this supervisor to its end: attempts, and what lies between them.

attempt -> completed                        -> the run is completed
        -> stopped or killed on request     -> interrupted or cancelled
        -> failed -> restarts.decide        -> wait, next attempt, with a fresh rendezvous
                                            -> the run is failed
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from gscalar.base.units import format_duration
from gscalar.control.attempt import Attempt, AttemptResult, Job
from gscalar.control.display import Display, Notice
from gscalar.control.engine import Engine
from gscalar.control.requests import StopDesk
from gscalar.control.restarts import FailedAttempt, RestartPolicy, decide, same_error
from gscalar.model import events
from gscalar.model.roles import count_roles, describe_gang, describe_rank, num_processes
from gscalar.model.sink import Sink
from gscalar.model.status import Exit, FailureClass, Status

_WAIT_STEP_S: Final = 0.2
_CLASS_WORDS: Final = {
    FailureClass.USER_ERROR: "failed",
    FailureClass.KILLED: "was killed",
    FailureClass.OUT_OF_MEMORY: "ran out of memory",
    FailureClass.HUNG: "is hung",
    FailureClass.LOST: "was lost",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended, and with what exit code the command says so."""

    run: str
    status: Status
    exit_code: Exit
    attempts: int = 1
    failure: events.Failure | None = None
    reason: str = ""  # why there was no further attempt


def supervise(job: Job, *, first_attempt: int, engine: Engine, sink: Sink, display: Display, desk: StopDesk) -> Outcome:
    """Run attempts until the run is over, and record how it ended."""
    history: list[FailedAttempt] = []
    policy = RestartPolicy(retries=job.spec.retries)
    index = first_attempt
    while True:
        display.notice(Notice(level="info", text=_started(job, index)))
        result = Attempt(job, index, engine=engine, sink=sink, display=display, desk=desk).run()
        if result.failure is not None:
            again = bool(history) and same_error(history[-1].failure, result.failure)
            display.notice(_failed(result.failure, job, again=again))
        if result.outcome == "completed":
            return _end(job, sink, Status.COMPLETED, Exit.DONE, len(history) + 1)
        if desk.state.asked or desk.state.kill:
            return _stopped(job, sink, desk, result, len(history) + 1)
        assert result.failure is not None, result
        history.append(FailedAttempt(failure=result.failure, started=result.started, last_step=result.last_step))
        verdict = decide(history, policy)
        if not verdict.restart:
            display.notice(Notice(level="failure", text=f"not restarted: {verdict.reason}"))
            return _end(
                job, sink, Status.FAILED, Exit.FAILED, len(history), failure=result.failure, reason=verdict.reason
            )
        delay = format_duration(verdict.delay_s)
        display.notice(Notice(level="info", text=f"next attempt in {delay} ({verdict.reason})"))
        if not _wait(desk, verdict.delay_s):
            return _stopped(job, sink, desk, None, len(history))
        index += 1


def _wait(desk: StopDesk, delay_s: float) -> bool:
    """Sleep; False where somebody asked for a stop meanwhile."""
    deadline_s = time.monotonic() + delay_s
    while not desk.look().asked and not desk.state.kill:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return True
        time.sleep(min(left_s, _WAIT_STEP_S))
    return False


def _stopped(job: Job, sink: Sink, desk: StopDesk, result: AttemptResult | None, attempts: int) -> Outcome:
    stop = desk.state
    status = Status.CANCELLED if stop.reason == "cancelled" else Status.INTERRUPTED
    # Between attempts nothing runs, so nothing is lost.
    acknowledged = result is None or result.acknowledged
    code = Exit.RESUMABLE if acknowledged else Exit.FAILED
    if stop.num_interrupts and stop.reason != "cancelled":
        code = Exit.INTERRUPTED
    failure = result.failure if result is not None else None
    return _end(job, sink, status, code, attempts, failure=failure)


def _end(
    job: Job,
    sink: Sink,
    status: Status,
    exit_code: Exit,
    attempts: int,
    *,
    failure: events.Failure | None = None,
    reason: str = "",
) -> Outcome:
    if reason:
        sink.emit(events.Note(time.time_ns(), "info", "not-restarted", f"not restarted: {reason}"))
    sink.emit(events.RunEnded(time.time_ns(), status))
    return Outcome(run=job.run, status=status, exit_code=exit_code, attempts=attempts, failure=failure, reason=reason)


def _started(job: Job, index: int) -> str:
    return f"run {job.run}, attempt {index}: {describe_gang(count_roles(job.spec))}"


def _failed(failure: events.Failure, job: Job, *, again: bool) -> Notice:
    """Return what is said of a failure; its traceback only if the attempt before did not have the same."""
    word = _CLASS_WORDS[FailureClass(failure.failure_class)]
    who = describe_rank(job.spec, failure.rank) if num_processes(job.spec) > 1 else "the worker"
    where = f" after step {failure.step}" if failure.step else ""
    what = failure.message
    if failure.failure_class == FailureClass.USER_ERROR and failure.kind not in ("exit", "SystemExit"):
        what = f"{failure.kind}: {failure.message}" if failure.message else failure.kind
    text = f"{who} {word}{where} [{failure.failure_class}]: {what}"
    if failure.failure_class == FailureClass.HUNG:
        named = what.replace(f"rank {failure.rank} ", f"{describe_rank(job.spec, failure.rank)} ", 1)
        text = f"{named} [{failure.failure_class}]"
    if again:
        return Notice(level="failure", text=f"{text} (as in the attempt before)")
    return Notice(level="failure", text=text, detail=failure.traceback)
