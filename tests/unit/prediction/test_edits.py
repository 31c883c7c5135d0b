"""Each edit against a second simulation of the same pieces with that fix really made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import Activity, Floats
from gscalar.prediction import edits
from gscalar.prediction.data_parallel import measure_data_parallel
from gscalar.prediction.edits import Edit
from gscalar.prediction.forecast import Replay
from gscalar.testing.timelines import Pieces, draw_data_parallel, periodic, simulate_data_parallel

RANKS, STEPS = 8, 40
SHAPE = (RANKS, STEPS)
SLOW = np.where(np.arange(RANKS) == 3, 1.5, 1.0)[:, None]
WORK = np.random.default_rng(5).integers(50, 150, SHAPE).astype(float)
HOLDS: dict[str, dict[str, Any]] = {
    "one exchange at the end": {},
    "four exchanges at the end": {"buckets": 4},
    "four exchanges through the backward": {"buckets": 4, "overlap": True},
}


def truth(pieces: Pieces) -> Floats:
    """How long the frames of the simulation are: from one step's last meeting to the next one's."""
    met = simulate_data_parallel(pieces).collectives
    assert met is not None
    frames: Floats = np.diff(met.end_s[0, :, -1])
    return frames


def edited(pieces: Pieces, edit: Edit) -> Floats:
    return Replay.of(measure_data_parallel(simulate_data_parallel(pieces))).edited_s([edit])[0]


Change = Callable[[Pieces], Pieces]


def with_compute(seconds: Callable[[Pieces], Any]) -> Change:
    return lambda pieces: replace(pieces, compute_s=np.broadcast_to(seconds(pieces), SHAPE).copy())


def shared_by_speed(pieces: Pieces) -> Floats:
    """Each rank has so much of a step's work as its usual speed asks for, and goes at the pace of that step."""
    pace_s = pieces.compute_s / WORK
    speed = 1 / np.median(pace_s[:, 1:], axis=1, keepdims=True)
    share: Floats = WORK.sum(axis=0) * speed / speed.sum()
    return share * pace_s


# name: what the training is like, the edit, the same fix in the simulation. All of these are exact.
FIXES: dict[str, tuple[dict[str, Any], Edit, Change]] = {
    "nothing is exchanged": (
        {"jitter": 0.1},
        edits.without_transfers,
        lambda pieces: replace(pieces, transfer_s=0 * pieces.transfer_s, latency_s=0.0),
    ),
    "a link of twice the bandwidth": (
        {"jitter": 0.1},
        edits.transfers_scaled(0.5, latency_s=0.001),
        lambda pieces: replace(pieces, transfer_s=0.5 * pieces.transfer_s),
    ),
    "a link and its latency halved": (
        {"jitter": 0.1},
        edits.transfers_scaled(0.5),
        lambda pieces: replace(pieces, transfer_s=0.5 * pieces.transfer_s, latency_s=0.0005),
    ),
    "no checkpoints": (
        {"jitter": 0.1, "checkpoint_s": periodic(STEPS, 7, 0.08) * (SLOW > 1)},
        edits.labels_scaled("checkpoint", by=0.0),
        lambda pieces: replace(pieces, checkpoint_s=0 * pieces.checkpoint_s),
    ),
    "checkpoints that only copy": (
        {"jitter": 0.1, "checkpoint_s": periodic(STEPS, 7, 0.08)},
        edits.scaled(Activity.CHECKPOINT, by=0.1),
        lambda pieces: replace(pieces, checkpoint_s=0.1 * pieces.checkpoint_s),
    ),
    "no garbage collection": (
        {"jitter": 0.1, "gc_s": periodic(STEPS, 5, 0.05) * (SLOW > 1)},
        edits.labels_scaled("gc", by=0.0),
        lambda pieces: replace(pieces, gc_s=0 * pieces.gc_s),
    ),
    "balance where the work is known, and a rank slow": (
        {"jitter": 0.1, "work": WORK, "slow": {3: 1.5}},
        edits.balanced,
        with_compute(shared_by_speed),
    ),
    "balance where the work is not known": (
        {"jitter": 0.1, "slow": {3: 1.5}},
        edits.balanced,
        with_compute(lambda pieces: pieces.compute_s.mean(axis=0)),
    ),
    "the ceiling of balance": (
        {"jitter": 0.1, "slow": {3: 1.5}},
        edits.ideal_compute,
        with_compute(lambda pieces: pieces.compute_s[:, 1:].mean()),
    ),
    "a slow worker replaced, where its work is known": (
        {"jitter": 0.0, "work": WORK, "slow": {3: 1.5}},
        edits.replaced([(0, 3)]),
        with_compute(lambda pieces: pieces.compute_s / SLOW),
    ),
    "a slow worker replaced, where its work is not known": (
        {"jitter": 0.1, "slow": {3: 1.5}},
        edits.replaced([(0, 3)]),
        with_compute(
            lambda pieces: np.where(
                SLOW > 1, np.median(np.delete(pieces.compute_s, 3, axis=0), axis=0), pieces.compute_s
            )
        ),
    ),
    "a slow reader as fast as the others": (
        {"jitter": 0.1, "data_wait_s": np.where(SLOW > 1, 0.05, 0.002)},
        edits.readers_evened([3]),
        lambda pieces: replace(pieces, data_wait_s=np.full(SHAPE, 0.002)),
    ),
    "waits for data that are known": (
        {"jitter": 0.1, "data_wait_s": 0.05},
        edits.waits_set(np.full((RANKS, STEPS - 1), 0.003)),
        lambda pieces: replace(pieces, data_wait_s=np.full(SHAPE, 0.003)),
    ),
    "no transfer and even compute": (
        {"jitter": 0.1, "slow": {3: 1.5}},
        edits.joined([edits.ideal_compute, edits.without_transfers]),
        lambda pieces: replace(
            pieces,
            transfer_s=0 * pieces.transfer_s,
            latency_s=0.0,
            compute_s=np.full(SHAPE, pieces.compute_s[:, 1:].mean()),
        ),
    ),
}


