from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gscalar.prediction.collectives import AlphaBeta
from gscalar.prediction.scaling import ScalingCurve, scaling_curve
from gscalar.prediction.training import MeasuredTraining
from gscalar.testing.trainings import UPDATE_S, Cluster, timeline_of

CLUSTERS = {
    "scattered": Cluster(),
    "a busy host for all": Cluster(common=0.1),
    "one of eight is slow": Cluster(slow=(3,)),
    "much to exchange": Cluster(bucket_bytes=(40e6, 60e6, 20e6)),
    "latency": Cluster(alpha_s=2e-4, bucket_bytes=(1e5, 3e5)),
    "hardly any scatter": Cluster(scatter=0.002),
}


def curve(cluster: Cluster, workers: list[int], *, measured_on: int = 8, **options: bool) -> ScalingCurve:
    measured = MeasuredTraining.of(cluster.train(measured_on, 150), samples_per_step=32.0 * measured_on)
    return scaling_curve(measured, workers, np.random.default_rng(0), **options)


def even(compute_s: float = 0.1, *, samples: float = 64.0, work: np.ndarray | None = None) -> MeasuredTraining:
    """Return two workers that always take the same, and exchange nothing that takes time."""
    compute = np.full((2, 30), compute_s) if work is None else 0.02 + work * 1e-4
    measured = MeasuredTraining.of(timeline_of(compute, np.zeros_like(compute), work=work), samples_per_step=samples)
    return replace(measured, exchange=MeasuredTraining.of(Cluster(bucket_bytes=(1e-3, 2e-3)).train(2, 30)).exchange)


FREE = AlphaBeta(alpha_s=0.0, beta_bytes_per_s=math.inf)


@pytest.mark.parametrize("name", CLUSTERS)
def test_eight_workers_predict_more_of_them(name: str) -> None:
    got = curve(CLUSTERS[name], [8, 16, 64, 256])
    assert got.points[0].step_s == pytest.approx(got.measured_step_s, rel=1e-9)
    for point in got.points:
        want = CLUSTERS[name].mean_step_s(point.workers)
        assert point.step_s == pytest.approx(want, rel=0.03), point.workers


def test_intervals_hold_most_of_what_more_workers_take() -> None:
    inside = []
    for seed in range(6):
        cluster = Cluster(seed=100 * seed)
        for point in curve(cluster, [16, 128]).points:
            inside.append(point.low_s <= cluster.mean_step_s(point.workers) <= point.high_s)
    assert sum(inside) >= 0.8 * len(inside)


def test_parts_sum_to_the_step_and_speed_is_relative_to_one_worker() -> None:
    got = curve(CLUSTERS["much to exchange"], [1, 8, 64])
    one_s = got.points[0].step_s
    for point in got.points:
        parts = (point.compute_s, point.waiting_s, point.communication_s, point.rest_s)
        assert sum(parts) == pytest.approx(point.step_s)
        assert point.speedup == pytest.approx(point.workers * one_s / point.step_s)
        assert point.efficiency == pytest.approx(point.speedup / point.workers)
        assert point.samples_per_s == pytest.approx(32 * point.workers / point.step_s)
        assert point.low_s <= point.step_s <= point.high_s


@pytest.mark.parametrize(
    ("name", "num_workers", "want"),
    [
        ("much to exchange", 32, "communication"),
        ("latency", 512, "communication"),
        ("one of eight is slow", 32, "waiting for the slowest"),
        ("hardly any scatter", 32, "compute"),
    ],
)
def test_the_limit_is_what_the_speed_is_lost_to(name: str, num_workers: int, want: str) -> None:
    (point,) = curve(CLUSTERS[name], [num_workers]).points
    assert point.limit == want


def test_the_same_measurements_and_draws_give_the_same_curve() -> None:
    assert curve(Cluster(), [8, 64]) == curve(Cluster(), [8, 64])


def test_what_now_and_then_holds_up_an_exchange_stays_communication() -> None:
    timeline = Cluster(scatter=0.002).train(4, 50)
    without = scaling_curve(MeasuredTraining.of(timeline), [16], np.random.default_rng(0)).points[0]
    timeline.account("exposed_communication")[:, ::10] += 0.1  # one step of ten
    timeline.end_s[:, ::10] += 0.1
    got = scaling_curve(MeasuredTraining.of(timeline), [16], np.random.default_rng(0)).points[0]
    assert got.communication_s - without.communication_s == pytest.approx(0.01, rel=0.05)
    assert got.rest_s == pytest.approx(0.0, abs=5e-4)


# ---- strong scaling


