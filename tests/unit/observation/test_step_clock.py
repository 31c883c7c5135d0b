"""Every moment of a step is in one account, however spans nest, end early, end late or never."""

from __future__ import annotations

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.model.accounts import ACCOUNTS
from gscalar.model.spans import Span, SpanKind
from gscalar.observation.step_clock import OpenSpan, StepClock, StepTiming

WALL_NS = 1_700_000_000_000_000_000


class Ticking:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns

    def wall(self) -> int:
        return WALL_NS + self.now_ns


@pytest.fixture
def ticking() -> Ticking:
    return Ticking()


@pytest.fixture
def clock(ticking: Ticking) -> StepClock:
    return StepClock(ticking, ticking.wall)


def spend(ticking: Ticking, ns: int) -> None:
    ticking.now_ns += ns


def accounts(timing: StepTiming) -> dict[str, int]:
    return {name: ns for name, ns in zip(ACCOUNTS, timing.accounts_ns, strict=True) if ns}


@pytest.mark.parametrize(
    ("kind", "account"),
    [
        (SpanKind.DATA_WAIT, "data_wait"),
        (SpanKind.H2D, "h2d"),
        (SpanKind.FORWARD, "compute"),
        (SpanKind.BACKWARD, "compute"),
        (SpanKind.COMMUNICATION, "exposed_communication"),
        (SpanKind.OPTIMIZER, "optimizer"),
        (SpanKind.CHECKPOINT, "checkpoint"),
        (SpanKind.GC, "gc"),
        (SpanKind.HOST, "host_gap"),
    ],
)
def test_a_span_has_its_account_and_what_is_outside_of_all_is_other(
    kind: SpanKind, account: str, clock: StepClock, ticking: Ticking
) -> None:
    spend(ticking, 10_000)
    span = clock.begin(kind, 3)
    spend(ticking, 500_000)
    clock.end(span)
    spend(ticking, 1)
    timing = clock.cut()
    assert accounts(timing) == {account: 500_000, "other": 10_001}
    assert timing.spans == [Span(kind, 10_000, 500_000, 3)]
    assert (timing.begin_ns, timing.duration_ns) == (WALL_NS + 1_000, 510_001)


def test_there_is_a_span_for_every_account_but_other() -> None:
    assert len(ACCOUNTS) == 9
    assert list(ACCOUNTS)[-1] == "other"


def test_an_inner_span_has_its_time_to_itself(clock: StepClock, ticking: Ticking) -> None:
    backward = clock.begin(SpanKind.BACKWARD)
    spend(ticking, 100)
    collection = clock.begin(SpanKind.GC, 2)
    spend(ticking, 7)
    clock.end(collection)
    spend(ticking, 50)
    clock.end(backward)
    timing = clock.cut()
    assert accounts(timing) == {"compute": 150, "gc": 7}
    assert timing.spans == [Span(SpanKind.GC, 100, 7, 2), Span(SpanKind.BACKWARD, 0, 157, 0)]


def test_evaluation_is_no_part_of_the_step_and_has_a_span(clock: StepClock, ticking: Ticking) -> None:
    spend(ticking, 5)
    evaluation = clock.begin(SpanKind.EVALUATION)
    spend(ticking, 1_000_000)
    clock.end(evaluation)
    spend(ticking, 6)
    timing = clock.cut()
    assert (timing.duration_ns, accounts(timing)) == (11, {"other": 11})
    assert timing.spans == [Span(SpanKind.EVALUATION, 5, 1_000_000, 0)]


def test_ending_a_span_ends_what_was_left_open_inside(clock: StepClock, ticking: Ticking) -> None:
    outer = clock.begin(SpanKind.HOST)
    spend(ticking, 10_000)
    inner = clock.begin(SpanKind.EVALUATION)
    spend(ticking, 20_000)
    clock.end(outer)
    spend(ticking, 40_000)
    clock.end(inner)
    assert accounts(clock.cut()) == {"host_gap": 10_000, "other": 40_000}


def test_ending_twice_does_nothing(clock: StepClock, ticking: Ticking) -> None:
    forward = clock.begin(SpanKind.FORWARD)
    clock.end(forward)
    optimizer = clock.begin(SpanKind.OPTIMIZER)
    clock.end(forward)
    spend(ticking, 9)
    clock.end(optimizer)
    timing = clock.cut()
    assert accounts(timing) == {"optimizer": 9}
    assert len(timing.spans) == 2


