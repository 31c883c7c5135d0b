"""Rates and the time to go, from rank 0's steps."""

from __future__ import annotations

import pytest

from gscalar.control.progress import WINDOW_S, StepWindow
from gscalar.model.events import Step


def step(number: int, at_s: float, *, total: int = 0, tokens: float = 100.0) -> Step:
    return Step(number, int(at_s * 1e9), 0.5, 8.0, tokens, 1e-3, 2.0 / number, 1, total)


def window(*steps: Step) -> StepWindow:
    made = StepWindow()
    for each in steps:
        made.add(each)
    return made


def test_without_steps_nothing_is_known() -> None:
    got = StepWindow().progress(2, 4, "starting")
    assert (got.attempt, got.world, got.phase, got.step, got.steps_per_s, got.eta_s) == (
        2,
        4,
        "starting",
        0,
        None,
        None,
    )


def test_one_step_gives_its_own_duration() -> None:
    got = window(step(1, 10.0)).progress(0, 1, "training")
    assert (got.steps_per_s, got.tokens_per_s, got.samples_per_s) == (2.0, 200.0, 16.0)


def test_rates_leave_the_first_step_out_since_its_start_is_not_known() -> None:
    got = window(step(1, 10.0, tokens=1e9), step(2, 10.25), step(3, 10.5)).progress(0, 1, "training")
    assert got.steps_per_s == pytest.approx(4.0)
    assert got.tokens_per_s == pytest.approx(400.0)


def test_old_steps_fall_out_of_the_window() -> None:
    slow_start = [step(1, 0.0), step(2, 100.0)]
    fast = [step(3 + i, 100.0 + i + 1) for i in range(int(WINDOW_S) + 5)]
    got = window(*slow_start, *fast).progress(0, 1, "training")
    assert got.steps_per_s == pytest.approx(1.0)


def test_slow_steps_keep_a_rate() -> None:
    got = window(step(1, 0.0), step(2, 100.0), step(3, 200.0)).progress(0, 1, "training")
    assert got.steps_per_s == pytest.approx(0.01)


def test_the_time_to_go_needs_the_length_of_the_training() -> None:
    known = window(step(1, 0.0, total=11), step(2, 1.0, total=11)).progress(0, 1, "training")
    unknown = window(step(1, 0.0), step(2, 1.0)).progress(0, 1, "training")
    assert known.eta_s == pytest.approx(9.0)
    assert unknown.eta_s is None


def test_tokens_that_nobody_counts_have_no_rate() -> None:
    got = window(step(1, 0.0, tokens=0), step(2, 1.0, tokens=0)).progress(0, 1, "training")
    assert got.tokens_per_s is None


def test_two_steps_at_one_instant_have_no_rate() -> None:
    got = window(step(1, 1.0), step(2, 1.0)).progress(0, 1, "training")
    assert got.steps_per_s is None
