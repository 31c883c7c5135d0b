"""A diagnosis of simulated trainings, of which the cause and the worth of each fix are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.diagnosis.diagnose import diagnose
from gscalar.diagnosis.verdicts import Cause, Diagnosis
from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    DeviceUse,
    Floats,
    Rank,
    Signal,
    Spans,
    StepTimeline,
    no_steps,
)
from gscalar.testing.pipelines import Row, pipeline_timeline, rows_timeline
from gscalar.testing.timelines import (
    Pieces,
    data_parallel_timeline,
    draw_data_parallel,
    periodic,
    simulate_data_parallel,
)

SEEDS = (0, 1, 2)


def drawn(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def lengths(ranks: int, steps: int, spread: float = 0.25, seed: int = 5) -> Floats:
    """Return tokens that differ from rank to rank and step to step."""
    return 1000 * np.exp(spread * drawn(seed).standard_normal((ranks, steps)))


def more_on(ranks: tuple[int, ...], factor: float = 1.5) -> Floats:
    """Return tokens of which some ranks always have more."""
    work = lengths(8, 40, spread=0.02)
    work[list(ranks)] *= factor
    return work


def at_random(seconds: float, share: float, seed: int = 3) -> Floats:
    """Return stalls that strike a share of the steps, on one rank or another."""
    return seconds * (drawn(seed).random((8, 40)) < share)


# Little is exchanged, so that the named cause is the only one.
QUIET: dict[str, Any] = {"transfer_s": 0.002}
CASES: dict[str, tuple[dict[str, Any], Cause, tuple[int, ...]]] = {
    "a healthy training has no finding": (QUIET, Cause.NONE, ()),
    "jitter of 3 % on every rank is healthy": (QUIET | {"jitter": 0.03, "work": np.full((8, 40), 9.0)}, Cause.NONE, ()),
    "equal work, one rank 1.2 times slower": (
        QUIET | {"slow": {5: 1.2}, "work": np.full((8, 40), 9.0)}, Cause.SLOW_WORKER, (5,),
    ),
    "two of eight slow": (QUIET | {"slow": {3: 1.5, 6: 1.5}, "work": np.full((8, 40), 9.0)}, Cause.SLOW_WORKER, (3, 6)),
    "one of two slow": (QUIET | {"ranks": 2, "slow": {1: 1.3}}, Cause.SLOW_WORKER, (1,)),
    "two of eight with more work": (QUIET | {"work": more_on((3, 6))}, Cause.WORK_IMBALANCE, (3, 6)),
    "lengths that differ": (QUIET | {"work": lengths(8, 40)}, Cause.WORK_IMBALANCE, ()),
    "a slow rank that also has less work": (
        QUIET | {"slow": {2: 2.0}, "work": more_on((2,), 0.7)}, Cause.SLOW_WORKER, (2,),
    ),
    "transfers that nothing hides": (QUIET | {"transfer_s": 0.05}, Cause.EXPOSED_COMMUNICATION, ()),
    "the training's own process loads": (QUIET | {"loader_work_s": 0.04}, Cause.INPUT_BOUND, ()),
    "too few loaders": (QUIET | {"loader_work_s": 0.4, "loaders": 2}, Cause.INPUT_BOUND, ()),
    "one rank reads slowly": (
        QUIET | {"data_wait_s": np.where(np.arange(8) == 4, 0.06, 0.001)[:, None]}, Cause.SLOW_READER, (4,),
    ),
    "collections at random": (QUIET | {"gc_s": at_random(0.05, 0.06)}, Cause.GARBAGE_COLLECTION, ()),
    "collections on all ranks at once": (QUIET | {"gc_s": periodic(40, 5, 0.05)}, Cause.GARBAGE_COLLECTION, ()),
    "checkpoints that block": (QUIET | {"checkpoint_s": periodic(40, 10, 0.3)}, Cause.CHECKPOINT_STALL, ()),
    "a script that logs for long": (QUIET | {"host_gap_s": 0.03}, Cause.LAUNCH_BOUND, ()),
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_the_principal_cause_is_the_one_that_was_made(case: str, seed: int) -> None:
    options, cause, ranks = CASES[case]
    found = diagnose(data_parallel_timeline(drawn(seed), **options))
    assert (found.principal.cause, found.principal.ranks) == (cause, ranks)
    assert found.replay_error is not None
    assert abs(found.replay_error) < 0.01


def test_noise_that_nobody_owns_is_noise() -> None:
    work = np.full((8, 60), 9.0)
    pieces = draw_data_parallel(drawn(0), steps=60, work=work, transfer_s=0.002)
    hit = drawn(1).random(pieces.compute_s.shape) < 0.05
    disturbed = replace(pieces, compute_s=pieces.compute_s * np.where(hit, 1.8, 1.0))
    found = diagnose(simulate_data_parallel(disturbed))
    assert found.principal.cause is Cause.NOISE
    assert fix(found, "balance").gain == pytest.approx(1.0, abs=0.02)  # shares do not help against noise


PIPELINES: dict[str, tuple[dict[str, Any], Cause, tuple[int, ...]]] = {
    "healthy": ({}, Cause.NONE, ()),
    "one slow worker": ({"slow": {(1, 2): 1.5}}, Cause.SLOW_WORKER, (2,)),
    "a last stage that holds more": ({"stage_factors": (1, 1, 1, 1.4)}, Cause.STAGE_IMBALANCE, (3,)),
    "lengths that differ": ({"length_spread": 0.3}, Cause.WORK_IMBALANCE, ()),
}


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("case", PIPELINES)
def test_the_principal_cause_of_a_pipeline_is_the_one_that_was_made(case: str, chunks: int) -> None:
    options, cause, stages = PIPELINES[case]
    timeline = pipeline_timeline(
        drawn(0), dp=4, pp=4, micro=8, steps=12, vpp=chunks, message_s=1e-4, collective_s=5e-4, **options
    )
    found = diagnose(timeline)
    assert (found.principal.cause, found.principal.stages) == (cause, stages)


def slower(pieces: Pieces, ranks: list[int], factor: float) -> Pieces:
    compute_s = pieces.compute_s.copy()
    compute_s[ranks] *= factor
    return replace(pieces, compute_s=compute_s)


# What was done to a training, and the fix that undoes it.
FIXED: dict[str, tuple[dict[str, Any], str, Callable[[Pieces], Pieces]]] = {
    "a slow worker replaced": (
        {"slow": {3: 1.4}, "work": np.full((8, 40), 9.0)}, "replace_worker", lambda it: slower(it, [3], 1 / 1.4),
    ),
    "checkpoints written beside the training": (
        {"checkpoint_s": periodic(40, 10, 0.3)}, "checkpoint",
        lambda it: replace(it, checkpoint_s=it.checkpoint_s * 0.1),
    ),
    "planned collections": (
        {"gc_s": at_random(0.05, 0.06)}, "gc", lambda it: replace(it, gc_s=it.gc_s * 0.1),
    ),
    "half the bytes": (
        {"transfer_s": 0.06}, "compress", lambda it: replace(it, transfer_s=it.transfer_s * 0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FIXED)
def test_a_predicted_gain_is_that_of_a_training_with_the_fix_made(case: str) -> None:
    options, name, fixed = FIXED[case]
    pieces = draw_data_parallel(drawn(2), **(QUIET | options))
    found = diagnose(simulate_data_parallel(pieces))
    before, after = (mean_step_s(simulate_data_parallel(each)) for each in (pieces, fixed(pieces)))
    got = fix(found, name)
    assert got.gain == pytest.approx(before / after, rel=0.02)
    assert got.low_s <= median_step_s(simulate_data_parallel(fixed(pieces))) <= got.high_s


def test_balanced_work_is_predicted_within_its_interval() -> None:
    work = lengths(8, 40)
    pieces = draw_data_parallel(drawn(4), work=work, **QUIET)
    found = diagnose(simulate_data_parallel(pieces))
    shared = replace(pieces, compute_s=pieces.compute_s / work * work.mean(axis=0))
    got = fix(found, "balance")
    assert got.gain == pytest.approx(
        mean_step_s(simulate_data_parallel(pieces)) / mean_step_s(simulate_data_parallel(shared)), rel=0.03
    )
    assert got.ceiling >= got.gain


def test_overlap_and_balance_are_always_answered_and_never_added() -> None:
    found = diagnose(data_parallel_timeline(drawn(0), work=more_on((3, 6)), transfer_s=0.03))
    names = [each.name for each in found.fixes][:3]
    assert names == ["overlap", "balance", "overlap+balance"]
    both = fix(found, "overlap+balance").ceiling
    assert both > max(fix(found, "overlap").ceiling, fix(found, "balance").ceiling)


def test_without_known_work_a_lasting_difference_is_less_certain_and_says_why() -> None:
    found = diagnose(data_parallel_timeline(drawn(0), slow={3: 1.5, 6: 1.5}, **QUIET))
    assert (found.principal.cause, found.principal.confidence) == (Cause.SLOW_WORKER, "medium")
    assert any("not known" in line for line in found.principal.evidence_against)


def test_of_one_step_nothing_that_lasts_is_said() -> None:
    found = diagnose(data_parallel_timeline(drawn(0), steps=1, slow={3: 2.0}, **QUIET))
    assert Cause.SLOW_WORKER.value in found.unknown
    assert found.principal.cause is not Cause.SLOW_WORKER
    assert found.principal.confidence != "high"


def without_account(timeline: StepTimeline, account: str, **unknown: str) -> StepTimeline:
    """Return the timeline of a source that does not see one account."""
    accounts = timeline.accounts.copy()
    accounts[:, :, ACCOUNT_NAMES.index(account)] = np.nan
    return replace(
        timeline,
        accounts=accounts,
        unknown={**timeline.unknown, **{Signal[name]: why for name, why in unknown.items()}},
    )


def test_compute_that_is_not_seen_makes_no_rank_as_fast_as_another() -> None:
    timeline = data_parallel_timeline(drawn(0), slow={3: 1.5}, **QUIET)
    found = diagnose(without_account(timeline, "compute", COMPUTE="the host's threads are not told apart"))
    for cause in (Cause.SLOW_WORKER, Cause.WORK_IMBALANCE, Cause.NOISE):
        assert "not told apart" in found.unknown[cause.value]
        assert cause.value not in found.not_supported
    assert not np.isfinite(fix(found, "balance").gain)
    assert "balance" in found.unknown


def test_communication_that_is_not_seen_leaves_the_gain_of_overlap_open() -> None:
    timeline = replace(data_parallel_timeline(drawn(0), **QUIET), collectives=None)
    found = diagnose(without_account(timeline, "exposed_communication", COMMUNICATION="on a GPU"))
    assert [np.isfinite(fix(found, name).gain) for name in ("overlap", "balance", "overlap+balance")] == [
        False, True, False,
    ]  # fmt: skip
    assert found.unknown["overlap"] == "on a GPU"


def test_a_short_wait_for_data_does_not_excuse_a_device_that_idles() -> None:
    timeline = data_parallel_timeline(drawn(0), data_wait_s=0.0005, **QUIET)
    (use,) = window(busy_s=0.5, compute_s=0.5, idle_other_s=0.5).devices
    found = diagnose(replace(timeline, devices=(use,)))
    assert (found.principal.cause, "idle" in found.unknown) == (Cause.UNKNOWN, True)


def test_one_rank_has_no_waiting_to_be_told_from_transfer() -> None:
    timeline = data_parallel_timeline(drawn(0), transfer_s=0.05)
    alone = replace(
        timeline, ranks=timeline.ranks[:1], begin_s=timeline.begin_s[:1], end_s=timeline.end_s[:1],
        accounts=timeline.accounts[:1], collectives=None, loading=None, work=None,
        unknown={**timeline.unknown, Signal.ARRIVALS: "one of 8 ranks is seen"},
    )  # fmt: skip
    found = diagnose(alone)
    assert found.principal.cause is Cause.EXPOSED_COMMUNICATION
    assert found.principal.confidence == "low"
    assert any("upper bound" in line for line in found.principal.evidence_against)
    assert Cause.SLOW_WORKER.value in found.unknown


def window(**device: float) -> StepTimeline:
    """Return a source without steps: what one device did."""
    seconds = {
        "span_s": 1.0, "busy_s": 1.0, "compute_s": 1.0, "communication_s": 0.0, "copy_s": 0.0, "exposed_s": 0.0,
        "overlap_s": 0.0, "idle_launch_s": 0.0, "idle_queued_s": 0.0, "idle_other_s": 0.0, "median_operation_s": 2e-5,
    } | device  # fmt: skip
    use = DeviceUse(rank=0, device=0, num_operations=1000, **seconds)
    return StepTimeline(
        source="nsight", name="window", ranks=(Rank(rank=0),), spans=Spans.of(0), names=(), world=1, devices=(use,),
        unknown={Signal.STEPS: "no ranges that are named like steps"}, **no_steps(1),  # type: ignore[arg-type]
    )  # fmt: skip


WINDOWS: dict[str, tuple[dict[str, float], Cause]] = {
    "a busy device": ({"busy_s": 0.99, "idle_launch_s": 0.01}, Cause.NONE),
    "idle before late launches": ({"busy_s": 0.3, "idle_launch_s": 0.7}, Cause.LAUNCH_BOUND),
    "idle before work that was queued": ({"busy_s": 0.3, "idle_queued_s": 0.1, "idle_other_s": 0.6}, Cause.UNKNOWN),
    "late launches of long operations": (
        {"busy_s": 0.3, "idle_launch_s": 0.7, "median_operation_s": 0.02}, Cause.UNKNOWN,
    ),
    "exposed communication": (
        {"compute_s": 0.7, "communication_s": 0.4, "exposed_s": 0.3, "overlap_s": 0.1}, Cause.EXPOSED_COMMUNICATION,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WINDOWS)
def test_a_window_without_steps_has_a_cause_and_no_step(case: str) -> None:
    device, cause = WINDOWS[case]
    found = diagnose(window(**device))
    assert (found.principal.cause, found.step_median_s) == (cause, None)
    assert "steps" in found.unknown
    assert all(not np.isfinite(each.predicted_step_s) for each in found.fixes)


def test_of_a_source_that_ended_too_early_nothing_is_certain() -> None:
    whole = data_parallel_timeline(drawn(0), slow={3: 2.0}, **QUIET)
    for timeline in (whole, window()):
        assert diagnose(timeline).principal.confidence != "low"
        assert diagnose(replace(timeline, is_cut=True)).principal.confidence == "low"


def test_a_device_that_is_busy_for_a_moment_of_the_step_is_not_all_that_there_is() -> None:
    drawn_timeline = data_parallel_timeline(drawn(0), ranks=1, **QUIET)
    accounts = np.full_like(drawn_timeline.accounts, np.nan)
    step_s = drawn_timeline.end_s - drawn_timeline.begin_s
    accounts[:, :, ACCOUNT_NAMES.index("compute")] = 0.01 * step_s
    accounts[:, :, ACCOUNT_NAMES.index("host_gap")] = 0.99 * step_s
    found = diagnose(replace(drawn_timeline, accounts=accounts, devices=window().devices, loading=None))
    assert found.principal.cause is Cause.UNKNOWN
    assert "99 %" in found.unknown["idle"]


@pytest.mark.parametrize("num_ranks", [4, 200])
def test_what_a_slow_worker_costs_is_no_imbalance_s(num_ranks: int) -> None:
    """A worker of a flat job is slow, and forward and backward of each scatter together by 1 %."""
    compute_s = 0.1 * (1 + 0.01 * drawn(0).random((num_ranks, 12)))
    compute_s[2] *= 1.5
    rows = [
        row
        for (rank, step), seconds in np.ndenumerate(compute_s)
        for row in (
            Row(rank, 0, rank, step, "forward-compute", 0.0, seconds, 0, 0, 0),
            Row(rank, 0, rank, step, "backward-compute", seconds, 2 * seconds, 0, 0, 0),
            Row(rank, 0, rank, step, "grads-reduce-scatter", 3 * seconds, 0.47 - 3 * seconds, 0, -1, -1),
        )
    ]
    found = diagnose(rows_timeline(rows))
    assert [(each.cause, each.ranks) for each in found.findings] == [(Cause.SLOW_WORKER, (2,))]


def test_ranks_that_are_missing_leave_a_doubt() -> None:
    whole = data_parallel_timeline(drawn(0), slow={3: 2.0}, **QUIET)
    sure, unsure = (diagnose(replace(whole, world=world)).principal.confidence for world in (8, 16))
    assert ["high", "medium", "low"].index(unsure) == ["high", "medium", "low"].index(sure) + 1


def test_steps_that_take_no_time_are_unknown() -> None:
    rows = [Row(rank, 0, rank, step, "forward-compute", 0.0, 0.0, 0, 0, 0) for rank in range(2) for step in range(5)]
    found = diagnose(rows_timeline(rows))
    assert found.principal.cause is Cause.UNKNOWN
    assert "takes no time" in found.unknown["replay"]


def test_a_source_that_saw_nothing_is_unknown_with_the_reason() -> None:
    nothing = replace(window(), devices=(), unknown={Signal.STEPS: "it died in start-up", Signal.DEVICE: "no kernels"})
    found = diagnose(nothing)
    assert found.principal.cause is Cause.UNKNOWN
    assert any("start-up" in line for line in found.principal.evidence_against)


def test_thousands_of_ranks_are_diagnosed() -> None:
    timeline = data_parallel_timeline(drawn(0), ranks=2000, steps=12, slow={77: 1.5}, **QUIET)
    assert diagnose(timeline).principal.ranks == (77,)


def fix(found: Diagnosis, name: str) -> Any:
    return next(each for each in found.fixes if each.name == name)


def mean_step_s(timeline: StepTimeline) -> float:
    return float(timeline.step_s.mean())


def median_step_s(timeline: StepTimeline) -> float:
    return float(np.median(timeline.step_s.mean(axis=0)))