def test_strong_scaling_divides_what_grows_with_samples_and_keeps_the_rest() -> None:
    got = scaling_curve(even(), [1, 2, 4, 64], np.random.default_rng(0), strong=True, link=FREE)
    for point in got.points:
        assert point.compute_s == pytest.approx(0.2 / point.workers + UPDATE_S)
        assert point.samples_per_worker == pytest.approx(64 / point.workers)
        assert point.samples_per_s == pytest.approx(64 / point.step_s)
        assert point.speedup == pytest.approx(got.points[0].step_s / point.step_s)
    assert got.points[-1].limit == "fixed costs"
    assert any("proportional" in note for note in got.notes)


def test_strong_scaling_knows_the_fixed_part_of_the_compute_where_work_varied() -> None:
    work = np.random.default_rng(0).uniform(500, 1500, (2, 30))
    got = scaling_curve(even(work=work), [2, 32], np.random.default_rng(0), strong=True, link=FREE)
    two, many = got.points
    assert two.compute_s == pytest.approx(0.02 + 1e-4 * work.mean() + UPDATE_S, rel=1e-6)
    assert many.compute_s == pytest.approx(0.02 + 1e-4 * work.mean() / 16 + UPDATE_S, rel=1e-6)


def test_workers_without_a_sample_are_left_out_and_named() -> None:
    got = scaling_curve(even(samples=16), [8, 16, 32], np.random.default_rng(0), strong=True, link=FREE)
    assert [each.workers for each in got.points] == [8, 16]
    assert any("16 samples" in note for note in got.notes)


# ---- what is not known


def test_without_a_link_steps_are_lower_bounds_without_an_upper_end() -> None:
    measured = MeasuredTraining.of(timeline_of(np.full((1, 30), 0.1), np.zeros((1, 30))), gradient_bytes=1e6)
    one, two = scaling_curve(measured, [1, 2], np.random.default_rng(0)).points
    assert one.communication_s == 0
    assert math.isnan(two.communication_s)
    assert two.step_s == pytest.approx(0.1 + UPDATE_S)
    assert two.high_s == math.inf


def test_a_given_link_stands_in_for_one_that_was_not_measured() -> None:
    measured = MeasuredTraining.of(timeline_of(np.full((1, 30), 0.3), np.zeros((1, 30))), gradient_bytes=1e8)
    link = AlphaBeta(alpha_s=0.0, beta_bytes_per_s=1e9)
    got = scaling_curve(measured, [4], np.random.default_rng(0), link=link)
    # 4 buckets of 25 MB take 37.5 ms each and are ready every 50 ms: the last one is exposed.
    assert got.points[0].communication_s == pytest.approx(0.0375)
    # Nobody has seen the overlap: with none all four are.
    assert got.points[0].high_s == pytest.approx(0.3 + UPDATE_S + 0.15)


def test_a_given_link_replaces_the_measured_one() -> None:
    measured = MeasuredTraining.of(Cluster().train(8, 50))
    slow = AlphaBeta(alpha_s=0.0, beta_bytes_per_s=1e7)
    got = scaling_curve(measured, [8], np.random.default_rng(0), link=slow)
    # 14 MB, of which a ring sends 1.75 times as much, less the little that the backward hides.
    assert got.points[0].communication_s == pytest.approx(14e6 * 1.75 / 1e7, rel=0.05)


def test_gradients_of_unknown_size_leave_even_a_given_link_without_use() -> None:
    measured = MeasuredTraining.of(timeline_of(np.full((1, 30), 0.1), np.zeros((1, 30))))
    got = scaling_curve(measured, [2], np.random.default_rng(0), link=FREE)
    assert math.isnan(got.points[0].communication_s)
    assert any("exchange is not known" in note for note in got.notes)


def test_latency_that_one_size_does_not_tell_widens_the_interval_upwards() -> None:
    blind = curve(Cluster(bucket_bytes=(4e6, 4e6, 4e6)), [256])
    seeing = curve(Cluster(bucket_bytes=(2e6, 4e6, 6e6)), [256])
    assert blind.points[0].high_s >= seeing.points[0].step_s
    assert blind.points[0].high_s / blind.points[0].step_s > seeing.points[0].high_s / seeing.points[0].step_s + 0.05
    assert any("latency" in note for note in blind.notes)


@pytest.mark.parametrize(
    ("efficiency", "want"), [(0.99, 1), (0.5, 64), (1.1, None)]
)  # fmt: skip
def test_most_workers_are_those_up_to_which_all_keep_the_efficiency(efficiency: float, want: int | None) -> None:
    assert curve(Cluster(scatter=0.02), [1, 8, 64]).most_workers(efficiency) == want


def test_one_step_has_no_interval() -> None:
    measured = MeasuredTraining.of(timeline_of(np.full((2, 1), 0.1), np.full((2, 1), 0.01)), gradient_bytes=1e6)
    (point,) = scaling_curve(measured, [4], np.random.default_rng(0)).points
    assert (point.low_s, point.high_s) == (0, math.inf)
