"""What a worker writes while it trains: named numbers, steps, notes, signs of life.

A number on the host is in the kernel when `log` returns. One on a device is copied without waiting
and written when the next step is done, so that recording never makes a device wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from gscalar.model.events import Beat, Collectives, Event, Nonfinite, Note, Spans, Step
from gscalar.model.shares import pack_shares
from gscalar.observation.threads import start_thread
from gscalar.runtime.stepping import StepResult
from gscalar.runtime.timing import TimedStep
from gscalar.state.records import RecordWriter

Scalar = Callable[[Any], Callable[[], float]]
_HOST_TYPES = frozenset((float, int, bool))
_FLUSH_EVERY_S = 5.0
_BEAT_EVERY_S = 1.0


def host_scalar(value: Any) -> Callable[[], float]:
    """Return the number of a value that is on the host."""
    number = float(value)
    return lambda: number


class Recording:
    """Owns this worker's record and the thread that makes it durable now and then."""

    def __init__(self, writer: RecordWriter, rank: int) -> None:
        self.writer = writer
        self.scalar: Scalar = host_scalar
        self.on_host = True
        self.on_warning: Callable[[str, str], None] = lambda code, text: None
        self._rank = rank
        self._waiting: list[Callable[[], None]] = []
        self._last_beat_s = -math.inf
        self._closed = threading.Event()
        start_thread(self._flush_now_and_then, "gscalar-flush")

    def emit(self, event: Event) -> None:
        """Record one event."""
        self.writer.emit(event)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Record named numbers."""
        now_ns = time.time_ns()
        if _HOST_TYPES.issuperset(map(type, values.values())):
            self.writer.log(step, now_ns, values)
            return
        staged = {name: self._staged(name, value) for name, value in values.items()}

        def write() -> None:
            self.writer.log(step, now_ns, {name: value() for name, value in staged.items()})

        # NumPy's scalars and their like are on the host too.
        if all(isinstance(value, Real) for value in values.values()):
            write()
        else:
            self._when_ready(write)

    def step(self, result: StepResult, timed: TimedStep, *, step: int, epoch: int, total_steps: int) -> None:
        """Record a step that is done, and what the step before left waiting."""
        agreement, update, now_ns = result.agreement, result.update, time.time_ns()

        def write() -> None:
            done = Step(
                step=step,
                time_ns=now_ns,
                duration_s=timed.duration_s,
                samples=agreement.samples,
                tokens=agreement.tokens,
                lr=update.lr,
                loss=result.loss() if result.loss is not None else math.nan,
                epoch=epoch,
                total_steps=total_steps,
                accounts=timed.accounts,
                shares=pack_shares(result.shares),
                own_samples=result.own.samples,
                own_tokens=result.own.tokens,
                own_weight=result.own.weight,
            )
            self.emit(done)
            self.emit(Spans(step, timed.begin_ns, timed.spans))
            if timed.collectives:
                self.emit(Collectives(step, timed.begin_ns, timed.collectives))
            if result.loss is not None and not math.isfinite(done.loss):
                self._tell_nonfinite(now_ns, step, "loss")
            if update.grad_norm is not None:
                self.writer.log(step, now_ns, {"train/grad_norm": update.grad_norm})
                if not math.isfinite(update.grad_norm):
                    self._tell_nonfinite(now_ns, step, "gradient")

        self.write_waiting()
        self._when_ready(write)

    def _tell_nonfinite(self, time_ns: int, step: int, what: str) -> None:
        self.emit(Nonfinite(time_ns, step, self._rank, what))
        self.on_warning("nonfinite", f"the {what} of step {step} is not finite")

    def note(self, text: str, code: str, level: str = "warning") -> None:
        """Record one line for people."""
        self.emit(Note(time.time_ns(), level, code, text))
        if level == "warning":
            self.on_warning(code, text)

    def beat(self, phase: str, *, now: bool = False) -> None:
        """Say that the process lives; at most once a second unless `now`."""
        now_s = time.monotonic()
        if now or now_s - self._last_beat_s >= _BEAT_EVERY_S:
            self._last_beat_s = now_s
            self.emit(Beat(time.time_ns(), phase))

    def write_waiting(self) -> None:
        """Write what waited for a device."""
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            write()

    def stop_flushing(self) -> None:
        """End the thread; the record itself is closed by whoever writes its last event."""
        self._closed.set()

    def _when_ready(self, write: Callable[[], None]) -> None:
        if self.on_host:
            write()
        else:
            self._waiting.append(write)

    def _staged(self, name: str, value: Any) -> Callable[[], float]:
        try:
            return self.scalar(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"log was given {name}={value!r}, which is no number: {error}") from error

    def _flush_now_and_then(self) -> None:
        while not self._closed.wait(_FLUSH_EVERY_S):
            self.writer.flush()
