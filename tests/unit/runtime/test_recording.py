"""What a worker records while it trains, and when: at once from the host, a step later from a device."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gscalar.model import events
from gscalar.model.accounts import pack_accounts, unpack_accounts
from gscalar.model.spans import Collective, CollectiveKind, Span, SpanKind, pack_collectives, pack_spans
from gscalar.runtime.framework import Update
from gscalar.runtime.recording import Recording
from gscalar.runtime.stepping import Agreement, OwnPart, StepResult
from gscalar.runtime.timing import TimedStep


class Kept:
    """A record writer that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.order: list[str] = []

    def emit(self, event: events.Event) -> None:
        self.events.append(event)
        self.order.append(type(event).__name__)

    def log(self, step: int, time_ns: int, values: Mapping[str, float]) -> None:
        self.logged.append((step, dict(values)))
        self.order.append(f"log {step}")

    def flush(self) -> None:
        raise AssertionError("no test takes five seconds")

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class OnDevice:
    """A number that is copied from a device: reading it before it is ready is an error."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.ready = False

    def copy(self) -> Callable[[], float]:
        def wait() -> float:
            assert self.ready, "recording made the device wait"
            return self.value

        return wait


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def recording(kept: Kept) -> Iterator[Recording]:
    recording = Recording(kept, rank=1)  # type: ignore[arg-type]
    yield recording
    recording.stop_flushing()


TIMED = TimedStep(
    begin_ns=77,
    duration_s=0.5,
    accounts=pack_accounts({"compute": 0.3, "other": 0.2}),
    spans=pack_spans([Span(SpanKind.BACKWARD, 0, 300_000_000)]),
    collectives=(),
)


def result(loss: float | Callable[[], float] = 2.0, grad_norm: float | None = None) -> StepResult:
    agreement = Agreement(samples=8.0, tokens=64.0, stop=False, checkpoint=False, nonfinite=False)
    read = loss if callable(loss) else lambda: loss
    return StepResult(Update(lr=0.1, grad_norm=grad_norm), agreement, read, own=OwnPart(2.0, 24.0, 20.0))


def record_step(recording: Recording, step: int, of: StepResult) -> None:
    recording.step(of, TIMED, step=step, epoch=1, total_steps=9)


def on_device(recording: Recording) -> None:
    recording.on_host = False
    recording.scalar = lambda value: value.copy() if isinstance(value, OnDevice) else lambda: float(value)


def test_numbers_of_the_host_are_written_before_log_returns(recording: Recording, kept: Kept) -> None:
    recording.log(3, {"a": 1.5, "b": 2, "c": True})
    assert kept.logged == [(3, {"a": 1.5, "b": 2, "c": True})]


def test_other_kinds_of_numbers_of_the_host_too(recording: Recording, kept: Kept) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 2.5

    recording.log(3, {"a": Tensor(), "b": 1})
    assert kept.logged == [(3, {"a": 2.5, "b": 1.0})]


@pytest.mark.parametrize("value", ["high", None, [1.0], object()])
def test_what_is_no_number_is_refused_by_name_and_nothing_is_written(
    value: Any, recording: Recording, kept: Kept
) -> None:
    with pytest.raises(TypeError, match=r"log was given bad="):
        recording.log(1, {"good": 1.0, "bad": value})
    assert kept.logged == []


def test_a_step_is_recorded_with_the_totals_of_all_ranks_and_this_ranks_own_part(
    recording: Recording, kept: Kept
) -> None:
    record_step(recording, 4, result(loss=2.25))
    (step,) = kept.of(events.Step)
    assert (step.step, step.samples, step.tokens, step.lr, step.loss) == (4, 8.0, 64.0, 0.1, 2.25)
    assert (step.own_samples, step.own_tokens, step.own_weight) == (2.0, 24.0, 20.0)
    assert (step.duration_s, step.epoch, step.total_steps) == (0.5, 1, 9)
    assert sum(unpack_accounts(step.accounts).values()) == step.duration_s
    assert kept.of(events.Spans) == [events.Spans(4, 77, TIMED.spans)]
    assert kept.of(events.Collectives) == []
    assert kept.logged == []


def test_a_steps_collectives_are_recorded_where_there_are_any(recording: Recording, kept: Kept) -> None:
    rows = pack_collectives([Collective(CollectiveKind.ALL_REDUCE, 0, 6, 4096, 1000, 1000, 5000)])
    timed = dataclasses.replace(TIMED, collectives=rows)
    recording.step(result(), timed, step=4, epoch=1, total_steps=9)
    assert kept.of(events.Collectives) == [events.Collectives(4, 77, rows)]


def test_the_gradients_norm_is_logged_where_there_is_one(recording: Recording, kept: Kept) -> None:
    record_step(recording, 4, result(grad_norm=0.75))
    assert kept.logged == [(4, {"train/grad_norm": 0.75})]


def test_a_loss_or_a_gradient_that_is_not_finite_is_recorded_with_its_rank(recording: Recording, kept: Kept) -> None:
    record_step(recording, 4, result(loss=math.nan))
    record_step(recording, 5, result(grad_norm=math.inf))
    record_step(recording, 6, result(grad_norm=1.0))
    got = [(event.step, event.rank, event.what) for event in kept.of(events.Nonfinite)]
    assert got == [(4, 1, "loss"), (5, 1, "gradient")]


def test_what_is_on_a_device_waits_until_the_next_step_is_done(recording: Recording, kept: Kept) -> None:
    on_device(recording)
    loss, metric = OnDevice(1.0), OnDevice(7.0)
    record_step(recording, 1, result(loss.copy()))
    recording.log(1, {"metric": metric})
    recording.log(1, {"host": 3.0})
    assert kept.order == ["log 1"]
    loss.ready = metric.ready = True
    record_step(recording, 2, result(OnDevice(0.5).copy()))
    assert kept.order == ["log 1", "Step", "Spans", "log 1"]
    assert kept.logged[1] == (1, {"metric": 7.0})


def test_the_end_writes_what_still_waits_once(recording: Recording, kept: Kept) -> None:
    on_device(recording)
    loss = OnDevice(1.0)
    record_step(recording, 1, result(loss.copy()))
    loss.ready = True
    recording.write_waiting()
    recording.write_waiting()
    assert kept.order == ["Step", "Spans"]


def test_a_sign_of_life_at_most_once_a_second_unless_it_matters(
    recording: Recording, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for moment_s, forced in ((100.0, False), (100.9, False), (100.95, True), (101.5, False), (102.0, False)):
        now_s = moment_s
        recording.beat("evaluation", now=forced)
    assert len(kept.of(events.Beat)) == 3
    assert {beat.phase for beat in kept.of(events.Beat)} == {"evaluation"}


def test_a_note_is_for_people(recording: Recording, kept: Kept) -> None:
    recording.note("look here", "note", "info")
    (note,) = kept.of(events.Note)
    assert (note.level, note.code, note.text) == ("info", "note", "look here")
