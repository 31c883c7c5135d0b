from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import Floats, StepTimeline
from gscalar.prediction import data_parallel
from gscalar.prediction.data_parallel import measure_data_parallel
from gscalar.prediction.forecast import Replay
from gscalar.prediction.measured import NotReplayable
from gscalar.testing.timelines import data_parallel_timeline, periodic

RANKS, STEPS = 8, 40
ONE_RANK = (np.arange(RANKS) == 2)[:, None]


def timeline(seed: int = 1, **options: Any) -> StepTimeline:
    return data_parallel_timeline(np.random.default_rng(seed), **options)


def replay(source: StepTimeline) -> Replay:
    return Replay.of(measure_data_parallel(source))


def between_meetings(source: StepTimeline) -> Floats:
    """The truth of a frame, from the simulation's own clock."""
    assert source.collectives is not None
    frames: Floats = np.diff(source.collectives.end_s[0, :, -1])
    return frames


TRAININGS: dict[str, dict[str, Any]] = {
    "all the same": {"jitter": 0.0},
    "jitter": {"jitter": 0.2},
    "one rank is slow": {"slow": {3: 1.5}},
    "work differs": {"work": np.random.default_rng(0).integers(10, 200, (RANKS, STEPS))},
    "a checkpoint on one rank makes it come late to the next step": {
        "checkpoint_s": periodic(STEPS, 7, 0.08) * ONE_RANK
    },
    "a collection on one rank": {"gc_s": periodic(STEPS, 5, 0.05, first=2) * ONE_RANK},
    "one slow reader": {"data_wait_s": np.where(ONE_RANK, 0.06, 0.001)},
    "loaders that do not keep up": {"loader_work_s": 0.4, "loaders": 2},
    "transfers differ from step to step": {"transfer_s": np.linspace(0.0, 0.2, STEPS)},
}


@pytest.mark.parametrize("overlap", [False, True], ids=["after the compute", "overlapped"])
@pytest.mark.parametrize("buckets", [1, 4, 70])
@pytest.mark.parametrize("case", TRAININGS)
def test_the_replay_of_a_simulation_takes_what_the_simulation_took(case: str, buckets: int, overlap: bool) -> None:
    source = timeline(buckets=buckets, overlap=overlap, **{"transfer_s": 0.06, "jitter": 0.1} | TRAININGS[case])

    got = replay(source)

    want = between_meetings(source)
    assert np.allclose(got.measured.frame_s, want, rtol=1e-9, atol=0)
    assert np.allclose(got.replayed_s, want, rtol=1e-9, atol=0)
    assert len(got.measured.template) < 90  # many collectives are replayed as a few


@pytest.mark.parametrize("overlap", [False, True])
def test_the_collectives_of_many_ranks_are_replayed_as_one(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "_MOST_LANES", RANKS)
    source = timeline(buckets=20, overlap=overlap, transfer_s=0.06, jitter=0.1)

    got = replay(source)

    assert np.allclose(got.replayed_s, between_meetings(source), rtol=1e-9, atol=0)
    assert got.measured.labelled("transfer").sum() == 1


def test_of_many_ranks_the_newest_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "_MOST_CELLS", 20 * RANKS)

    got = measure_data_parallel(timeline())

    assert got.steps.tolist() == list(range(21, 40))


