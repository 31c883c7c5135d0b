"""What the session tells its clock: whose turn it is, Scalar's or the script's, and when a step is over.

The script has the time from a batch to `step` (its forward and its loss) and from there to the next batch (what
it logs and prints). Between the two Scalar has it. A script that takes its batches from elsewhere than
`run.batches` shows all of its own work between two steps as `host_gap`: nobody can tell it apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from gscalar.model.accounts import pack_nanoseconds
from gscalar.model.spans import SpanKind, pack_collectives, pack_spans
from gscalar.observation.collectives import CollectiveLedger
from gscalar.observation.step_clock import OpenSpan, StepClock


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The time of one step, packed for the record."""

    begin_ns: int
    duration_s: float
    accounts: bytes
    spans: tuple[int, ...]
    collectives: tuple[int, ...]


class Timing:
    """The clock and the ledger of one rank's steps."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.ledger = CollectiveLedger()
        self._script: OpenSpan | None = None
        self._begun = False

    def start(self) -> None:
        """Begin the first step now, unless it has begun."""
        if not self._begun:
            self._begun = True
            self.clock.restart()
            self.clock.watch_gc()

    def stop(self) -> None:
        """Time nothing any more."""
        self.clock.unwatch_gc()

    def yield_to_script(self, kind: SpanKind = SpanKind.HOST) -> None:
        """Say that what follows is the script's own work."""
        self._script = self.clock.begin(kind)

    def resume(self) -> None:
        """Say that the script has called."""
        if self._script is not None:
            self.clock.end(self._script)
            self._script = None

    def end_backward(self, backward: OpenSpan) -> None:
        """End a backward, and take out of it what was waiting for gradients of other ranks."""
        self.clock.end(backward)
        exposed = self.ledger.exposed()
        if exposed is not None:
            self.clock.move(SpanKind.COMMUNICATION, *exposed, out_of=SpanKind.BACKWARD)

    def end_data_wait(self, waiting: OpenSpan, *, num_ready: int, transfer_s: float) -> None:
        """End the wait for a batch, the last part of which was its copy to the device."""
        self.clock.end(waiting, num_ready)
        if transfer_s:
            end_ns = self.clock.last_ns
            self.clock.move(SpanKind.H2D, end_ns - int(transfer_s * 1e9), end_ns, out_of=SpanKind.DATA_WAIT)

    def cut(self) -> TimedStep:
        """End the step; the next one begins at the same instant."""
        origin_ns = self.clock.origin_ns
        timing = self.clock.cut()
        return TimedStep(
            begin_ns=timing.begin_ns,
            duration_s=timing.duration_ns / 1e9,
            accounts=pack_nanoseconds(timing.accounts_ns),
            spans=pack_spans(timing.spans),
            collectives=pack_collectives(self.ledger.take(origin_ns)),
        )
