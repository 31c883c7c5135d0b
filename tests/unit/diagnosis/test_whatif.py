"""Single questions, held against simulations of the training that is asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.base.errors import UserError
from gscalar.diagnosis.whatif import Question, answer
from gscalar.model.timeline import StepTimeline
from gscalar.testing.pipelines import pipeline_timeline
from gscalar.testing.timelines import data_parallel_timeline, draw_data_parallel, periodic, simulate_data_parallel


def timeline(seed: int = 0, **options: Any) -> StepTimeline:
    return data_parallel_timeline(np.random.default_rng(seed), **options)


def mean_step_s(found: StepTimeline) -> float:
    return float(found.step_s.mean())


def test_more_workers_wait_longer_for_the_latest_of_them() -> None:
    few = timeline(ranks=4, steps=100, jitter=0.1, transfer_s=0.0001)
    many = timeline(seed=9, ranks=64, steps=100, jitter=0.1, transfer_s=0.0001)
    got = answer(few, Question(workers=64))
    assert got.forecast.predicted_mean_s == pytest.approx(mean_step_s(many), rel=0.03)
    assert got.forecast.predicted_mean_s > 1.05 * mean_step_s(few)


def test_a_ring_of_more_workers_moves_a_little_more() -> None:
    few, many = timeline(ranks=2, jitter=0.0, transfer_s=0.1), timeline(ranks=16, jitter=0.0, transfer_s=0.1 * 1.875)
    got = answer(few, Question(workers=16))
    assert got.forecast.predicted_mean_s == pytest.approx(mean_step_s(many), rel=0.02)


def test_a_link_moves_the_bytes_that_were_recorded() -> None:
    options = {"ranks": 4, "transfer_s": 0.2, "gradient_bytes": 100e6}
    got = answer(timeline(**options), Question(link_bytes_per_s=1.25e9))
    want = timeline(**{**options, "transfer_s": 2 * 0.75 * 100e6 / 1.25e9})
    assert got.forecast.predicted_mean_s == pytest.approx(mean_step_s(want), rel=0.02)
    assert any("100 MB" in remark for remark in got.remarks)


def test_of_few_ranks_that_are_seen_the_others_are_counted_in_the_ring() -> None:
    options: dict[str, Any] = {"ranks": 2, "jitter": 0.0, "transfer_s": 0.2, "gradient_bytes": 100e6}
    two_of_eight = replace(timeline(**options), world=8)
    remarks = answer(two_of_eight, Question(link_bytes_per_s=1.25e9)).remarks
    assert any("140 ms" in remark for remark in remarks)  # 2 * 7 / 8 * 100 MB at 1.25 GB/s
    more = answer(two_of_eight, Question(workers=8)).forecast
    assert more.predicted_mean_s == pytest.approx(mean_step_s(two_of_eight), rel=0.01)


def test_what_stalls_all_ranks_at_once_stalls_more_of_them_no_more_often() -> None:
    options: dict[str, Any] = {"steps": 100, "jitter": 0.0, "transfer_s": 0.0001}
    options["checkpoint_s"] = periodic(100, 10, 0.5)
    got = answer(timeline(ranks=4, **options), Question(workers=64))
    want = mean_step_s(timeline(ranks=64, **options))
    assert got.forecast.predicted_mean_s == pytest.approx(want, rel=0.1)  # stalled frames are drawn


def test_a_fix_that_is_asked_for_twice_is_made_once() -> None:
    found = timeline(transfer_s=0.05)
    once, twice = (answer(found, Question(fixes=("compress",) * times)).forecast for times in (1, 2))
    assert twice == once


@pytest.mark.parametrize("batch", [0, -1, 10**12 + 1, 10**400])
def test_a_batch_beyond_all_measure_is_refused(batch: int) -> None:
    found = replace(timeline(), counters={"samples": np.full(8, 32.0)})
    with pytest.raises(UserError, match="out of range") as caught:
        answer(found, Question(batch=batch))
    assert caught.value.code == "impossible-value"


def test_a_batch_scales_what_grows_with_it() -> None:
    pieces = draw_data_parallel(np.random.default_rng(0), transfer_s=0.05)
    now = replace(simulate_data_parallel(pieces), counters={"samples": np.full(8, 32.0)})
    twice = replace(pieces, compute_s=2 * pieces.compute_s, data_wait_s=2 * pieces.data_wait_s, h2d_s=2 * pieces.h2d_s)
    got = answer(now, Question(batch=64))
    assert got.forecast.predicted_mean_s == pytest.approx(mean_step_s(simulate_data_parallel(twice)), rel=0.02)


def test_fixes_asked_together_are_one_simulation() -> None:
    work = 1000 * np.exp(0.3 * np.random.default_rng(1).standard_normal((8, 40)))
    found = timeline(work=work, transfer_s=0.05)
    alone = [answer(found, Question(fixes=(name,))).forecast.gain for name in ("balance", "compress")]
    together = answer(found, Question(fixes=("balance", "compress"))).forecast.gain
    assert together > max(alone)
    saved = [1 - 1 / gain for gain in (*alone, together)]
    assert saved[2] == pytest.approx(saved[0] + saved[1], abs=0.02)  # they save different parts of a step


REFUSED: dict[str, tuple[StepTimeline, Question, str]] = {
    "a fix that does not exist": (timeline(), Question(fixes=("magic",)), "fix-unknown"),
    "a partition without stages": (timeline(), Question(fixes=("repartition",)), "fix-unknown"),
    "more workers of a pipeline": (
        pipeline_timeline(np.random.default_rng(0)), Question(workers=8), "nothing-to-replay",
    ),
    "a batch where the samples are not known": (timeline(), Question(batch=64), "nothing-to-replay"),
    "a link where the bytes are not known": (
        replace(timeline(), collectives=None), Question(link_bytes_per_s=1e9), "nothing-to-replay",
    ),
    "no worker": (timeline(), Question(workers=0), "impossible-value"),
    "a batch of nothing": (
        replace(timeline(), counters={"samples": np.full(8, 4.0)}), Question(batch=0), "impossible-value",
    ),
    "a link that moves nothing": (timeline(), Question(link_bytes_per_s=0.0), "impossible-value"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_refused_with_a_code(case: str) -> None:
    found, question, code = REFUSED[case]
    with pytest.raises(UserError) as caught:
        answer(found, question)
    assert caught.value.code == code


def test_an_answer_is_the_same_every_time() -> None:
    found = timeline(jitter=0.1)
    assert answer(found, Question(workers=32)) == answer(found, Question(workers=32))
