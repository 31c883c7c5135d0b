from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import ACCOUNT_NAMES, Activity, Lane, Signal, StepTimeline
from gscalar.testing.pipelines import PipelineOptions, Row, draw_pipeline, pipeline_timeline, simulate_pipeline
from gscalar.testing.timelines import data_parallel_timeline, draw_data_parallel, periodic, simulate_data_parallel


def timeline(**options: Any) -> StepTimeline:
    return data_parallel_timeline(np.random.default_rng(1), **options)


TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one rank": {"ranks": 1},
    "buckets that overlap": {"buckets": 4, "overlap": True, "transfer_s": 0.09},
    "everything at once": {
        "jitter": 0.3,
        "slow": {2: 1.7},
        "buckets": 3,
        "gc_s": periodic(40, 5, 0.03),
        "checkpoint_s": periodic(40, 9, 0.2, first=3),
        "loader_work_s": 0.3,
        "loaders": 2,
    },
}


@pytest.mark.parametrize("case", TRAININGS)
def test_accounts_and_spans_fill_each_step(case: str) -> None:
    got = timeline(**TRAININGS[case])

    assert np.allclose(got.accounts.sum(axis=2), got.step_s, rtol=1e-12)
    assert np.array_equal(got.begin_s[:, 1:], got.end_s[:, :-1])
    on_host = got.spans.lane == Lane.HOST
    for rank in range(got.num_ranks):
        mine = on_host & (got.spans.rank == rank)
        assert np.array_equal(got.spans.start_s[mine][1:], got.spans.end_s[mine][:-1])
    for name, activity in (("optimizer", Activity.OPTIMIZER), ("checkpoint", Activity.CHECKPOINT), ("gc", Activity.GC)):
        assert got.spans.duration_s[got.spans.activity == activity].sum() == pytest.approx(got.account(name).sum())


@pytest.mark.parametrize("case", [name for name in TRAININGS if name != "one rank"])
def test_a_collective_ends_everywhere_at_once_after_its_last_rank(case: str) -> None:
    options = TRAININGS[case]
    got = timeline(**options)

    met = got.collectives
    assert met is not None
    assert (met.end_s == met.end_s[:1]).all()
    want_s = options.get("transfer_s", 0.02) / options.get("buckets", 1)
    assert np.allclose(met.end_s - met.start_s.max(axis=0), want_s)
    assert np.allclose(met.transfer_s, want_s)
    assert (met.start_s >= met.ready_s).all()
    assert (met.start_s[:, :, 1:] >= met.end_s[:, :, :-1]).all()


def test_what_is_exposed_is_waiting_and_transfer() -> None:
    got = timeline(jitter=0.2)

    met = got.collectives
    assert met is not None
    assert np.allclose(got.account("exposed_communication"), met.wait_s[:, :, 0] + 0.02)


def test_overlap_hides_what_is_moved_during_the_backward() -> None:
    # Two buckets of 30 ms: the first comes after half of the backward of 66.7 ms, and is over before its end.
    got = timeline(jitter=0.0, buckets=2, overlap=True, transfer_s=0.06)

    assert np.allclose(got.account("exposed_communication"), 0.03)


LOADERS: dict[str, tuple[float, int, float]] = {
    "its own process waits for all of the work": (0.2, 0, 0.2),
    "one loader that does not keep up": (0.2, 1, 0.2 - 0.1),
    "two loaders that keep up": (0.15, 2, 0.0),
    "two loaders that do not": (0.3, 2, 0.15 - 0.1),
}


@pytest.mark.parametrize("case", LOADERS)
def test_a_rank_waits_for_what_its_loaders_have_not_made(case: str) -> None:
    work_s, loaders, want = LOADERS[case]

    got = timeline(
        jitter=0.0, loader_work_s=work_s, loaders=loaders, data_wait_s=0.0, transfer_s=0.0, host_gap_s=0.0, h2d_s=0.0,
        optimizer_s=0.0, steps=60,
    )  # fmt: skip

    settled = got.account("data_wait")[:, 20:]
    assert settled.mean() == pytest.approx(want, abs=1e-9)
    assert got.loading is not None
    if loaders:
        assert (got.loading.queue_empty[:, 20:] == float(want > 0)).mean() > 0.4
    else:
        assert np.isnan(got.loading.queue_empty).all()
        assert Signal.QUEUE in got.unknown


def test_a_changed_option_leaves_the_other_pieces_as_they_were() -> None:
    plain = draw_data_parallel(np.random.default_rng(4), jitter=0.3)
    other = draw_data_parallel(np.random.default_rng(4), jitter=0.3, buckets=4, gc_s=0.1, slow={1: 2.0})

    assert np.array_equal(other.compute_s[0], plain.compute_s[0])
    assert np.allclose(other.compute_s[1], 2 * plain.compute_s[1])


def test_a_rank_that_is_late_makes_all_wait() -> None:
    pieces = draw_data_parallel(np.random.default_rng(1), jitter=0.0, ranks=3)
    late = replace(pieces, gc_s=np.array([[0.0], [0.05], [0.0]]) * np.ones((3, 40)))

    got = simulate_data_parallel(late)

    assert np.allclose(got.account("exposed_communication")[:, 0], [0.07, 0.02, 0.07])
    assert ACCOUNT_NAMES[1] == "exposed_communication"