def test_a_span_over_a_cut_has_its_time_in_both_steps(clock: StepClock, ticking: Ticking) -> None:
    host = clock.begin(SpanKind.HOST)
    spend(ticking, 10_000)
    first = clock.cut()
    spend(ticking, 30_000)
    clock.end(host)
    second = clock.cut()
    assert (accounts(first), first.spans) == ({"host_gap": 10_000}, [])
    assert (accounts(second), second.spans) == ({"host_gap": 30_000}, [Span(SpanKind.HOST, -10_000, 40_000, 0)])
    assert second.begin_ns == first.begin_ns + 10_000


def test_what_is_moved_leaves_its_account_and_the_sum_stays(clock: StepClock, ticking: Ticking) -> None:
    backward = clock.begin(SpanKind.BACKWARD)
    spend(ticking, 100)
    clock.end(backward)
    clock.move(SpanKind.COMMUNICATION, 1_060, 1_090, out_of=SpanKind.BACKWARD)
    timing = clock.cut()
    assert accounts(timing) == {"compute": 70, "exposed_communication": 30}
    assert timing.spans[-1] == Span(SpanKind.COMMUNICATION, 60, 30, 0)


@pytest.mark.parametrize(
    ("start", "end", "moved"),
    [(0, 5_000, 100), (1_100, 1_050, 0), (1_080, 9_000, 20), (0, 900, 0)],
    ids=["more than there is", "backwards", "beyond the end", "before the step"],
)
def test_no_more_is_moved_than_there_is(start: int, end: int, moved: int, clock: StepClock, ticking: Ticking) -> None:
    backward = clock.begin(SpanKind.BACKWARD)
    spend(ticking, 100)
    clock.end(backward)
    clock.move(SpanKind.COMMUNICATION, start, end, out_of=SpanKind.BACKWARD)
    got = accounts(clock.cut())
    assert got.get("exposed_communication", 0) == moved
    assert sum(got.values()) == 100


def test_a_restart_forgets_what_was_before(clock: StepClock, ticking: Ticking) -> None:
    clock.end(clock.begin(SpanKind.FORWARD))
    spend(ticking, 70)
    clock.restart()
    spend(ticking, 2)
    timing = clock.cut()
    assert (timing.duration_ns, timing.spans, timing.begin_ns) == (2, [], WALL_NS + 1_070)


def test_a_step_without_end_keeps_a_bounded_number_of_spans(clock: StepClock, ticking: Ticking) -> None:
    for _ in range(5_000):
        span = clock.begin(SpanKind.BACKWARD)
        spend(ticking, 1)
        clock.end(span)
    timing = clock.cut()
    assert len(timing.spans) == 4096
    assert timing.duration_ns == 5_000


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SpanKind), st.integers(0, 10_000)), max_size=60))
def test_accounts_sum_to_the_step_whatever_begins_and_ends(actions: list[tuple[int, SpanKind, int]]) -> None:
    ticking = Ticking()
    clock = StepClock(ticking, ticking.wall)
    begun: list[OpenSpan] = []
    for action, kind, ns in actions:
        spend(ticking, ns)
        if action < 2:
            begun.append(clock.begin(kind))
        elif begun:
            clock.end(begun[ns % len(begun)])
    timing = clock.cut()
    assert sum(timing.accounts_ns) == timing.duration_ns
    assert min(timing.accounts_ns) >= 0
    left_out_ns = ticking.now_ns - 1_000 - timing.duration_ns
    evaluated = any(kind is SpanKind.EVALUATION for _, kind, _ in actions)
    assert left_out_ns >= 0 if evaluated else left_out_ns == 0


def test_garbage_collection_is_timed_on_this_thread_only() -> None:
    clock = StepClock()
    clock.watch_gc()
    try:
        gc.collect()
        here = clock.cut()
        other = threading.Thread(target=gc.collect)
        other.start()
        other.join()
        elsewhere = clock.cut()
    finally:
        clock.unwatch_gc()
    gc.collect()
    after = clock.cut()
    assert [(span.kind, span.value) for span in here.spans] == [(SpanKind.GC, 2)]
    assert here.spans[0].duration_ns == accounts(here)["gc"]
    assert (elsewhere.spans, after.spans) == ([], [])
