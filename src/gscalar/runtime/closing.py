"""The last events of a worker's record: how the run ended, for all the ways it can."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping

from gscalar.base.errors import Retryable
from gscalar.model.events import AttemptEnded, Failure, Finished, RunEnded
from gscalar.model.status import FailureClass, Status
from gscalar.runtime.opening import Opened
from gscalar.runtime.own_frames import shown_traceback
from gscalar.runtime.state import RunState

_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError", "ResourceExhaustedError")


class RunEnd:
    """Writes a worker's last events once, and closes its record.

    Under a supervisor the worker only says what it knows of itself; alone or under another
    launcher, rank 0 also ends the attempt and the run.
    """

    def __init__(self, opened: Opened) -> None:
        self._writer = opened.writer
        self._rank = opened.launch.rank
        self._attempt = opened.attempt
        self._ends_run = not opened.supervised and opened.launch.rank == 0
        self._cancel_file = opened.folder.control / "cancel"
        self.is_peer_loss: Callable[[BaseException], bool] = lambda error: False
        self.step = 0
        self.status: str = Status.RUNNING
        self.failed = False
        self.closed = False
        self.before_close: list[Callable[[], None]] = []  # what must not write into a closed record

    def fail(self, error: BaseException) -> None:
        """Record an exception that leaves the script. The record stays open for what follows."""
        if self.failed or self.closed:
            return
        self.failed = True
        if isinstance(error, KeyboardInterrupt):
            self._end(Status.INTERRUPTED, "stopped", None)
            return
        kind_of = type(error)
        kind = kind_of.__name__
        failure_class = FailureClass.OUT_OF_MEMORY if kind in _OUT_OF_MEMORY else FailureClass.USER_ERROR
        text = "".join(traceback.format_exception(kind_of, error, shown_traceback(error, error.__traceback__)))
        failure = Failure(
            time.time_ns(),
            self._rank,
            self.step,
            failure_class,
            kind,
            str(error),
            text,
            self.is_peer_loss(error) or (isinstance(error, Retryable) and error.code == "peer-lost"),
        )
        self._writer.emit(failure)
        self._end(Status.FAILED, "failed", _plain(failure))

    def stop(self) -> None:
        """End resumable, after a request: acknowledged at a step border, or obeyed outside a loop."""
        if self.closed:
            return
        if not self.failed:
            cancelled = self._cancel_file.exists()  # `gscalar cancel` writes it before it sends the signal
            self._end(Status.CANCELLED if cancelled else Status.INTERRUPTED, "stopped", None)
        self._close()

    def complete(self, state: RunState, digests: Mapping[str, str]) -> None:
        """End as asked."""
        finished = Finished(time.time_ns(), state.step, state.tokens, state.samples, dict(digests))
        self._writer.emit(finished)
        self._end(Status.COMPLETED, "completed", None)
        self._close()

    def abandon(self, exit_code: int) -> None:
        """Close after a failure, or after a script that ended with a bad exit code."""
        if self.closed:
            return
        if not self.failed:
            text = f"the script ended with exit code {exit_code}"
            failure = Failure(time.time_ns(), self._rank, self.step, FailureClass.USER_ERROR, "SystemExit", text)
            self._writer.emit(failure)
            self._end(Status.FAILED, "failed", _plain(failure))
        self._close()

    def _end(self, status: Status, outcome: str, failure: dict[str, object] | None) -> None:
        self.status = status
        if self._ends_run:
            self._writer.emit(AttemptEnded(self._attempt, time.time_ns(), outcome, failure))
            self._writer.emit(RunEnded(time.time_ns(), status))

    def _close(self) -> None:
        self.closed = True
        for stop in self.before_close:
            stop()
        self._writer.close()
        if self._writer.dropped:
            # A record on a full disk cannot say so itself.
            text = f"gscalar: {self._writer.dropped} events of rank {self._rank} could not be recorded"
            print(text, file=sys.stderr)  # noqa: T201 - the script's own stderr is the last place left


def _plain(failure: Failure) -> dict[str, object]:
    names = ("rank", "step", "failure_class", "kind", "message", "traceback", "secondary")
    return {name: getattr(failure, name) for name in names}
