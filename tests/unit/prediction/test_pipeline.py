from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import Activity, Spans, StepTimeline
from gscalar.prediction.forecast import Replay
from gscalar.prediction.measured import NotReplayable
from gscalar.prediction.pipeline import measure_pipeline
from gscalar.testing.pipelines import Row, draw_pipeline, pipeline_timeline, rows_timeline, simulate_pipeline


def rows(seed: int = 1, **options: Any) -> list[Row]:
    return simulate_pipeline(draw_pipeline(np.random.default_rng(seed), **options))


def replay(timeline: StepTimeline) -> Replay:
    return Replay.of(measure_pipeline(timeline))


SHAPES = [
    (dp, pp, micro, vpp)
    for dp, pp, micro, vpp in itertools.product((1, 3), (1, 2, 4), (1, 4, 8), (1, 2))
    if vpp == 1 or (pp > 1 and micro % pp == 0)
]


@pytest.mark.parametrize(("dp", "pp", "micro", "vpp"), SHAPES)
def test_the_replay_of_a_simulation_takes_what_the_simulation_took(dp: int, pp: int, micro: int, vpp: int) -> None:
    source = rows(dp=dp, pp=pp, micro=micro, vpp=vpp, jitter=0.3, length_spread=0.4, slow={(0, pp - 1): 1.5})

    got = replay(rows_timeline(source))

    want = [max(row.start_ts + row.duration for row in source if row.step == step) for step in range(3)]
    assert got.measured.frame_s == pytest.approx(want, rel=1e-12)
    assert got.replayed_s == pytest.approx(want, rel=1e-9)


def test_each_operation_begins_and_ends_when_it_did() -> None:
    got = measure_pipeline(pipeline_timeline(np.random.default_rng(1), dp=3, pp=4, micro=8, jitter=0.3))

    ends = got.template.ends(got.durations)

    assert got.start_s is not None
    computes = got.nodes(Activity.FORWARD, Activity.BACKWARD)
    assert np.allclose(ends[computes] - got.durations[computes], got.start_s[computes], rtol=1e-9)


def test_a_delay_before_operations_is_the_replay_s_error() -> None:
    plain = replay(pipeline_timeline(np.random.default_rng(1)))
    late = replay(pipeline_timeline(np.random.default_rng(1), delay_s=0.001))

    assert late.replayed_s == pytest.approx(plain.replayed_s, rel=1e-9)
    assert late.error > 0.01
    assert late.error == pytest.approx(late.measured.frame_s.mean() / plain.replayed_s.mean() - 1)


def test_what_an_early_rank_waits_is_no_transfer() -> None:
    options: dict[str, Any] = {"dp": 2, "pp": 2, "micro": 4, "jitter": 0.0, "slow": {(1, 0): 3.0}}
    draw = draw_pipeline(np.random.default_rng(1), **options)

    got = measure_pipeline(rows_timeline(simulate_pipeline(draw)))

    for activity, want_s in (
        (Activity.SEND_FORWARD, 0.001),
        (Activity.RECEIVE_FORWARD, 0.001),
        (Activity.RECEIVE_BACKWARD, 0.001),
        (Activity.GATHER_PARAMETERS, 0.004),
        (Activity.SCATTER_GRADIENTS, 0.004),
        (Activity.REDUCE_EMBEDDING, 0.0004),
        (Activity.CLIP, 0.0004),
    ):
        assert np.allclose(got.durations[got.nodes(activity)], want_s, rtol=1e-9), activity.name


def test_a_transfer_that_ends_before_the_last_start_takes_no_time() -> None:
    # The clocks of stages differ: the receive seems to be over before the send begins.
    source = [
        row._replace(duration=0.0001) if row.optype == "forward-recv" else row for row in rows(jitter=0.0, micro=1)
    ]

    got = measure_pipeline(rows_timeline(source))

    received = got.durations[got.nodes(Activity.RECEIVE_FORWARD)]
    assert np.array_equal(received, np.zeros_like(received))
    assert (got.durations >= 0).all()