def test_a_rank_held_up_after_a_step_is_late_in_the_next_one() -> None:
    plain = replay(timeline(jitter=0.0))
    held_up = replay(timeline(jitter=0.0, checkpoint_s=periodic(STEPS, 10, 0.08, first=4) * ONE_RANK))

    added = held_up.replayed_s - plain.replayed_s

    late = np.isin(held_up.measured.steps, [5, 15, 25, 35])
    assert np.allclose(added[late], 0.08)
    assert np.allclose(added[~late], 0.0, atol=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("buckets", [1, 4, 70])
def test_ranks_that_are_all_the_same_have_no_slowdown(buckets: int, overlap: bool) -> None:
    got = replay(timeline(jitter=0.0, buckets=buckets, overlap=overlap, transfer_s=0.09))

    assert got.slowdown == pytest.approx(1.0, rel=1e-9)


def test_a_slow_rank_slows_all_by_what_the_ideal_has_less() -> None:
    # Seven ranks compute 100 ms and one 180 ms: the ideal is their mean, 110 ms. 27.5 ms come beside it.
    got = replay(timeline(jitter=0.0, slow={2: 1.8}))

    assert got.slowdown == pytest.approx((180 + 27.5) / (110 + 27.5), rel=1e-9)


def test_two_exchanges_of_unequal_size_are_each_their_own_type() -> None:
    source = timeline(jitter=0.0, buckets=2, transfer_s=0.02)
    met = source.collectives
    assert met is not None
    end_s = met.end_s + np.array([0.0, 0.05])  # the second takes 60 ms instead of 10
    accounts = source.accounts.copy()
    accounts[:, :, 1] += 0.05
    source = replace(
        source,
        collectives=replace(met, end_s=end_s),
        accounts=accounts,
        end_s=source.end_s + 0.05,
    )

    assert replay(source).slowdown == pytest.approx(1.0, rel=1e-9)


def without_steps(source: StepTimeline, kept: Floats) -> StepTimeline:
    met = source.collectives
    assert met is not None
    return replace(
        source,
        steps=source.steps[kept],
        begin_s=source.begin_s[:, kept],
        end_s=source.end_s[:, kept],
        accounts=source.accounts[:, kept],
        collectives=replace(met, ready_s=met.ready_s[:, kept], start_s=met.start_s[:, kept], end_s=met.end_s[:, kept]),
    )


def test_steps_that_do_not_follow_one_another_are_not_joined() -> None:
    source = timeline(jitter=0.1, checkpoint_s=periodic(STEPS, 3, 0.08) * ONE_RANK)
    kept = np.array([at for at in range(STEPS) if at not in (7, 20)])

    got = replay(without_steps(source, kept))

    want = dict(enumerate(between_meetings(source), start=1))
    del want[7], want[8], want[20], want[21]
    assert got.measured.steps.tolist() == list(want)
    assert np.allclose(got.replayed_s, list(want.values()), rtol=1e-9)


def test_of_sampled_steps_each_goes_with_the_one_before_it() -> None:
    got = replay(without_steps(timeline(jitter=0.0), np.arange(0, STEPS, 10)))

    assert got.measured.steps.tolist() == [10, 20, 30]
    assert got.error == pytest.approx(0.0, abs=1e-9)


def test_a_step_that_one_rank_lacks_is_left_out_with_the_one_after_it() -> None:
    source = timeline()
    begin_s, end_s, accounts = source.begin_s.copy(), source.end_s.copy(), source.accounts.copy()
    begin_s[3, 5] = end_s[3, 5] = accounts[3, 5] = np.nan

    got = measure_data_parallel(replace(source, begin_s=begin_s, end_s=end_s, accounts=accounts))

    assert got.steps.tolist() == [at for at in range(1, STEPS) if at not in (5, 6)]
    assert np.isfinite(got.durations).all()


def test_a_collective_that_nobody_saw_takes_no_time() -> None:
    source = timeline(buckets=2)
    met = source.collectives
    assert met is not None
    columns = {name: getattr(met, name).copy() for name in ("ready_s", "start_s", "end_s")}
    for column in columns.values():
        column[:, 9, 1] = np.nan

    got = measure_data_parallel(replace(source, collectives=replace(met, **columns)))

    assert np.isfinite(got.durations).all()
    assert got.durations.max() < 1.0


def test_no_step_of_all_ranks_cannot_be_replayed() -> None:
    source = timeline(ranks=2, steps=2)
    end_s = source.end_s.copy()
    end_s[0, 0] = end_s[1, 1] = np.nan

    with pytest.raises(NotReplayable, match="no step that all ranks have"):
        measure_data_parallel(replace(source, end_s=end_s))


def test_of_one_step_alone_what_follows_the_meeting_is_its_own() -> None:
    source = timeline(steps=1)

    got = replay(source)

    assert got.replayed_s == pytest.approx(source.step_s.max(axis=0))
    assert got.measured.steps.tolist() == [0]


def test_a_single_rank_is_replayed_step_by_step() -> None:
    source = timeline(ranks=1, jitter=0.2, checkpoint_s=periodic(STEPS, 7, 0.08))

    got = replay(source)

    assert got.measured.num_replicas == 1
    assert got.measured.steps.tolist() == source.steps.tolist()
    assert np.allclose(got.replayed_s, source.step_s[0], rtol=1e-9)


def test_ranks_that_never_meet_are_replayed_step_by_step() -> None:
    source = timeline(transfer_s=0.0, jitter=0.3)
    accounts = source.accounts.copy()
    accounts[:, :, 1] = 0.0
    apart = replace(source, collectives=None, accounts=accounts, end_s=source.begin_s + accounts.sum(axis=2))

    got = replay(apart)

    assert np.allclose(got.replayed_s, apart.step_s.max(axis=0), rtol=1e-9)


def test_without_collectives_the_shortest_wait_is_the_transfer() -> None:
    source = replace(timeline(jitter=0.1, transfer_s=0.03), collectives=None)

    got = replay(source)

    moved = got.measured.durations[got.measured.labelled("transfer")]
    assert np.allclose(moved, 0.03)
    assert got.error == pytest.approx(0.0, abs=1e-9)


def test_time_that_no_account_has_is_replayed_as_other() -> None:
    source = timeline(jitter=0.0)
    accounts = source.accounts.copy()
    accounts[:, :, 0] = np.nan  # compute is not known

    got = replay(replace(source, accounts=accounts))

    assert got.error == pytest.approx(0.0, abs=1e-9)
    assert got.measured.durations[got.measured.labelled("other")].mean() == pytest.approx(0.1)


def test_work_goes_with_the_steps_that_are_replayed() -> None:
    work = np.arange(RANKS * STEPS).reshape(RANKS, STEPS) + 1.0

    got = measure_data_parallel(timeline(work=work))

    assert got.work is not None
    assert got.work.tolist() == work[:, 1:].tolist()
