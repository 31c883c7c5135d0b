from __future__ import annotations

import math

import numpy as np
import pytest

from gscalar.model.spans import CollectiveKind
from gscalar.prediction.collectives import Algorithm, AlphaBeta
from gscalar.prediction.exchange import BUCKET_BYTES, Exchange, even_exchange, measured_exchange
from gscalar.testing.trainings import Cluster, timeline_of

LINK = AlphaBeta(alpha_s=0.0, beta_bytes_per_s=1.0)  # of two workers, as many seconds as bytes


def exchange(num_bytes: list[float], lead_s: list[float], *, seen: bool = True) -> Exchange:
    return Exchange(
        kind=(CollectiveKind.ALL_REDUCE,) * len(num_bytes),
        num_bytes=np.array(num_bytes),
        lead_s=np.array(lead_s),
        lead_seen=seen,
    )


@pytest.mark.parametrize(
    ("what", "num_bytes", "lead_s", "want"),
    [
        ("the last bucket is ready at the end and is exposed", [2.0], [0.0], 2.0),
        ("what fits before the end is hidden", [2.0, 1.0], [3.0, 0.0], 1.0),
        ("a bucket waits for the one before", [5.0, 1.0], [3.0, 0.0], 3.0),
        ("all is hidden where all is ready early", [1.0, 1.0], [9.0, 8.0], 0.0),
        ("the link rests where nothing is ready", [1.0, 1.0], [9.0, 0.0], 1.0),
        ("nothing to exchange costs nothing", [], [], 0.0),
    ],
)
def test_what_goes_on_after_the_backward_is_exposed(
    what: str, num_bytes: list[float], lead_s: list[float], want: float
) -> None:
    assert exchange(num_bytes, lead_s).exposed_s(LINK, 2) == pytest.approx(want), what


def test_without_overlap_all_of_it_is_exposed() -> None:
    assert exchange([2.0, 1.0], [3.0, 0.0]).exposed_s(LINK, 2, overlaps=False) == pytest.approx(3.0)


def test_a_shorter_backward_hides_less() -> None:
    assert exchange([2.0, 1.0], [3.0, 0.0]).exposed_s(LINK, 2, compute_ratio=1 / 3) == pytest.approx(2.0)


def test_one_worker_exchanges_nothing() -> None:
    assert exchange([2.0], [0.0]).exposed_s(LINK, 1) == 0.0


def test_a_tree_exposes_less_latency_among_many() -> None:
    link = AlphaBeta(alpha_s=1.0, beta_bytes_per_s=math.inf)
    got = [exchange([1.0], [0.0]).exposed_s(link, 64, algorithm=each) for each in (Algorithm.RING, Algorithm.TREE)]
    assert got == [126.0, 12.0]


def test_buckets_that_nobody_saw_are_ready_evenly_in_two_thirds_of_the_compute() -> None:
    got = even_exchange(3.5 * BUCKET_BYTES, 0.9)
    np.testing.assert_allclose(got.lead_s, [0.45, 0.3, 0.15, 0.0])
    assert got.num_bytes.sum() == pytest.approx(3.5 * BUCKET_BYTES)
    assert not got.lead_seen


def test_the_link_of_a_training_is_that_of_its_buckets() -> None:
    timeline = Cluster(alpha_s=2e-5, beta_bytes_per_s=3e9).train(8, 40)
    got = measured_exchange(timeline, timeline.account("exposed_communication"), math.nan)
    assert got is not None
    link = got.fit(8)
    assert link is not None
    assert (link.alpha_s, link.beta_bytes_per_s) == pytest.approx((2e-5, 3e9), rel=1e-3)
    np.testing.assert_allclose(got.lead_s, [0.1 * 2 / 3 * share for share in (2 / 3, 1 / 3, 0)], rtol=0.05, atol=1e-9)
    assert got.stall_s(link) == pytest.approx(0.0, abs=5e-4)


def test_a_host_that_stalls_now_and_then_is_a_stall_and_no_slow_link() -> None:
    timeline = Cluster().train(4, 50)
    found = timeline.collectives
    assert found is not None
    found.end_s[:, ::10, -1] += 0.1  # one step of ten
    exposed_s = timeline.account("exposed_communication")
    exposed_s[:, ::10] += 0.1
    got = measured_exchange(timeline, exposed_s, math.nan)
    assert got is not None
    link = got.fit(4)
    assert link is not None
    assert link.beta_bytes_per_s == pytest.approx(4e9, rel=0.01)
    assert got.stall_s(link) == pytest.approx(0.01, rel=0.1)


def test_buckets_that_were_not_seen_now_and_then_or_never_do_not_move_the_link() -> None:
    timeline = Cluster().train(4, 20)
    found = timeline.collectives
    assert found is not None
    found.end_s[:, 3, 0] = np.nan
    found.ready_s[:, 5, 1] = np.nan
    found.end_s[:, :, 2] = np.nan
    got = measured_exchange(timeline, timeline.account("exposed_communication"), math.nan)
    assert got is not None
    link = got.fit(4)
    assert link is not None
    assert (link.alpha_s, link.beta_bytes_per_s) == pytest.approx((30e-6, 4e9), rel=0.01)
    assert np.isfinite(got.lead_s).all()


def test_without_collectives_the_shortest_wait_is_one_transfer() -> None:
    exposed_s = np.array([[0.3, 0.2, 0.2], [0.1, 0.4, 0.1]])
    got = measured_exchange(timeline_of(np.ones((2, 3)), exposed_s), exposed_s, 1e6)
    assert got is not None
    assert got.transfer_s is not None
    np.testing.assert_allclose(got.transfer_s[:, 0], [0.1, 0.2, 0.1])
    link = got.fit(2)
    assert link is not None
    assert link.beta_bytes_per_s == pytest.approx(1e7)


@pytest.mark.parametrize(
    ("what", "exposed_s", "num_bytes"),
    [
        ("nothing is exposed", np.zeros((2, 3)), 1e6),
        ("nobody knows how much is exchanged", np.ones((2, 3)), math.nan),
        ("there is one worker", np.ones((1, 3)), 1e6),
    ],
)
def test_an_exchange_that_nobody_saw_is_not_known(what: str, exposed_s: np.ndarray, num_bytes: float) -> None:
    assert measured_exchange(timeline_of(np.ones_like(exposed_s), exposed_s), exposed_s, num_bytes) is None, what
