"""Learning-rate schedules: values by hand, borders, floors, and what needs a length."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.base.errors import UserError
from gscalar.model.spec import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    OneCycleSchedule,
    Schedule,
    WarmupStableDecaySchedule,
)
from gscalar.runtime.schedules import factor

COSINE = CosineSchedule(total_steps=100, warmup_steps=10, floor=0.1)
WSD = WarmupStableDecaySchedule(total_steps=100, warmup_steps=10, decay_steps=20)
ONE_CYCLE = OneCycleSchedule(total_steps=100, rise=0.31, start=0.04, floor=0.001)

BY_HAND: dict[str, tuple[Schedule, int, float]] = {
    "constant": (ConstantSchedule(), 7, 1.0),
    "constant, the first update of the warm-up": (ConstantSchedule(warmup_steps=4), 0, 0.25),
    "constant, the last update of the warm-up": (ConstantSchedule(warmup_steps=4), 3, 1.0),
    "constant, after the warm-up": (ConstantSchedule(warmup_steps=4), 4, 1.0),
    "linear, the first update": (LinearSchedule(total_steps=10), 0, 1.0),
    "linear, half way": (LinearSchedule(total_steps=10), 5, 0.5),
    "linear, the last update": (LinearSchedule(total_steps=10), 9, 0.1),
    "linear, half way to the floor": (LinearSchedule(total_steps=10, floor=0.2), 5, 0.6),
    "linear, half way after the warm-up": (LinearSchedule(total_steps=12, warmup_steps=2), 7, 0.5),
    "cosine, the first update": (COSINE, 0, 0.1),
    "cosine, the last update of the warm-up": (COSINE, 9, 1.0),
    "cosine, after the warm-up": (COSINE, 10, 1.0),
    "cosine, a third": (COSINE, 40, 0.1 + 0.9 * 0.75),
    "cosine, half way": (COSINE, 55, 0.1 + 0.9 * 0.5),
    "cosine, two thirds": (COSINE, 70, 0.1 + 0.9 * 0.25),
    "wsd, the warm-up": (WSD, 4, 0.5),
    "wsd, the plateau": (WSD, 50, 1.0),
    "wsd, where the decay begins": (WSD, 80, 1.0),
    "wsd, half of the decay": (WSD, 90, 0.5),
    "wsd, a quarter of a decay by square root": (
        WarmupStableDecaySchedule(total_steps=100, decay_steps=20, decay="sqrt"), 85, 0.5),
    "wsd, a third of a decay by cosine": (
        WarmupStableDecaySchedule(total_steps=100, decay_steps=30, decay="cosine", floor=0.2), 80, 0.2 + 0.8 * 0.75),
    "wsd, a tenth of all decays by default": (WarmupStableDecaySchedule(total_steps=1000), 950, 0.5),
    "wsd, a decay that begins before the warm-up ends is cut": (
        WarmupStableDecaySchedule(total_steps=20, warmup_steps=10, decay_steps=15), 15, 0.5),
    "inverse square root, the first update": (InverseSqrtSchedule(warmup_steps=100), 0, 0.01),
    "inverse square root, the peak": (InverseSqrtSchedule(warmup_steps=100), 99, 1.0),
    "inverse square root, four times as far": (InverseSqrtSchedule(warmup_steps=100), 399, 0.5),
    "one cycle, the first update": (ONE_CYCLE, 0, 0.04),
    "one cycle, half way up": (ONE_CYCLE, 15, 0.52),
    "one cycle, the peak": (ONE_CYCLE, 30, 1.0),
    "one cycle, the last update": (ONE_CYCLE, 99, 0.001),
    "one cycle that only rises": (OneCycleSchedule(total_steps=11, rise=1.0, start=0.0), 5, 0.5),
}  # fmt: skip
FALLING: list[Schedule] = [
    LinearSchedule(total_steps=100, warmup_steps=10, floor=0.05),
    COSINE,
    WSD,
    WarmupStableDecaySchedule(total_steps=100, warmup_steps=10, decay="sqrt", floor=0.3),
    WarmupStableDecaySchedule(total_steps=100, warmup_steps=10, decay="cosine", floor=0.3),
    ONE_CYCLE,
]
ANY = st.one_of(
    st.builds(ConstantSchedule, warmup_steps=st.integers(0, 50)),
    st.builds(InverseSqrtSchedule, warmup_steps=st.integers(1, 50)),
    st.builds(LinearSchedule, warmup_steps=st.integers(0, 50), floor=st.floats(0, 1)),
    st.builds(CosineSchedule, warmup_steps=st.integers(0, 50), floor=st.floats(0, 1)),
    st.builds(
        WarmupStableDecaySchedule,
        warmup_steps=st.integers(0, 50),
        decay_steps=st.none() | st.integers(1, 60),
        decay=st.sampled_from(["linear", "cosine", "sqrt"]),
        floor=st.floats(0, 1),
    ),
    st.builds(OneCycleSchedule, rise=st.floats(0.001, 1), start=st.floats(0, 1), floor=st.floats(0, 1)),
)


@pytest.mark.parametrize("case", BY_HAND)
def test_known_values(case: str) -> None:
    schedule, step, want = BY_HAND[case]
    assert factor(schedule, step, None) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("schedule", FALLING, ids=lambda schedule: schedule.kind)
def test_the_floor_is_reached_at_the_end_and_stays(schedule: Schedule) -> None:
    assert factor(schedule, 100, None) == pytest.approx(schedule.floor, abs=1e-12)  # type: ignore[union-attr]
    assert factor(schedule, 10_000, None) == factor(schedule, 100, None)


@pytest.mark.parametrize("schedule", FALLING, ids=lambda schedule: schedule.kind)
def test_no_border_is_a_jump(schedule: Schedule) -> None:
    values = [factor(schedule, step, None) for step in range(105)]
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    # The steepest place of these is one step of the warm-up, or the first step of 1 - sqrt.
    assert max(steps) <= max(0.1, (1 - 0.3) * math.sqrt(1 / 10)) + 1e-9


@given(ANY, st.integers(1, 200), st.integers(0, 250))
def test_a_factor_is_never_above_the_base_rate_and_never_negative(schedule: Schedule, total: int, step: int) -> None:
    assert -1e-12 <= factor(schedule, step, total) <= 1 + 1e-12


@given(ANY.filter(lambda schedule: schedule.kind != "one_cycle"), st.integers(1, 200))
def test_the_first_update_moves(schedule: Schedule, total: int) -> None:
    warmup = schedule.warmup_steps  # type: ignore[union-attr]
    assert factor(schedule, 0, total) == pytest.approx(1 / max(1, warmup))


def test_a_training_shorter_than_its_warm_up_just_warms_up() -> None:
    got = [factor(CosineSchedule(warmup_steps=10), step, 4) for step in range(4)]
    assert got == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_a_length_of_its_own_wins_over_that_of_the_training() -> None:
    assert factor(LinearSchedule(total_steps=10), 5, 1000) == pytest.approx(0.5)
    assert factor(LinearSchedule(), 5, 10) == pytest.approx(0.5)


@pytest.mark.parametrize("total", [None, 0])
@pytest.mark.parametrize(
    "schedule",
    [LinearSchedule(), CosineSchedule(), WarmupStableDecaySchedule(), OneCycleSchedule()],
    ids=lambda schedule: schedule.kind,
)
def test_a_schedule_that_needs_a_length_says_where_to_set_it(schedule: Schedule, total: int | None) -> None:
    with pytest.raises(UserError) as caught:
        factor(schedule, 0, total)
    assert caught.value.code == "impossible-value"
    assert schedule.kind in caught.value.what
    assert "plan.schedule.total_steps" in caught.value.next_step


@pytest.mark.parametrize("schedule", [ConstantSchedule(), InverseSqrtSchedule()], ids=lambda schedule: schedule.kind)
def test_a_schedule_without_an_end_needs_no_length(schedule: Schedule) -> None:
    assert factor(schedule, 10**6, None) > 0
