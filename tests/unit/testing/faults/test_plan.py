"""A seed decides what a plan leaves open, the same way every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gscalar.base.errors import UserError
from gscalar.testing.faults.plan import (
    AfterS,
    AtStep,
    BetweenS,
    BetweenSteps,
    Corrupt,
    Delay,
    FaultPlan,
    FillDisk,
    Kill,
    Slow,
    SlowLoader,
    Stop,
    settle,
)

NOW = AfterS(0.0)
OPEN = (
    Kill(target=None, when=BetweenSteps(10, 500)),
    Stop(rank=None, for_s=1.0, when=BetweenS(1.0, 60.0)),
    Slow(rank=None, factor=2.0, when=BetweenS(0.0, 1.0)),
    Corrupt(file="records/a000-r00000.rec", how="flip", when=NOW),
)


def test_the_same_seed_and_plan_give_the_same_decisions() -> None:
    assert settle(FaultPlan(OPEN, 7), 4) == settle(FaultPlan(OPEN, 7), 4)


def test_equal_faults_of_one_plan_are_drawn_apart() -> None:
    first, second = settle(FaultPlan((OPEN[1], OPEN[1]), 7), 4)
    assert first.when != second.when


def test_another_seed_gives_others() -> None:
    assert len({settle(FaultPlan(OPEN, seed), 4) for seed in range(10)}) == 10


def test_a_fault_at_the_end_changes_none_before_it() -> None:
    assert settle(FaultPlan(OPEN, 7), 4)[:3] == settle(FaultPlan(OPEN[:3], 7), 4)


def test_what_is_drawn_lies_within_its_bounds_and_reaches_them() -> None:
    faults = (Kill(target=None, when=BetweenSteps(3, 5)), Stop(rank=None, for_s=1.0, when=BetweenS(2.0, 4.0)))
    kills, stops = zip(*(settle(FaultPlan(faults, seed), 3) for seed in range(200)), strict=True)
    assert {kill.when.step for kill in kills} == {3, 4, 5}
    assert {kill.rank for kill in kills} == {stop.rank for stop in stops} == {0, 1, 2}
    seconds = [stop.when.seconds for stop in stops]
    assert 2.0 <= min(seconds) < 2.1
    assert 3.9 < max(seconds) <= 4.0


def test_nothing_that_is_given_is_changed() -> None:
    faults = (
        Kill(target=1, when=AtStep(20)),
        Kill(target="supervisor", when=AfterS(3.0)),
        Delay(rank=0, delay_s=0.1, when=AtStep(5, rank=1)),
    )
    settled = settle(FaultPlan(faults, 3), 2)
    assert tuple(each.fault for each in settled) == faults
    # A step is that of the target's own rank, if nothing else is said; rank 0's where there is none.
    assert [each.when for each in settled] == [AtStep(20, 1), AfterS(3.0), AtStep(5, 1)]
    assert [each.rank for each in settled] == [1, None, 0]
    assert settle(FaultPlan((Kill(target="all", when=AtStep(4)),)), 2)[0].when == AtStep(4, 0)


def test_every_fault_has_the_name_of_its_option() -> None:
    faults = (*OPEN, Delay(rank=0, delay_s=1, when=NOW), SlowLoader(rank=0, factor=2, when=NOW))
    names = [each.kind for each in settle(FaultPlan((*faults, FillDisk(path=Path("/x"), when=NOW))), 1)]
    assert names == ["kill", "stop", "slow", "corrupt", "delay", "slow-loader", "fill-disk"]


IMPOSSIBLE = {
    "a rank beyond the world": (Kill(target=2, when=NOW), "rank", 2),
    "a rank below 0": (Stop(rank=-1, for_s=1.0, when=NOW), "rank", -1),
    "a step of a rank beyond the world": (Kill(target=0, when=AtStep(3, rank=5)), "rank", 5),
    "steps that end before they begin": (Kill(target=0, when=BetweenSteps(5, 4)), "when", (5, 4)),
    "seconds that end before they begin": (Kill(target=0, when=BetweenS(2.0, 1.0)), "when", (2.0, 1.0)),
    "a stop of no time": (Stop(rank=0, for_s=0.0, when=NOW), "for_s", 0.0),
    "a factor that speeds up": (Slow(rank=0, factor=0.5, when=NOW), "factor", 0.5),
    "a factor of one": (SlowLoader(rank=0, factor=1.0, when=NOW), "factor", 1.0),
    "a delay every no steps": (Delay(rank=0, delay_s=1.0, every_steps=0, when=NOW), "every_steps", 0),
    "a damage of no bytes": (Corrupt(file="x", how="zero", num_bytes=0, when=NOW), "num_bytes", 0),
    "less than nothing free": (FillDisk(path=Path("/x"), leave_bytes=-1, when=NOW), "leave_bytes", -1),
}


@pytest.mark.parametrize("sentence", IMPOSSIBLE)
def test_what_can_never_happen_is_refused_with_its_place(sentence: str) -> None:
    fault, where, value = IMPOSSIBLE[sentence]
    with pytest.raises(UserError) as caught:
        settle(FaultPlan((OPEN[0], fault)), 2)
    assert (caught.value.code, caught.value.where, caught.value.value) == (
        "impossible-value",
        f"fault 1, {where}",
        value,
    )


def test_a_rank_that_is_drawn_fits_any_world() -> None:
    plan = FaultPlan((OPEN[0],), 3)
    for world in range(1, 9):
        (settled,) = settle(plan, world)
        assert settled.rank is not None
        assert 0 <= settled.rank < world
        assert settled == replace(settled, when=settle(plan, 1)[0].when, fault=settled.fault) or world > 1