def test_what_transfers_and_what_meets() -> None:
    got = measure_pipeline(pipeline_timeline(np.random.default_rng(1), dp=2, pp=3, micro=3))

    nodes = got.template.nodes
    meetings = Counter((node.meeting, node.activity) for node in nodes if node.meeting != -1)
    members = Counter((activity.name, count) for (_, activity), count in meetings.items())
    assert members == {
        ("GATHER_PARAMETERS", 1): 3,  # one node a stage, over the replicas
        ("SCATTER_GRADIENTS", 1): 3,
        ("REDUCE_EMBEDDING", 2): 1,  # first and last stage
        ("CLIP", 3): 1,  # every stage, and all replicas
        ("SEND_FORWARD", 1): 6,
        ("RECEIVE_FORWARD", 1): 6,
        ("SEND_BACKWARD", 1): 6,
        ("RECEIVE_BACKWARD", 1): 6,
    }
    across = {node.activity.name for node in nodes if node.across_replicas}
    assert across == {"GATHER_PARAMETERS", "SCATTER_GRADIENTS", "CLIP"}


def test_replicas_and_stages_are_told_by_their_places_and_not_by_their_numbers() -> None:
    source = rows(dp=3, pp=2, slow={(1, 0): 2.0})
    renumbered = [row._replace(rank=100 - row.rank) for row in source]

    got, want = measure_pipeline(rows_timeline(renumbered)), measure_pipeline(rows_timeline(source))

    assert np.allclose(got.durations, want.durations, rtol=1e-12)
    assert want.rank_index.tolist() == [[0, 1, 2], [3, 4, 5]]  # rank = stage * 3 + replica
    assert got.rank_index.tolist() == [[5, 4, 3], [2, 1, 0]]


def test_a_step_that_lacks_an_operation_is_left_out_with_a_note() -> None:
    source = rows(steps=4)
    victim = next(row for row in source if row.step == 2 and row.optype == "backward-compute" and row.rank == 1)

    got = measure_pipeline(rows_timeline([row for row in source if row is not victim]))

    assert got.steps.tolist() == [0, 1, 3]
    assert got.notes == ("1 of 4 steps lack operations and are left out",)
    assert got.num_frames == 3


def without_rank_3(row: Row) -> Row | None:
    return None if row.rank == 3 else row


def all_on_stage_0(row: Row) -> Row:
    return row._replace(stage=0)


def one_operation_less_each_step(row: Row) -> Row | None:
    return None if row.optype == "forward-compute" and row.mb_id == row.step and row.rank == row.step else row


REFUSED: dict[str, tuple[Callable[[Row], Row | None], str]] = {
    "a rank is missing": (without_rank_3, "1 of 4 ranks are missing"),
    "two ranks on one place": (all_on_stage_0, "two ranks have the same place"),
    "every step lacks something": (one_operation_less_each_step, "no step has all operations"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_replayed_is_refused(case: str) -> None:
    change, want = REFUSED[case]
    source = [changed for row in rows(dp=2, pp=2, steps=3) if (changed := change(row)) is not None]

    with pytest.raises(NotReplayable, match=want):
        measure_pipeline(rows_timeline(source))


def test_a_timeline_without_operations_is_refused() -> None:
    empty = replace(pipeline_timeline(np.random.default_rng(1)), spans=Spans.of(0))
    unknown = rows_timeline([row._replace(optype="moe-all-to-all") for row in rows()])

    for source in (empty, unknown):
        with pytest.raises(NotReplayable, match="no operations"):
            measure_pipeline(source)


def test_without_chunk_numbers_there_is_one_chunk_a_stage() -> None:
    source = rows(dp=2, pp=4, micro=8, jitter=0.3)
    want = replay(rows_timeline(source))

    got = replay(rows_timeline([row._replace(gmc=-1) for row in source]))

    assert got.replayed_s == pytest.approx(want.replayed_s, rel=1e-12)


def test_operations_of_an_unknown_type_are_no_part_of_the_replay() -> None:
    source = rows()
    extra = [row._replace(optype="moe-all-to-all", duration=9.0) for row in source[::5]]

    got = replay(rows_timeline(source + extra))

    assert got.replayed_s == pytest.approx(replay(rows_timeline(source)).replayed_s, rel=1e-12)


def test_a_collection_after_the_computes_delays_what_follows() -> None:
    source = rows(dp=2, pp=1, micro=2, jitter=0.0)
    last_s = {(row.step, row.rank): row.start_ts + row.duration for row in source if row.optype == "backward-compute"}
    shifted = [
        row._replace(start_ts=row.start_ts + 0.05)
        if row.optype in ("grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer")
        else row
        for row in source
    ]
    collections = [Row(rank, 0, rank, step, "gc", start_s, 0.05, 0, -1, -1) for (step, rank), start_s in last_s.items()]

    got = replay(rows_timeline(shifted + collections))

    assert got.error == pytest.approx(0.0, abs=1e-9)
    assert got.replayed_s == pytest.approx(replay(rows_timeline(source)).replayed_s + 0.05, rel=1e-9)
