from __future__ import annotations

import math

import numpy as np
import pytest

from gscalar.model.timeline import ACCOUNT_NAMES
from gscalar.prediction.training import MeasuredTraining, NotScalable, fixed_share
from gscalar.testing.trainings import UPDATE_S, Cluster, timeline_of

COMPUTE_S = np.array([[0.1, 0.2, 0.3], [0.2, 0.2, 0.2]])
EXPOSED_S = np.array([[0.1, 0.0, 0.0], [0.0, 0.0, 0.1]])


def test_a_worker_is_busy_with_all_but_waiting_for_others_and_pauses() -> None:
    timeline = timeline_of(COMPUTE_S, EXPOSED_S)
    timeline.accounts[:, :, ACCOUNT_NAMES.index("checkpoint")] = 0.03
    timeline.accounts[:, :, ACCOUNT_NAMES.index("data_wait")] = 0.05
    timeline.begin_s[:] -= 0.08
    got = MeasuredTraining.of(timeline)
    np.testing.assert_allclose(got.busy_s, COMPUTE_S + UPDATE_S + 0.05)
    np.testing.assert_allclose(got.by_samples_s, COMPUTE_S + 0.05)
    assert got.pause_s == pytest.approx(0.03)
    assert got.step_s == pytest.approx(float((COMPUTE_S + EXPOSED_S).mean()) + UPDATE_S + 0.08)


def test_what_no_account_explains_of_a_step_is_busy() -> None:
    timeline = timeline_of(COMPUTE_S, EXPOSED_S)
    timeline.begin_s[:] -= 0.01
    np.testing.assert_allclose(MeasuredTraining.of(timeline).busy_s, COMPUTE_S + UPDATE_S + 0.01)


def test_a_step_that_some_rank_lacks_is_left_out() -> None:
    timeline = Cluster().train(4, 10)
    timeline.end_s[2, 3] = np.nan
    got = MeasuredTraining.of(timeline)
    assert got.busy_s.shape == (4, 9)
    assert got.exchange is not None
    assert got.exchange.transfer_s is not None
    assert got.exchange.transfer_s.shape == (9, 3)


def test_resampled_steps_keep_their_exchange() -> None:
    measured = MeasuredTraining.of(Cluster().train(2, 10))
    got = measured.of_steps(np.array([3, 3, 7]))
    np.testing.assert_array_equal(got.busy_s, measured.busy_s[:, [3, 3, 7]])
    assert got.exchange is not None
    assert measured.exchange is not None
    for name in ("transfer_s", "measured_s"):
        np.testing.assert_array_equal(getattr(got.exchange, name), getattr(measured.exchange, name)[[3, 3, 7]])


def test_the_world_counts_and_not_the_ranks_that_were_seen() -> None:
    assert MeasuredTraining.of(timeline_of(COMPUTE_S, EXPOSED_S, world=16)).num_workers == 16


def test_one_worker_whose_gradients_are_known_exchanges_them_in_usual_buckets() -> None:
    got = MeasuredTraining.of(timeline_of(np.full((1, 3), 0.3), np.zeros((1, 3))), gradient_bytes=1e8)
    assert got.exchange is not None
    assert got.exchange.num_bytes.sum() == pytest.approx(1e8)
    assert got.link is None


def test_stages_of_a_pipeline_and_no_steps_are_refused() -> None:
    with pytest.raises(NotScalable, match="pipeline"):
        MeasuredTraining.of(timeline_of(COMPUTE_S, EXPOSED_S, stages=2))
    with pytest.raises(NotScalable, match="no step"):
        MeasuredTraining.of(timeline_of(np.empty((2, 0)), np.empty((2, 0))))


# ---- how much is fixed


def varying(fixed_s: float, scatter: float, *, slow: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    work = draw.uniform(500, 1500, (4, 100))
    speed = np.array([1.0, slow, 1.0, slow])[:, None] * 1e-4
    return (fixed_s + work * speed) * draw.normal(1, scatter, work.shape), work


def test_a_fixed_part_is_found_where_work_varied() -> None:
    seconds, work = varying(0.05, 0.02)
    assert fixed_share(seconds, work) == pytest.approx(0.05 / seconds.mean(), rel=0.1)


def test_slow_workers_with_equal_work_are_no_fixed_costs() -> None:
    seconds, work = varying(0.0, 0.02, slow=1.5)
    assert fixed_share(seconds, work) < 0.05


def test_slow_workers_with_less_work_are_no_fixed_costs() -> None:
    # Balanced: half the speed and half the work. Over all workers, seconds hardly grow with work.
    work = np.random.default_rng(2).uniform(800, 1200, (4, 100)) * np.array([[1.5], [0.75], [1.5], [0.75]])
    seconds = work * np.array([[1e-4], [2e-4], [1e-4], [2e-4]])
    assert fixed_share(seconds, work) < 0.15


def test_what_cannot_be_told_is_not_known() -> None:
    seconds, work = varying(0.05, 0.02)
    cases = {
        "work that does not vary": (seconds, np.full_like(work, 1000.0)),
        "work of a worker that varies only from worker to worker": (seconds, np.repeat(work[:, :1], 100, axis=1)),
        "seconds that do not follow it": (np.random.default_rng(1).permutation(seconds.ravel()).reshape(4, 100), work),
        "work that is not known": (seconds, np.where(work > 1400, np.nan, work)),
        "one step": (seconds[:, :1], work[:, :1]),
    }
    for what, case in cases.items():
        assert math.isnan(fixed_share(*case)), what