def test_work_makes_compute_longer_and_is_told() -> None:
    work = np.array([[1.0], [3.0]]) * np.ones((2, 40))

    got = timeline(ranks=2, jitter=0.0, work=work)

    assert np.allclose(got.account("compute"), 0.1 * work / 2)
    assert np.array_equal(got.work, work)  # type: ignore[arg-type]
    assert Signal.WORK not in got.unknown
    assert Signal.WORK in timeline().unknown


# ---- pipelines


def rows(**options: Any) -> list[Row]:
    return simulate_pipeline(draw_pipeline(np.random.default_rng(1), **options))


SHAPES: list[PipelineOptions] = [
    {"dp": 1, "pp": 4, "micro": 8},
    {"dp": 2, "pp": 2, "micro": 1},
    {"dp": 1, "pp": 1, "micro": 3},
    {"dp": 2, "pp": 4, "micro": 8, "vpp": 2},
    {"dp": 1, "pp": 2, "micro": 4, "vpp": 3},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_micro_batch_goes_through_every_chunk_once_and_in_order(shape: PipelineOptions) -> None:
    source = rows(**shape, jitter=0.2, steps=1)

    ends_s: dict[tuple[str, int, int, int], float] = {}
    starts_s = {}
    for row in source:
        if row.optype.endswith("-compute"):
            key = (row.optype.split("-")[0], row.dp_rank, row.gmc, row.mb_id)
            assert key not in ends_s
            starts_s[key], ends_s[key] = row.start_ts, row.start_ts + row.duration
    chunks = shape["pp"] * shape.get("vpp", 1)
    assert len(ends_s) == 2 * shape["dp"] * chunks * shape["micro"]
    for (kind, replica, chunk, micro), start_s in starts_s.items():
        if kind == "forward" and chunk > 0:
            assert start_s > ends_s["forward", replica, chunk - 1, micro]
        if kind == "backward":
            is_last = chunk == chunks - 1
            assert start_s >= ends_s["forward" if is_last else "backward", replica, chunk + (not is_last), micro]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rank_computes_one_operation_at_a_time(shape: PipelineOptions) -> None:
    source = rows(**shape, jitter=0.2, steps=1)

    for rank in {row.rank for row in source}:
        mine = sorted((row.start_ts, row.duration) for row in source if row.rank == rank and "compute" in row.optype)
        assert all(start + took <= after + 1e-12 for (start, took), (after, _) in pairwise(mine))


def test_a_stage_has_no_more_micro_batches_under_way_than_stages_follow_it() -> None:
    source = rows(dp=1, pp=4, micro=8, steps=1, jitter=0.0)

    for stage in range(4):
        under_way, most = 0, 0
        for row in sorted((row for row in source if row.stage == stage), key=lambda row: row.start_ts):
            under_way += {"forward-compute": 1, "backward-compute": -1}.get(row.optype, 0)
            most = max(most, under_way)
        assert most == 4 - stage


def test_sends_and_receives_are_pairs_that_end_together() -> None:
    source = rows(dp=2, pp=4, micro=8, vpp=2, jitter=0.2)

    for kind in ("forward", "backward"):
        ends = [
            Counter((row.step, row.dp_rank, row.start_ts + row.duration) for row in source if row.optype == name)
            for name in (f"{kind}-send", f"{kind}-recv")
        ]
        assert ends[0].keys() == ends[1].keys()
        assert ends[0].total() == ends[1].total() == 3 * 2 * 7 * 8  # steps, replicas, borders of chunks, micro-batches


def test_operations_of_a_type_are_numbered_as_they_begin() -> None:
    source = rows(dp=2, pp=2, micro=4)

    of_type: dict[tuple[int, int, str], list[Row]] = {}
    for row in source:
        of_type.setdefault((row.step, row.rank, row.optype), []).append(row)
    for group in of_type.values():
        group.sort(key=lambda row: row.seq_id)
        assert [row.seq_id for row in group] == list(range(len(group)))
        starts = [row.start_ts for row in group]
        assert starts == sorted(starts)


def test_micro_batches_that_do_not_interleave_are_refused() -> None:
    with pytest.raises(ValueError, match="interleave"):
        rows(pp=2, vpp=2, micro=3)


def test_the_bubble_of_an_even_pipeline_is_that_of_the_textbook() -> None:
    # (micro + stages - 1) slots of a forward and a backward each, where messages and exchanges take no time.
    got = pipeline_timeline(np.random.default_rng(1), dp=1, pp=4, micro=8, jitter=0.0, message_s=0.0, collective_s=0.0)

    assert np.allclose(got.step_s.max(axis=0), (8 + 4 - 1) * (0.01 + 0.02))


def test_interleaving_divides_the_bubble_by_the_number_of_chunks() -> None:
    got = pipeline_timeline(
        np.random.default_rng(1), dp=1, pp=4, micro=8, vpp=2, forward_s=0.005, jitter=0.0, message_s=0.0,
        collective_s=0.0,
    )  # fmt: skip

    assert np.allclose(got.step_s.max(axis=0), (8 + (4 - 1) / 2) * (0.01 + 0.02))
