"""Rates and the time to go, from rank 0's steps; where a step goes, from all ranks'."""

from __future__ import annotations

import pytest

from gscalar.control import progress
from gscalar.control.progress import WINDOW_S, AccountWindow, Shares, StepWindow
from gscalar.model.accounts import pack_accounts
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


def accounted(at_s: float, **accounts: float) -> Step:
    packed = pack_accounts(accounts) if accounts else b""
    return Step(1, int(at_s * 1e9), sum(accounts.values()), 8.0, 0.0, 1e-3, 1.0, 1, 0, packed)


def accounts(*steps: Step) -> AccountWindow:
    made = AccountWindow()
    for each in steps:
        made.add(each)
    return made


def shares(*ranks: AccountWindow) -> Shares | None:
    return window(step(1, 10.0)).progress(0, len(ranks), "training", ranks).shares


def test_shares_are_means_over_ranks() -> None:
    fast = accounts(accounted(1, compute=0.5, exposed_communication=0.5))
    slow = accounts(accounted(1, compute=0.7, data_wait=0.2, exposed_communication=0.1))
    want = Shares(data=0.1, compute=0.6, exposed_communication=0.3, slowest_rank=1)
    got = shares(fast, slow)
    assert got is not None
    assert (got.data, got.compute) == pytest.approx((want.data, want.compute))
    assert (got.exposed_communication, got.slowest_rank) == (pytest.approx(0.3), 1)


def test_the_first_step_warms_up_and_counts_only_while_it_is_the_only_one() -> None:
    first = accounted(1, compute=9.0, data_wait=1.0)
    later = [accounted(2 + each, compute=0.5, data_wait=0.5) for each in range(3)]
    alone, after = shares(accounts(first)), shares(accounts(first, *later))
    assert alone is not None
    assert after is not None
    assert (alone.data, after.data) == pytest.approx((0.1, 0.5))


def test_shares_are_of_the_recent_window() -> None:
    old = [accounted(each, compute=1.0) for each in range(5)]
    new = [accounted(100 + each, data_wait=1.0) for each in range(5)]
    got = shares(accounts(*old, *new))
    assert got is not None
    assert (got.data, got.compute) == (1.0, 0.0)


def test_fast_steps_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_MOST_STEPS", 4)
    made = accounts(*(accounted(each / 1000, compute=float(each)) for each in range(100)))
    assert len(made.rows) == 4
    assert made.compute_s == pytest.approx(96 + 97 + 98 + 99)


def test_steps_of_an_older_script_have_no_shares() -> None:
    assert shares(accounts(accounted(1)), accounts()) is None


def test_ranks_of_which_nothing_is_known_are_left_out() -> None:
    got = shares(accounts(), accounts(accounted(1, compute=1.0, data_wait=1.0)))
    assert got == Shares(data=0.5, compute=0.5, exposed_communication=0.0)
