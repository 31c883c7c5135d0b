"""The newest steps of a run as a timeline, from the ends of its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.model import events
from gscalar.model.accounts import pack_accounts
from gscalar.model.spans import Collective, CollectiveKind, Span, SpanKind, pack_collectives, pack_spans
from gscalar.model.timeline import Activity, Lane, Signal, StepTimeline
from gscalar.state.home import Home
from gscalar.testing.builders import START_NS, RunBuilder
from gscalar.views import timelines
from gscalar.views.timelines import run_timeline

MS = 1_000_000
NAN = math.nan


@dataclass(frozen=True, kw_only=True)
class Work:
    """A step as one rank does it: 5 ms for a batch, its compute, waiting until `end_ms`, 5 ms for the optimizer."""

    compute_ms: int = 50
    end_ms: int = 95  # the last exchange is over
    num_ready: int = -1
    num_buckets: int = 2
    evaluation_ms: int = 0  # before all else, and in no account
    own: tuple[float, float, float] = (4.0, 0.0, 4.0)  # samples, tokens, weight
    spans: bool = True
    accounts: bool = True
    gradients: bool = True
    sequence: int = 0  # its exchanges are numbered so far from where they should be


def tell(run: RunBuilder, rank: int, work: Work, *, ahead_ms: int = 0) -> None:
    """Tell of the next step of one rank, which begins now by a clock that is so much ahead."""
    begin_ns, at = run.clock() + ahead_ms * MS, work.evaluation_ms
    ready_ms = 5 + work.compute_ms
    spans = [
        *([Span(SpanKind.EVALUATION, 0, at * MS)] if at else []),
        Span(SpanKind.DATA_WAIT, at * MS, 5 * MS, work.num_ready),
        Span(SpanKind.FORWARD, (at + 5) * MS, work.compute_ms * MS // 2),
        Span(SpanKind.BACKWARD, (at + 5) * MS + work.compute_ms * MS // 2, work.compute_ms * MS // 2),
        Span(SpanKind.COMMUNICATION, (at + ready_ms) * MS, (work.end_ms - ready_ms) * MS),
        Span(SpanKind.OPTIMIZER, (at + work.end_ms) * MS, 5 * MS),
    ]
    first = run.step * work.num_buckets + work.sequence
    buckets = [
        Collective(
            CollectiveKind.ALL_REDUCE, 0, first + each, 4096,
            *((at + ms) * MS for ms in (ready_ms - 10 * last, ready_ms, work.end_ms - 5 * last)),
        )
        for each in range(work.num_buckets)
        for last in [work.num_buckets - 1 - each]
    ]  # fmt: skip
    times = ((at + ms) * MS for ms in (ready_ms, ready_ms, work.end_ms))
    small = Collective(CollectiveKind.ALL_REDUCE, 1, run.step, 64, *times)
    seconds = {
        "data_wait": 0.005, "compute": work.compute_ms / 1000, "optimizer": 0.005,
        "exposed_communication": (work.end_ms - ready_ms) / 1000,
    }  # fmt: skip
    duration_s = (work.end_ms + 5) / 1000
    end_ns = begin_ns + (at + work.end_ms + 5) * MS
    packed = pack_accounts(seconds) if work.accounts else b""
    own = dict(zip(("own_samples", "own_tokens", "own_weight"), work.own, strict=True))
    run.tell(events.Step(run.step + 1, end_ns, duration_s, 8.0, 0.0, 0.1, 1.0, 0, 0, packed, b"", **own), rank=rank)
    if work.spans:
        run.tell(events.Spans(run.step + 1, begin_ns, pack_spans(spans)), rank=rank)
        told = [*(buckets if work.gradients else []), small]
        run.tell(events.Collectives(run.step + 1, begin_ns, pack_collectives(told)), rank=rank)


def train(run: RunBuilder, ranks: Sequence[Work], num_steps: int = 10, *, ahead_ms: Sequence[int] = (0,)) -> RunBuilder:
    for _ in range(num_steps):
        for rank, work in enumerate(ranks):
            tell(run, rank, work, ahead_ms=ahead_ms[rank % len(ahead_ms)])
        run.step += 1
        run.clock.advance((ranks[0].evaluation_ms + ranks[0].end_ms + 5) / 1000)
    return run


def read(home: Path, build: Callable[[RunBuilder], object], **options: Any) -> StepTimeline:
    run = RunBuilder(Home(home))
    build(run)
    run.abandon()
    return run_timeline(run.folder, **options)


EARLY, LATE = Work(compute_ms=50), Work(compute_ms=80)


def two_ranks(run: RunBuilder) -> None:
    train(run.launch(2), [EARLY, LATE])


# ---- what is in it


def test_steps_lie_in_one_time_and_their_accounts_sum_to_them(home: Path) -> None:
    got = read(home, two_ranks)
    assert (got.source, got.name, got.world) == ("record", "7k2m9qx4tz0a", 2)
    assert got.steps.tolist() == list(range(3, 11))  # the first two warm up
    assert got.begin_s[1] == pytest.approx(0.1 * np.arange(8), abs=1e-6)
    assert got.step_s == pytest.approx(np.full((2, 8), 0.1), abs=1e-6)
    assert got.accounts.sum(axis=2) == pytest.approx(got.step_s, abs=1e-6)
    assert got.account("compute")[:, 0] == pytest.approx([0.05, 0.08])
    assert got.account("exposed_communication")[:, 0] == pytest.approx([0.04, 0.01])


def test_only_exchanges_of_gradients_are_in_the_table_of_collectives(home: Path) -> None:
    found = read(home, two_ranks).collectives
    assert found is not None
    assert found.kind == ("all_reduce", "all_reduce")
    assert found.group.tolist() == [0, 0]
    assert found.num_bytes.tolist() == [4096.0, 4096.0]
    assert found.ready_s[:, 0] == pytest.approx(np.array([[0.045, 0.055], [0.075, 0.085]]), abs=1e-6)
    assert found.end_s[:, 0] == pytest.approx(np.array([[0.09, 0.095]] * 2), abs=1e-6)
    assert found.wait_s[:, 3] == pytest.approx(np.array([[0.03, 0.03], [0.0, 0.0]]), abs=1e-6)
    assert found.transfer_s[3] == pytest.approx([0.005, 0.01], abs=1e-6)


def test_where_no_exchange_was_seen_the_small_sums_tell_who_came_last(home: Path) -> None:
    got = read(home, lambda run: train(run.launch(2), [replace(each, gradients=False) for each in (EARLY, LATE)]))
    assert got.collectives is not None
    assert got.collectives.group.tolist() == [1]
    assert got.collectives.wait_s[:, 0, 0] == pytest.approx([0.03, 0.0], abs=1e-6)
    assert "no exchange of gradients was seen" in got.unknown[Signal.COMMUNICATION]
    assert Signal.ARRIVALS not in got.unknown


def test_spans_are_phases_on_the_hosts_lane_and_collectives_on_another(home: Path) -> None:
    got = read(home, two_ranks)
    spans = got.spans
    chosen = (spans.rank == 1) & (spans.step == 0)
    rows = [
        (got.names[name], lane, activity, round(start * 1000), round(end * 1000))
        for name, lane, activity, start, end in zip(
            spans.name[chosen], spans.lane[chosen], spans.activity[chosen], spans.start_s[chosen],
            spans.end_s[chosen], strict=True,
        )
    ]  # fmt: skip
    assert sorted(rows, key=lambda row: (row[1], row[3:])) == [
        ("data_wait", Lane.HOST, Activity.DATA_WAIT, 0, 5),
        ("forward", Lane.HOST, Activity.FORWARD, 5, 45),
        ("backward", Lane.HOST, Activity.BACKWARD, 45, 85),
        ("communication", Lane.HOST, Activity.COMMUNICATION, 85, 95),
        ("optimizer", Lane.HOST, Activity.OPTIMIZER, 95, 100),
        ("all_reduce", Lane.COMMUNICATION, Activity.REDUCE_GRADIENTS, 75, 90),
        ("all_reduce", Lane.COMMUNICATION, Activity.REDUCE_GRADIENTS, 85, 95),
        ("all_reduce", Lane.COMMUNICATION, Activity.COMMUNICATION, 85, 95),  # the small sum
    ]
    met = spans.lane == Lane.COMMUNICATION
    assert set(spans.num_bytes[met]) == {4096.0, 64.0}
    assert np.isnan(spans.num_bytes[~met]).all()
    assert spans.micro[spans.activity == Activity.FORWARD].tolist() == [0] * 16


def test_an_evaluation_is_in_no_frame(home: Path) -> None:
    got = read(home, lambda run: train(run.launch(2), [replace(each, evaluation_ms=200) for each in (EARLY, LATE)]))
    assert got.begin_s[0] == pytest.approx(0.2 + 0.3 * np.arange(8), abs=1e-6)
    assert got.step_s == pytest.approx(np.full((2, 8), 0.1), abs=1e-6)
    assert (got.spans.activity == Activity.EVALUATION).sum() == 2 * 8


def test_a_collection_inside_an_evaluation_is_in_the_frame(home: Path) -> None:
    """It is in an account, so the step is longer by it than what lies after the evaluation."""

    def build(run: RunBuilder) -> None:
        train(run.launch(1), [Work()], 1)
        spans = [Span(SpanKind.GC, 20 * MS, 10 * MS), Span(SpanKind.EVALUATION, 0, 200 * MS)]
        packed = pack_accounts({"gc": 0.01, "compute": 0.05})
        run.tell(events.Step(2, run.clock() + 250 * MS, 0.06, 8.0, 0.0, 0.1, 1.0, 0, 0, packed))
        run.tell(events.Spans(2, run.clock(), pack_spans(spans)))

    got = read(home, build)
    assert got.end_s[0, 1] - got.begin_s[0, 0] == pytest.approx(0.1 + 0.25, abs=1e-6)
    assert got.step_s[0, 1] == pytest.approx(0.06, abs=1e-6)


# ---- clocks


def measured(run: RunBuilder, rank: int, offset_s: float, bound_s: float = 0.0001, ahead_ms: int = 0) -> None:
    run.tell(events.Clock(run.clock() + ahead_ms * MS, offset_s, 0.0, bound_s, 9), rank=rank)


def elsewhere(run: RunBuilder, rank: int, host: str = "elsewhere") -> None:
    run.tell(events.Header(1, run.run_id, 0, rank, 2, "worker", host, 1, 0.0, run.clock(), "0"), rank=rank)


def one_host(run: RunBuilder) -> list[int]:
    measured(run, 1, 0.00005)
    return [0, 0]


def two_hosts(run: RunBuilder) -> list[int]:
    elsewhere(run, 1)
    measured(run, 1, -5.0, ahead_ms=5000)
    return [0, 5000]


def two_hosts_of_one_name(run: RunBuilder) -> list[int]:
    measured(run, 1, -5.0, ahead_ms=5000)
    return [0, 5000]


def old_estimate(run: RunBuilder) -> list[int]:
    two_hosts(run)
    run.clock.advance(160.0)
    return [0, 5000]


def nobody_answered(run: RunBuilder) -> list[int]:
    elsewhere(run, 1)
    return [0, 5000]


# How it begins, what is added to rank 1's times, and what they may be wrong by.
CLOCKS: dict[str, tuple[Callable[[RunBuilder], list[int]], float, float]] = {
    "ranks of one host have one clock, whatever was measured within its bound": (one_host, 0.0, 0.0),
    "a rank of another host by what was measured": (two_hosts, -5.0, 0.0001),
    "a rank of a host of the same name whose clock is another one": (two_hosts_of_one_name, -5.0, 0.0001),
    "an estimate that grows old is wrong by more": (old_estimate, -5.0, 0.0001 + 0.001 * 100.8),
    "a rank that nobody knows of": (nobody_answered, 0.0, NAN),
}


@pytest.mark.parametrize("sentence", CLOCKS)
def test_times_are_rank_0s_as_far_as_clocks_are_known(sentence: str, home: Path) -> None:
    begin, offset_s, error_s = CLOCKS[sentence]

    def build(run: RunBuilder) -> None:
        run.launch(2)
        train(run, [EARLY, LATE], ahead_ms=begin(run))

    got = read(home, build)
    assert got.ranks[0].clock_error_s == 0.0
    assert got.ranks[1].clock_offset_s == pytest.approx(offset_s, abs=1e-6)
    assert got.ranks[1].clock_error_s == pytest.approx(error_s, nan_ok=True, abs=2e-3)
    assert (Signal.CLOCKS in got.unknown) == math.isnan(error_s)
    apart_s = 5.0 if math.isnan(error_s) else 0.0
    assert got.begin_s[1] - got.begin_s[0] == pytest.approx(np.full(8, apart_s), abs=1e-6)


def test_the_catalogs_estimate_counts_where_the_records_lack_one(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2)
        train(run, [EARLY, LATE], ahead_ms=nobody_answered(run))

    known = {"1": {"time_ns": START_NS, "offset_s": -5.0, "drift": 0.0, "bound_s": 0.0002}}
    got = read(home, build, clocks=known)
    assert got.begin_s[1] == pytest.approx(got.begin_s[0], abs=1e-6)
    assert got.ranks[1].clock_error_s == pytest.approx(0.0002)


# ---- which steps


def test_the_newest_attempt_with_steps_is_shown_unless_one_is_named(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        train(run.launch(2), [EARLY, LATE], 7).end_attempt("failed").launch(2, from_step=7)
        train(run, [LATE, EARLY], 8).end_attempt("failed").launch(2, from_step=15)

    assert read(home, build).steps.tolist() == list(range(10, 16))
    folder = Home(home).run("7k2m9qx4tz0a")
    assert run_timeline(folder, attempt=0).steps.tolist() == list(range(3, 8))


def test_of_few_steps_none_is_left_out_for_warming_up(home: Path) -> None:
    got = read(home, lambda run: train(run.launch(2), [EARLY, LATE], 6))
    assert got.steps.tolist() == list(range(1, 7))
    assert got.notes == ()


def test_a_rank_that_was_killed_ends_the_timeline_of_all(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        two_ranks(run)
        tell(run, 0, EARLY)

    assert read(home, build).steps.tolist() == list(range(3, 11))


def test_a_step_with_another_number_of_collectives_is_left_out(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        two_ranks(run)
        train(run, [replace(EARLY, num_buckets=3), replace(LATE, num_buckets=3)], 1)
        # Sequences go on as they would have: an exchange of step 12 was still going at its end on one rank.
        train(run, [EARLY, replace(LATE, num_buckets=1)], 1)
        # As many on each rank, but not the same ones.
        train(run, [EARLY, replace(LATE, sequence=1)], 1)
        train(run, [EARLY, LATE], 2)

    got = read(home, build)
    assert got.steps.tolist() == [*range(3, 11), 14, 15]
    assert "3 steps whose collectives are not the usual ones are left out" in got.notes
    assert got.begin_s.shape == (2, 10)
    assert got.spans.step.max() == 9
    assert got.collectives is not None
    assert got.collectives.ready_s.shape == (2, 10, 2)


APART: dict[str, list[Work]] = {
    "ranks exchange different numbers of buckets": [EARLY, replace(LATE, num_buckets=3)],
    "their exchanges are never the same ones": [EARLY, replace(LATE, sequence=1)],
}


@pytest.mark.parametrize("sentence", APART)
def test_steps_are_kept_where_most_have_no_collectives_in_common(sentence: str, home: Path) -> None:
    got = read(home, lambda run: train(run.launch(2), APART[sentence]))
    assert got.num_steps == 8
    assert got.collectives is None
    assert "the steps have no collectives in common: which rank came last is not known" in got.notes
    assert Signal.ARRIVALS in got.unknown


def test_only_so_many_steps_are_taken_and_fewer_of_a_large_gang(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(home, two_ranks, most_steps=3).steps.tolist() == [8, 9, 10]
    monkeypatch.setattr(timelines, "_MOST_CELLS", 8)
    monkeypatch.setattr(timelines, "_FEWEST_STEPS", 2)
    assert run_timeline(Home(home).run("7k2m9qx4tz0a")).steps.tolist() == [7, 8, 9, 10]


def test_a_bounded_end_of_each_file_is_read_and_its_steps_are_no_warm_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "_BYTES_A_RANK", 4000)
    got = read(home, lambda run: train(run.launch(2), [EARLY, LATE], 400))
    assert 5 < got.num_steps < 12  # a step takes some 450 bytes
    assert got.steps[-1] == 400
    assert got.notes == ()
    assert got.ranks[1].host == "builder"  # told at the head


# ---- what is missing


def test_a_run_that_never_did_a_step_says_so(home: Path) -> None:
    got = read(home, lambda run: run.launch(2))
    assert (got.num_ranks, got.num_steps, got.world) == (2, 0, 2)
    assert got.notes == ("attempt 0 has no steps: no rank of it has done a step",)
    assert set(got.unknown) == set(Signal)


def test_an_attempt_that_is_not_there_says_so(home: Path) -> None:
    got = read(home, two_ranks, attempt=4)
    assert (got.num_ranks, got.num_steps) == (0, 0)
    assert got.notes == ("attempt 4 has no steps: it has no record of a worker",)


def test_ranks_without_a_record_or_without_steps_are_named(home: Path) -> None:
    run = RunBuilder(Home(home))
    train(run.launch(4), [EARLY, LATE]).abandon()
    (run.folder.records / "a000-r00003.rec").unlink()
    got = run_timeline(run.folder)
    assert [each.rank for each in got.ranks] == [0, 1]
    assert got.world == 4
    assert got.notes[:2] == ("no record of rank 3", "no steps of rank 2")


def test_a_rank_that_is_far_behind_is_left_out(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(3)
        train(run, [EARLY, EARLY, EARLY], 3)
        for rank in (0, 1):  # the third's record lies on a disk that was full for long
            (run.folder.records / f"a000-r{rank:05d}.rec").write_bytes(b"")
        train(run, [EARLY, LATE], 8)

    got = read(home, build)
    assert [each.rank for each in got.ranks] == [0, 1]
    assert "rank 2 did none of the newest steps" in got.notes


UNKNOWN_OF_ACCOUNTS = {Signal.COMPUTE, Signal.COMMUNICATION, Signal.DATA_WAIT, Signal.GC, Signal.CHECKPOINTS}
ALWAYS = {Signal.MEMORY_BANDWIDTH, Signal.LAUNCHES, Signal.DEVICE}
OLD = Work(spans=False, accounts=False, own=(NAN, NAN, NAN))
UNKNOWNS: dict[str, tuple[list[Work], set[Signal]]] = {
    "two ranks whose loader has no queue": ([EARLY, LATE], {Signal.QUEUE}),
    "two ranks whose loader has one": ([replace(EARLY, num_ready=2), replace(LATE, num_ready=0)], set()),
    "one rank": ([EARLY], {Signal.QUEUE, Signal.ARRIVALS}),
    "records of an old version": ([OLD, OLD], UNKNOWN_OF_ACCOUNTS | {Signal.QUEUE, Signal.ARRIVALS, Signal.WORK}),
}


@pytest.mark.parametrize("sentence", UNKNOWNS)
def test_what_is_not_known_is_named(sentence: str, home: Path) -> None:
    ranks, want = UNKNOWNS[sentence]
    got = read(home, lambda run: train(run.launch(len(ranks)), ranks))
    assert set(got.unknown) == want | ALWAYS
    assert got.step_s == pytest.approx(np.full((len(ranks), 8), 0.1), abs=1e-6)


# ---- work, loading, hardware

WORK: dict[str, tuple[list[tuple[float, float, float]], str, list[float]]] = {
    "tokens where they are counted": ([(4, 64, 60), (4, 96, 90)], "tokens", [64, 96]),
    "weights where they are given": ([(4, 0, 60), (4, 0, 90)], "weight", [60, 90]),
    "samples where nothing else is": ([(4, 0, 4), (6, 0, 6)], "samples", [4, 6]),
    "samples where weights are not told": ([(4, 0, NAN), (6, 0, NAN)], "samples", [4, 6]),
    "tokens of a rank that had padding": ([(4, 64, 4), (0, 0, 0)], "tokens", [64, 0]),
}


@pytest.mark.parametrize("sentence", WORK)
def test_the_work_of_a_rank_is_what_it_consumed(sentence: str, home: Path) -> None:
    own, unit, want = WORK[sentence]
    got = read(home, lambda run: train(run.launch(2), [Work(own=each) for each in own]))
    assert got.work_unit == unit
    assert got.work is not None
    assert got.work.tolist() == [[each] * 8 for each in want]


@pytest.mark.parametrize(("device", "exposed_s"), [("cpu", 0.005), ("cuda:0", NAN)])
def test_loading_says_how_long_a_batch_was_waited_for_and_whether_one_was_ready(
    device: str, exposed_s: float, home: Path
) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2).tell(events.Adopted(run.clock(), {"device": device}))
        train(run, [replace(EARLY, num_ready=2), replace(LATE, num_ready=0)])

    loading = read(home, build).loading
    assert loading is not None
    assert loading.wait_s == pytest.approx(np.full((2, 8), 0.005))
    assert loading.exposed_wait_s == pytest.approx(np.full((2, 8), exposed_s), nan_ok=True)
    assert loading.copy_s.tolist() == [[0.0] * 8] * 2
    assert loading.queue_empty.tolist() == [[0.0] * 8, [1.0] * 8]
    assert np.isnan(loading.work_s).all()


def test_counters_are_means_of_the_time_of_the_steps_by_rank_and_host(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2)
        run.sample({"worker/cpu_cores": 9.0}, of=0)  # before the steps
        train(run, [EARLY, LATE], 100)
        run.sample({"host/cpu_throttled_ratio": 0.25})
        run.clock.advance(-3.0)
        for value in (1.0, 3.0):
            run.sample({"worker/cpu_cores": value}, of=1)

    got = read(home, build).counters
    assert sorted(got) == ["host/cpu_throttled_ratio", "samples", "worker/cpu_cores"]
    assert got["host/cpu_throttled_ratio"].tolist() == [0.25, 0.25]
    assert got["worker/cpu_cores"] == pytest.approx([NAN, 2.0], nan_ok=True)