@pytest.mark.parametrize("held", HOLDS)
@pytest.mark.parametrize("case", FIXES)
def test_an_edited_step_takes_what_the_fixed_training_takes(case: str, held: str) -> None:
    options, edit, change = FIXES[case]
    exchanges = {"transfer_s": 0.05, "latency_s": 0.001}
    pieces = draw_data_parallel(np.random.default_rng(1), **exchanges | HOLDS[held] | options)

    got, want = edited(pieces, edit), truth(change(pieces))

    assert np.allclose(got, want, rtol=1e-9, atol=0)
    assert want.mean() < 0.99 * truth(pieces).mean(), "the fix of this case changes nothing"


@pytest.mark.parametrize("overlap_now", [False, True])
@pytest.mark.parametrize("transfer_s", [0.02, 0.05, 0.2])
def test_overlap_takes_what_the_best_number_of_buckets_takes(transfer_s: float, overlap_now: bool) -> None:
    latency_s = 0.002
    pieces = draw_data_parallel(
        np.random.default_rng(1), jitter=0.1, transfer_s=transfer_s, overlap=overlap_now, latency_s=0.0
    )

    got = edited(pieces, edits.overlapped(latency_s=latency_s))

    tried = [replace(pieces, buckets=num, overlap=True, latency_s=latency_s) for num in (2, 4, 8, 16, 32)]
    want = min((truth(each) for each in [pieces, *tried]), key=np.mean)
    assert np.allclose(got, want, rtol=1e-9, atol=0)


def test_overlap_with_dear_buckets_changes_nothing() -> None:
    pieces = draw_data_parallel(np.random.default_rng(1), jitter=0.1)

    got = edited(pieces, edits.overlapped(latency_s=0.1))

    assert np.allclose(got, truth(pieces), rtol=1e-9)


def test_of_a_rank_seen_alone_what_comes_after_the_exchange_waits_for_it() -> None:
    # One rank of many was traced: it is not known whom it met, only that 50 ms were exposed.
    seen = simulate_data_parallel(draw_data_parallel(np.random.default_rng(1), ranks=1, jitter=0.0, transfer_s=0.0))
    accounts = seen.accounts.copy()
    accounts[:, :, 1] = 0.05
    steps = measure_data_parallel(replace(seen, accounts=accounts, end_s=seen.begin_s + accounts.sum(axis=2)))

    (got,) = Replay.of(steps).edited_s([edits.overlapped(latency_s=0.0)])

    # Of 32 buckets one is still to come when the compute of 100 ms is done; 7.5 ms lie before and after.
    assert np.allclose(got, 0.1 + 0.05 / 32 + 0.0075)


