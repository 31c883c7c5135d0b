"""A link that is slower than its peers, in a simulated pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gscalar.diagnosis.hypotheses.slow_link import examine
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Status
from gscalar.testing.pipelines import PipelineDraw, draw_pipeline, rows_timeline, simulate_pipeline


def drawn(pp: int = 4, dp: int = 2) -> PipelineDraw:
    return draw_pipeline(np.random.default_rng(0), dp=dp, pp=pp, micro=8, steps=6, message_s=0.002, collective_s=0.004)


def seen(draw: PipelineDraw) -> Seen:
    return Seen.of(rows_timeline(simulate_pipeline(draw)))


def test_links_that_are_alike_are_no_slow_link() -> None:
    assert examine(seen(drawn())).status is Status.REJECTED


def test_an_edge_that_takes_ten_times_as_long_is_named_by_its_two_ranks() -> None:
    draw = drawn()
    slow_s = draw.send_forward_s.copy()
    slow_s[1, :, 2] *= 10  # of replica 1, from stage 2 to stage 3
    found = examine(seen(replace(draw, send_forward_s=slow_s)))
    want = {each.rank for each in seen(draw).timeline.ranks if each.data_rank == 1 and each.stage in (2, 3)}
    assert (found.status, set(found.ranks), found.stages) == (Status.SUPPORTED, want, (2, 3))
    assert (found.doubts, found.evidence_against) == (0, ())
    assert "10.0x" in found.evidence_for[0]


def test_a_stage_that_exchanges_longer_may_have_more_bytes_and_is_doubted() -> None:
    draw = drawn()
    slow_s = draw.scatter_s.copy()
    slow_s[:, 1] *= 20
    found = examine(seen(replace(draw, scatter_s=slow_s)))
    assert (found.status, found.stages, found.ranks) == (Status.SUPPORTED, (1,), ())
    assert found.doubts == 1
    assert "bytes" in found.evidence_against[0]


def test_of_two_links_neither_is_called_slow() -> None:
    draw = drawn(pp=2)
    slow_s = draw.send_forward_s.copy()
    slow_s[1] *= 10
    assert examine(seen(replace(draw, send_forward_s=slow_s))).status is Status.UNKNOWN
