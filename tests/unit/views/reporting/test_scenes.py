"""Which steps and ranks are drawn, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import StepTimeline
from gscalar.testing.timelines import data_parallel_timeline
from gscalar.views.reporting.scenes import MOST_RANKS, choose_ranks, choose_steps, draw_scenes


def training(**options: Any) -> StepTimeline:
    return data_parallel_timeline(np.random.default_rng(5), **({"ranks": 4, "steps": 20, "slow": {2: 1.5}} | options))


def test_the_slowest_step_the_median_one_and_their_neighbours_are_drawn() -> None:
    # All steps take 100 ms but 7, which takes 300 ms; 3 is the one nearest the median.
    timeline = training()
    length_s = np.full(20, 0.1) + np.linspace(-1e-3, 1e-3, 20)[np.random.default_rng(0).permutation(20)]
    length_s[7] = 0.3
    middle = int(np.abs(length_s - np.median(length_s)).argmin())
    timeline = replace(timeline, end_s=timeline.begin_s + length_s)
    want = {6, 7, 8} | {at for at in (middle - 1, middle, middle + 1) if 0 <= at < 20}
    assert set(choose_steps(timeline)) == want


def test_a_step_that_no_rank_has_is_not_drawn() -> None:
    timeline = training(steps=3)
    begin_s = timeline.begin_s.copy()
    begin_s[:, 1] = np.nan
    assert choose_steps(replace(timeline, begin_s=begin_s)) == [0, 2]


def test_of_many_ranks_those_that_matter_are_drawn() -> None:
    timeline = training(ranks=500, steps=3)
    got = choose_ranks(timeline, named=(123, 9_999), lasts=[377])
    assert {0, 123, 377} <= set(got.tolist())
    assert len(got) == MOST_RANKS
    assert sorted(got) == got.tolist()


def test_the_slow_rank_is_the_one_that_is_waited_for() -> None:
    scenes = draw_scenes(training(), (2,))
    assert scenes is not None
    assert [scene["last"] for scene in scenes.data["scenes"]] == [[2]] * len(scenes.data["scenes"])
    assert any(each.startswith("rank 2 was waited for longest in steps ") for each in scenes.remarks)
    assert [rank["named"] for rank in scenes.data["ranks"]] == [False, False, True, False]


def test_lines_join_all_ranks_where_the_slow_one_came() -> None:
    timeline = training(jitter=0.0)
    scenes = draw_scenes(timeline, ())
    assert scenes is not None
    scene = scenes.data["scenes"][0]
    (line,) = scene["meets"]
    moment, came, runs = line
    assert (came, runs) == (2, [[0, 3]])
    # It computes 1.5 times 100 ms after 2.5 ms of other work, from the begin of the step.
    assert moment * scene["tick"] == pytest.approx(0.1525, rel=1e-3)


def test_without_aligned_clocks_nothing_is_drawn_across_ranks() -> None:
    timeline = training()
    ranks = tuple(replace(each, clock_error_s=float("nan")) for each in timeline.ranks)
    shift_s = np.array([0.0, 100.0, -50.0, 7.0])
    spans = replace(
        timeline.spans,
        start_s=timeline.spans.start_s + shift_s[timeline.spans.rank],
        end_s=timeline.spans.end_s + shift_s[timeline.spans.rank],
    )
    shifted = replace(
        timeline,
        ranks=ranks,
        spans=spans,
        begin_s=timeline.begin_s + shift_s[:, None],
        end_s=timeline.end_s + shift_s[:, None],
    )
    scenes = draw_scenes(shifted, ())
    assert scenes is not None
    for scene in scenes.data["scenes"]:
        assert scene["meets"] == []
        assert scene["last"] is None
        assert scene["length"] * scene["tick"] < 1.0, "each rank counts from its own begin"
    assert any("clocks are not aligned" in each for each in scenes.remarks)


def test_no_spans_are_no_scene() -> None:
    timeline = training()
    assert draw_scenes(replace(timeline, spans=type(timeline.spans).of(0)), ()) is None