def test_overlap_leaves_a_training_without_transfers_alone() -> None:
    steps = measure_data_parallel(simulate_data_parallel(draw_data_parallel(np.random.default_rng(1), ranks=1)))

    assert edits.overlapped(latency_s=0.0)(steps) is steps


@pytest.mark.parametrize("loaders", [1, 2, 4])
def test_loaders_take_from_the_wait_what_the_step_hides(loaders: int) -> None:
    pieces = draw_data_parallel(np.random.default_rng(1), jitter=0.0, loader_work_s=0.3, loaders=0)
    rest_s = truth(pieces).mean() - 0.301

    got = edited(pieces, edits.waits_set(np.full((RANKS, STEPS - 1), max(0.0, 0.3 / loaders - rest_s - 0.001) + 0.001)))

    # The first batches are made while nothing is trained, and what was made ahead must be used up.
    want = truth(replace(pieces, loaders=loaders))[STEPS // 2 :]
    assert got.mean() == pytest.approx(want.mean(), rel=0.01)


def test_gains_of_fixes_that_meet_are_not_multiplied() -> None:
    # Overlap hides transfers behind the compute that is there; shorter compute hides less.
    pieces = draw_data_parallel(np.random.default_rng(1), jitter=0.0, slow={3: 2.5}, transfer_s=0.3)
    overlap = edits.overlapped(latency_s=1e-4)
    balanced = with_compute(lambda pieces: pieces.compute_s.mean(axis=0))(pieces)

    base = truth(pieces).mean()
    gains = [base / edited(pieces, edit).mean() for edit in (overlap, edits.balanced)]
    joint = base / edited(pieces, edits.joined([edits.balanced, overlap])).mean()

    want = base / min(
        truth(replace(balanced, buckets=num, overlap=True, latency_s=1e-4)).mean() for num in (2, 4, 8, 16, 32)
    )
    assert joint == pytest.approx(want, rel=1e-9)
    assert abs(joint - gains[0] * gains[1]) > 0.02
    assert abs(joint - 1 - sum(gain - 1 for gain in gains)) > 0.02


def test_balance_after_overlap_is_balance_before_it() -> None:
    pieces = draw_data_parallel(np.random.default_rng(1), jitter=0.0, slow={3: 1.5}, transfer_s=0.05)
    overlap = edits.overlapped(latency_s=1e-4)

    got = edited(pieces, edits.joined([overlap, edits.balanced]))

    assert np.allclose(got, edited(pieces, edits.joined([edits.balanced, overlap])), rtol=1e-9)


def test_a_worker_without_peers_stays_as_it_is() -> None:
    steps = measure_data_parallel(simulate_data_parallel(draw_data_parallel(np.random.default_rng(1), ranks=1)))

    assert np.array_equal(edits.replaced([(0, 0)])(steps).durations, steps.durations)
    assert np.array_equal(edits.readers_evened([0])(steps).durations, steps.durations)


def test_tails_are_cut_at_each_rank_s_own_usual_time() -> None:
    pieces = draw_data_parallel(np.random.default_rng(1), jitter=0.0, slow={3: 1.5})
    spiked = pieces.compute_s.copy()
    spiked[2, ::4] *= 3

    got = edited(replace(pieces, compute_s=spiked), edits.tails_cut())

    assert np.allclose(got, truth(pieces), rtol=1e-9)


def test_an_edit_leaves_the_measured_steps_as_they_were() -> None:
    steps = measure_data_parallel(
        simulate_data_parallel(draw_data_parallel(np.random.default_rng(1), work=WORK, slow={3: 1.5}))
    )
    before = steps.durations.copy()

    for edit in (
        *(edit for _, edit, _ in FIXES.values()),
        edits.overlapped(latency_s=0.0),
        edits.repartitioned,
        edits.tails_cut(),
    ):
        edit(steps)

    assert np.array_equal(steps.durations, before)
