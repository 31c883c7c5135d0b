"""Where the time of a rank's step goes: spans as they nest, and accounts that sum to the step.

One thread trains, and what it does nests: a stack of open spans, the innermost of which has the time. Every
moment so belongs to exactly one account, and nothing has to be subtracted afterwards, but for one thing:
a framework exchanges gradients inside its backward, and how long nothing was computed there is known when
the backward is over. `move` then takes that time out of the backward.

Garbage collection strikes anywhere. Its span opens inside whatever is open, on the training's thread only.

A step ends with `cut`, and the next one begins at the same instant; what is open then goes on in it.
Evaluation is no part of a step: its time is in its span and in no account.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gscalar.model.accounts import ACCOUNTS
from gscalar.model.spans import Span, SpanKind

_PLACES: Final = {name: index for index, name in enumerate(ACCOUNTS)}
_OTHER: Final = _PLACES["other"]
_OUTSIDE: Final = len(ACCOUNTS)
_PLACE_OF: Final = {
    SpanKind.DATA_WAIT: _PLACES["data_wait"],
    SpanKind.H2D: _PLACES["h2d"],
    SpanKind.FORWARD: _PLACES["compute"],
    SpanKind.BACKWARD: _PLACES["compute"],
    SpanKind.COMMUNICATION: _PLACES["exposed_communication"],
    SpanKind.OPTIMIZER: _PLACES["optimizer"],
    SpanKind.CHECKPOINT: _PLACES["checkpoint"],
    SpanKind.EVALUATION: _OUTSIDE,
    SpanKind.GC: _PLACES["gc"],
    SpanKind.HOST: _PLACES["host_gap"],
}
# A loop that never ends a step (an evaluation of a million batches) must not fill the memory.
_MAX_SPANS: Final = 4096
# From one call of the session to the next, as `step` makes them, nothing has happened.
_SHORTEST_HOST_NS: Final = 5_000


class StepTiming(NamedTuple):
    """One step. `accounts_ns` are in the order of `ACCOUNTS` and sum to `duration_ns`."""

    begin_ns: int  # wall clock
    duration_ns: int
    accounts_ns: list[int]
    spans: list[Span]  # in the order of their ends, from the step's begin


class OpenSpan:
    """A span that has begun."""

    __slots__ = ("kind", "place", "start_ns", "value")

    def __init__(self, kind: SpanKind, start_ns: int, value: int) -> None:
        self.kind = kind
        self.place = _PLACE_OF[kind]
        self.start_ns = start_ns
        self.value = value


class StepClock:
    """The open spans of the training's thread, and what the open step has come to.

    `begin` returns what `end` takes. Ending a span ends those that were left open inside it, and ending one
    that has ended already does nothing: a generator may be closed long after its time.
    """

    def __init__(
        self, clock_ns: Callable[[], int] = time.perf_counter_ns, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._stack: list[OpenSpan] = []
        self._spans: list[Span] = []
        self._totals = [0] * (_OUTSIDE + 1)
        self._place = _OTHER
        self._thread = threading.get_ident()
        self._gc_span: OpenSpan | None = None
        self.restart()

    @property
    def origin_ns(self) -> int:
        """The step's begin, on the monotonic clock."""
        return self._begin_ns

    @property
    def last_ns(self) -> int:
        """When a span last began or ended, on the monotonic clock."""
        return self._last_ns

    def restart(self) -> None:
        """Begin the open step now: what was before is no part of it."""
        self._begin_ns = self._last_ns = self._clock_ns()
        self._wall_begin_ns = self._wall_ns()
        self._totals = [0] * (_OUTSIDE + 1)
        self._spans = []

    def begin(self, kind: SpanKind, value: int = 0) -> OpenSpan:
        """Open a span inside the innermost open one."""
        now_ns = self._clock_ns()
        self._totals[self._place] += now_ns - self._last_ns
        self._last_ns = now_ns
        span = OpenSpan(kind, now_ns, value)
        self._stack.append(span)
        self._place = span.place
        return span

    def end(self, span: OpenSpan, value: int | None = None) -> None:
        """Close a span and what is open inside it; nothing where it is closed."""
        stack = self._stack
        if span not in stack:
            return
        now_ns = self._clock_ns()
        self._totals[self._place] += now_ns - self._last_ns
        self._last_ns = now_ns
        if value is not None:
            span.value = value
        while stack:
            last = stack.pop()
            self._keep(last.kind, last.start_ns, now_ns - last.start_ns, last.value)
            if last is span:
                break
        self._place = stack[-1].place if stack else _OTHER

    def move(self, kind: SpanKind, start_ns: int, end_ns: int, *, out_of: SpanKind) -> None:
        """Say that from start to end (monotonic) the innermost was `kind`, where `out_of` has been counted.

        For what is known afterwards only. No more is taken than `out_of` has.
        """
        start_ns, end_ns = max(start_ns, self._begin_ns), min(end_ns, self._last_ns)
        taken_ns = min(end_ns - start_ns, self._totals[_PLACE_OF[out_of]])
        if taken_ns <= 0:
            return
        self._totals[_PLACE_OF[out_of]] -= taken_ns
        self._totals[_PLACE_OF[kind]] += taken_ns
        self._keep(kind, start_ns, end_ns - start_ns, 0)

    def cut(self) -> StepTiming:
        """End the step and begin the next one."""
        # A collection may strike at any allocation and books its time itself: the new step's totals are made
        # before the old ones are closed, and nothing is allocated in between.
        fresh_totals, fresh_spans, wall_ns = [0] * (_OUTSIDE + 1), list[Span](), self._wall_ns()
        now_ns = self._clock_ns()
        totals, spans, begin_ns = self._totals, self._spans, self._wall_begin_ns
        totals[self._place] += now_ns - self._last_ns
        self._begin_ns = self._last_ns = now_ns
        self._totals, self._spans, self._wall_begin_ns = fresh_totals, fresh_spans, wall_ns
        accounts_ns = totals[:_OUTSIDE]
        return StepTiming(begin_ns, sum(accounts_ns), accounts_ns, spans)

    def watch_gc(self) -> None:
        """Time garbage collections on this thread from now on."""
        gc.callbacks.append(self._on_gc)

    def unwatch_gc(self) -> None:
        """Stop timing garbage collections."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._gc_span = self.begin(SpanKind.GC, info["generation"])
        elif self._gc_span is not None:
            self.end(self._gc_span)
            self._gc_span = None

    def _keep(self, kind: SpanKind, start_ns: int, duration_ns: int, value: int) -> None:
        if kind is SpanKind.HOST and duration_ns < _SHORTEST_HOST_NS:
            return
        if len(self._spans) < _MAX_SPANS:
            self._spans.append(Span(kind, start_ns - self._begin_ns, duration_ns, value))
