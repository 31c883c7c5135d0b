"""How often what disturbs a training comes back."""

from __future__ import annotations

import numpy as np
import pytest

from gscalar.diagnosis.hypotheses.noise import _period
from gscalar.testing.timelines import periodic


@pytest.mark.parametrize("every", [5, 8, 10, 25])
def test_a_pulse_has_its_own_period_and_not_that_of_a_harmonic(every: int) -> None:
    steps_s = 0.1 + 0.002 * np.random.default_rng(every).standard_normal(200) + periodic(200, every, 0.05).ravel()
    assert _period(steps_s) == pytest.approx(every, rel=0.05)


def test_of_many_steps_that_only_scatter_few_have_a_period() -> None:
    draw = np.random.default_rng(0)
    found = [_period(0.1 + 0.01 * draw.standard_normal(1000)) for _ in range(100)]
    assert sum(each is not None for each in found) <= 5  # 1 % is the rate that is aimed at


def test_steps_that_are_all_alike_have_none() -> None:
    assert _period(np.full(40, 0.1)) is None
