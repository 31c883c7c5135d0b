"""Edits of pipelines, each against a second simulation of the same draw with that fix really made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import Activity, Floats
from gscalar.prediction import edits
from gscalar.prediction.edits import Edit
from gscalar.prediction.forecast import Replay
from gscalar.prediction.measured import ideal_durations
from gscalar.prediction.pipeline import measure_pipeline
from gscalar.testing.pipelines import PipelineDraw, draw_pipeline, rows_timeline, simulate_pipeline

DP, PP, MICRO, STEPS = 3, 4, 8, 3
COMPUTES = ("forward_s", "backward_s")
MESSAGES = ("send_forward_s", "send_backward_s")
EXCHANGES = ("gather_s", "scatter_s", "embedding_s")


def truth(draw: PipelineDraw) -> Floats:
    source = simulate_pipeline(draw)
    return np.array([max(row.start_ts + row.duration for row in source if row.step == step) for step in range(STEPS)])


def edited(draw: PipelineDraw, edit: Edit) -> Floats:
    return Replay.of(measure_pipeline(rows_timeline(simulate_pipeline(draw)))).edited_s([edit])[0]


def changed(draw: PipelineDraw, names: tuple[str, ...], change: Callable[[Floats], Any]) -> PipelineDraw:
    return replace(
        draw, **{name: np.broadcast_to(change(was := getattr(draw, name)), was.shape).copy() for name in names}
    )


def median_of_peers(was: Floats) -> Floats:
    """Stage 2 of replica 1 takes what the other replicas take: `(dp, steps, chunks, micro)`."""
    now = was.copy()
    now[1, :, 2] = np.median(was[[0, 2], :, 2], axis=0)
    return now


def even_stages(was: Floats) -> Floats:
    of_stage = was.mean(axis=(0, 1, 3), keepdims=True)
    return was * of_stage.mean() / of_stage


def hidden(draw: PipelineDraw) -> PipelineDraw:
    """Parameters come behind the mean forward of their stage, gradients behind the mean backward."""
    draw = changed(draw, MESSAGES, lambda was: 0 * was)
    # The slowest replica hides most, but a gather ends on all replicas at once: the least hidden counts.
    forward_s, backward_s = (
        getattr(draw, name).mean(axis=3).min(axis=0) for name in COMPUTES
    )  # (steps, stages), one chunk each
    return replace(
        draw,
        gather_s=np.maximum(draw.gather_s - forward_s, 0.0),
        scatter_s=np.maximum(draw.scatter_s - backward_s, 0.0),
    )


SLOW: dict[str, Any] = {"slow": {(1, 2): 1.6}, "jitter": 0.1}
FIXES: dict[str, tuple[dict[str, Any], Edit, Callable[[PipelineDraw], PipelineDraw]]] = {
    "nothing is exchanged, but the clip stays": (
        SLOW,
        edits.without_transfers,
        lambda draw: changed(draw, MESSAGES + EXCHANGES, lambda was: 0 * was),
    ),
    "everything is exchanged in half the time": (
        SLOW,
        edits.transfers_scaled(0.5),
        lambda draw: changed(draw, MESSAGES + EXCHANGES, lambda was: 0.5 * was),
    ),
    "every compute takes the mean of its type": (
        SLOW,
        edits.ideal_compute,
        lambda draw: changed(draw, COMPUTES, lambda was: was.mean()),
    ),
    "micro-batches of a step are evened on each stage": (
        {"length_spread": 0.5},
        edits.balanced,
        lambda draw: changed(draw, COMPUTES, lambda was: was.mean(axis=(0, 3), keepdims=True)),
    ),
    "a slow worker replaced": (
        SLOW,
        edits.replaced([(2, 1)]),
        lambda draw: changed(draw, COMPUTES, median_of_peers),
    ),
    "layers moved between stages": (
        {"stage_factors": (1.0, 0.8, 1.0, 1.9), "jitter": 0.1},
        edits.repartitioned,
        lambda draw: changed(draw, COMPUTES, even_stages),
    ),
    "exchanges hidden behind computes": (
        {"jitter": 0.0, "collective_s": 0.06, "message_s": 0.004},
        edits.overlapped(latency_s=0.0),
        hidden,
    ),
}


@pytest.mark.parametrize("case", FIXES)
def test_an_edited_step_takes_what_the_fixed_training_takes(case: str) -> None:
    options, edit, change = FIXES[case]
    draw = draw_pipeline(np.random.default_rng(2), dp=DP, pp=PP, micro=MICRO, steps=STEPS, **options)

    got, want = edited(draw, edit), truth(change(draw))

    assert np.allclose(got, want, rtol=1e-9, atol=0)
    assert want.mean() < 0.99 * truth(draw).mean(), "the fix of this case changes nothing"


def test_the_ideal_has_one_duration_a_type_over_everything() -> None:
    draw = draw_pipeline(np.random.default_rng(2), dp=DP, pp=PP, micro=MICRO, steps=STEPS, **SLOW)
    steps = measure_pipeline(rows_timeline(simulate_pipeline(draw)))

    got = ideal_durations(steps)

    sent_s = draw.send_forward_s[:, :, :-1]  # the last stage's output goes nowhere
    for activity, want_s in (
        (Activity.FORWARD, draw.forward_s.mean()),
        (Activity.BACKWARD, draw.backward_s.mean()),
        (Activity.OPTIMIZER, draw.optimizer_s.mean()),
        (Activity.SEND_FORWARD, np.median(sent_s)),
        (Activity.RECEIVE_FORWARD, np.median(sent_s)),
        (Activity.SCATTER_GRADIENTS, np.median(draw.scatter_s)),
        (Activity.CLIP, np.median(draw.clip_s)),
    ):
        assert np.allclose(got[steps.nodes(activity)], want_s, rtol=1e-9), activity.name


def test_slowdown_is_the_replay_over_the_ideal_replay() -> None:
    draw = draw_pipeline(np.random.default_rng(2), dp=DP, pp=PP, micro=MICRO, steps=STEPS, delay_s=0.002, **SLOW)
    ideal = changed(draw, (*COMPUTES, "optimizer_s"), lambda was: was.mean())
    ideal = changed(ideal, (*EXCHANGES, "clip_s"), np.median)
    ideal = replace(
        ideal,
        send_forward_s=np.full_like(draw.send_forward_s, np.median(draw.send_forward_s[:, :, :-1])),
        send_backward_s=np.full_like(draw.send_backward_s, np.median(draw.send_backward_s[:, :, 1:])),
        delay_s=0.0,
    )

    got = Replay.of(measure_pipeline(rows_timeline(simulate_pipeline(draw))))

    undelayed = truth(replace(draw, delay_s=0.0))
    assert got.slowdown == pytest.approx(undelayed.mean() / truth(ideal).mean(), rel=1e-9)
    assert got.measured_over_ideal == pytest.approx(truth(draw).mean() / truth(ideal).mean(), rel=1e-9)
    assert got.error == pytest.approx(truth(draw).mean() / undelayed.mean() - 1, rel=1e-9)
