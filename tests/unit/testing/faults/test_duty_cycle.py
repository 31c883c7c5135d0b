"""A slowed target runs its share of the time, however late the sleeps come back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gscalar.testing.faults.duty_cycle import DutyCycle

PERIOD_S = 0.02


def play(factor: float, periods: int, late_s: Callable[[], float]) -> DutyCycle:
    duty = DutyCycle(factor, PERIOD_S)
    for _ in range(periods):
        duty.ran(duty.plan_run_s() + late_s())
        if (hold_s := duty.plan_hold_s()) > 0:
            duty.held(hold_s + late_s())
    return duty


def test_punctual_phases_are_those_of_the_factor() -> None:
    duty = DutyCycle(4.0, PERIOD_S)
    assert duty.plan_run_s() == pytest.approx(0.005)
    duty.ran(0.005)
    assert duty.plan_hold_s() == pytest.approx(0.015)
    duty.held(0.015)
    assert duty.plan_run_s() == pytest.approx(0.005)


@pytest.mark.parametrize("factor", [1.1, 1.5, 2.0, 5.0, 20.0])
def test_late_sleeps_do_not_change_the_speed(factor: float) -> None:
    rng = random.Random(1)
    duty = play(factor, 2000, lambda: rng.expovariate(1 / 0.001))
    speed = duty.ran_s / (duty.ran_s + duty.held_s)
    assert speed == pytest.approx(1 / factor, rel=0.02)


def test_a_hold_that_was_too_long_is_given_back() -> None:
    duty = DutyCycle(2.0, PERIOD_S)
    duty.ran(0.01)
    duty.held(0.05)  # 0.04 too long
    assert duty.plan_run_s() == pytest.approx(0.01 + 0.04)
    duty.ran(duty.plan_run_s())
    assert duty.plan_hold_s() == pytest.approx(0.01)


def test_a_long_absence_makes_no_long_hold() -> None:
    duty = DutyCycle(2.0, PERIOD_S)
    duty.ran(60.0)
    assert duty.plan_hold_s() <= 10 * PERIOD_S
