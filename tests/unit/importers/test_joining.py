from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import UserError
from gscalar.importers.joining import join
from gscalar.importers.kineto import read_kineto
from gscalar.model.timeline import NONE, Activity, Lane, Signal, StepTimeline
from gscalar.testing.kineto_traces import KinetoTrace, data_parallel_trace

US = 1e-6
HOUR_NS = 3_600_000_000_000


def joined(folder: Path, traces: Sequence[KinetoTrace], names: Sequence[str] = ()) -> StepTimeline:
    names = names or [f"trace{at}.json" for at in range(len(traces))]
    return join([read_kineto(trace.write(folder / name)) for trace, name in zip(traces, names, strict=True)])


def test_one_trace_is_a_timeline(tmp_path: Path) -> None:
    trace = KinetoTrace()
    for number, begin in ((5, 0), (6, 1000)):
        trace.step(number, begin, 1000)
        trace.loader(begin + 10, 200)
        trace.copy(begin + 300, 20, launch_us=begin + 290, bytes=500)
        trace.kernel("gemm", begin + 150, 100, launch_us=begin + 100)
    got = joined(tmp_path, [trace])
    assert (got.source, got.name) == ("kineto", "trace0.json")
    assert got.steps.tolist() == [5, 6]
    assert got.step_s == pytest.approx(np.full((1, 2), 1000 * US))
    assert got.account("data_wait") == pytest.approx(np.full((1, 2), 140 * US))
    loading = got.loading
    assert loading is not None
    assert loading.wait_s == pytest.approx(np.full((1, 2), 200 * US))
    assert loading.work_s == pytest.approx(loading.wait_s)
    assert loading.exposed_wait_s == pytest.approx(np.full((1, 2), 140 * US))
    assert loading.copy_s == pytest.approx(np.full((1, 2), 20 * US))
    assert (loading.num_workers, loading.batch_bytes) == (0, 500)
    lanes = {got.names[name]: lane for name, lane in zip(got.spans.name, got.spans.lane, strict=True)}
    assert lanes["gemm"] == Lane.COMPUTE
    assert lanes["Memcpy HtoD (Pinned -> Device)"] == Lane.COPY
    assert got.spans.step.tolist() == [0, 0, 0, 1, 1, 1]
    assert got.collectives is None
    assert (got.clock_error_s, got.ranks[0].clock_error_s) == (0.0, 0.0)
    assert Signal.ARRIVALS not in got.unknown
    assert not got.notes


def test_with_loader_processes_their_work_is_not_known(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 1000)
    trace.loader(10, 200, workers=True)
    loading = joined(tmp_path, [trace]).loading
    assert loading is not None
    assert np.isnan(loading.work_s).all()
    assert loading.num_workers == NONE
    assert loading.wait_s == pytest.approx(200 * US)


def test_clocks_that_are_hours_apart_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    # Ends scatter by a few microseconds; the second host's clock is 5 hours and 7 ms ahead.
    offset_ns = 5 * HOUR_NS + 7_000_000
    first = data_parallel_trace(0, 2, num_steps=20, base_ns=1_700_000_000_000_000_000)
    second = data_parallel_trace(1, 2, num_steps=20, base_ns=1_700_000_000_000_000_000 + offset_ns, late_us=30)
    second.kernel("warm up", -137, 5)  # so that the traces do not begin at the same moment
    scatter = np.random.default_rng(3)
    for event in second.events:
        if event["name"].startswith("nccl"):
            event["dur"] += scatter.uniform(-4, 4)
    got = joined(tmp_path, [first, second])
    one, other = got.ranks
    assert (one.clock_offset_s, one.clock_error_s) == (0.0, 0.0)
    # Half of what lies between the 5th and the 95th of a hundred ends, which are even between -4 and 4.
    assert other.clock_error_s == pytest.approx(3.6 * US, rel=0.15)
    assert abs(other.clock_offset_s + offset_ns / 1e9) <= other.clock_error_s
    assert got.begin_s[1] == pytest.approx(got.begin_s[0], abs=5 * US)
    assert Signal.CLOCKS not in got.unknown
    assert Signal.ARRIVALS not in got.unknown


def test_collectives_of_all_ranks_are_dense_and_tell_who_was_late(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 3, late_us=30 if rank == 2 else 0) for rank in range(3)]
    got = joined(tmp_path, [traces[at] for at in (2, 0, 1)])
    assert [each.rank for each in got.ranks] == [0, 1, 2]
    found = got.collectives
    assert found is not None
    assert found.kind == ("all_reduce",) * 3
    assert found.start_s.shape == (3, 4, 3)
    assert found.num_bytes.tolist() == [4000] * 3
    # The last rank begins at 830, 840 and 850 and all end at 880, 900 and 920.
    assert found.transfer_s == pytest.approx(np.tile([50 * US, 60 * US, 70 * US], (4, 1)))
    assert found.wait_s[0] == pytest.approx(np.full((4, 3), 30 * US))
    assert found.wait_s[2] == pytest.approx(np.zeros((4, 3)), abs=1e-12)
    spans = got.spans
    numbered = spans.activity == Activity.COMMUNICATION
    assert spans.sequence[numbered & (spans.rank == 1)].tolist() == list(range(12))
    assert set(spans.group[numbered].tolist()) == {0}
    assert set(spans.sequence[~numbered].tolist()) == {NONE}


def test_a_step_whose_collectives_differ_is_left_out_and_said(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 2) for rank in range(2)]
    for trace in traces:  # as many again in the first step, as when the buckets are laid out anew
        trace.collective(930, 10, launch_us=70, ranks=(0, 1))
    got = joined(tmp_path, traces)
    assert got.steps.tolist() == [1, 2, 3]
    assert got.collectives is not None
    assert got.collectives.start_s.shape == (2, 3, 3)
    assert any("left out: 0" in note for note in got.notes)


def test_a_collective_is_of_the_step_that_issued_it_wherever_it_runs(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 2, num_steps=3, num_collectives=0) for rank in range(2)]
    for rank, trace in enumerate(traces):
        for number in range(3):  # the late rank's begins after the step's end
            start = 1000 * number + (1010 if rank else 990)
            trace.collective(start, 1000 * number + 1050 - start, launch_us=1000 * number + 980, ranks=(0, 1))
    got = joined(tmp_path, traces)
    assert got.collectives is not None
    assert got.collectives.transfer_s == pytest.approx(np.full((3, 1), 40 * US))


def test_where_every_step_differs_all_are_kept_and_no_collective_is_dense(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 2) for rank in range(2)]
    for number in range(4):
        traces[1].collective(1000 * number + 930, 10, launch_us=1000 * number + 70, ranks=(0, 1))
    got = joined(tmp_path, traces)
    assert got.steps.tolist() == [0, 1, 2, 3]
    assert got.collectives is None


def test_transfers_between_two_and_groups_of_some_are_no_collectives_of_all(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 4) for rank in range(4)]
    for rank, trace in enumerate(traces):
        for number in range(4):
            begin = 1000 * number
            trace.collective(begin + 700, 5, launch_us=begin + 40, word="send" if rank % 2 else "recv", group="1")
            trace.collective(begin + 710, 7 + rank, launch_us=begin + 45, group="2", ranks=(rank - rank % 2, rank | 1))
    got = joined(tmp_path, traces)
    assert got.collectives is not None
    assert len(got.collectives.kind) == 3


def test_without_a_common_collective_clocks_and_arrivals_are_not_known(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 2, num_collectives=0, base_ns=rank * 3 * HOUR_NS) for rank in range(2)]
    got = joined(tmp_path, traces)
    assert np.isnan(got.clock_error_s)
    assert {Signal.CLOCKS, Signal.ARRIVALS} <= got.unknown.keys()
    assert got.begin_s[1] == pytest.approx(got.begin_s[0])
    assert any("far apart" in note for note in got.notes)


def test_collectives_that_do_not_meet_are_not_taken_for_one(tmp_path: Path) -> None:
    traces = [data_parallel_trace(rank, 2, num_steps=10) for rank in range(2)]
    moved = np.random.default_rng(1)
    for event in traces[1].events:
        if event["name"].startswith("nccl"):
            event["ts"] += moved.uniform(-400, 50)
    got = joined(tmp_path, traces)
    assert got.collectives is None
    assert Signal.CLOCKS in got.unknown


def test_missing_ranks_are_said_and_one_alone_knows_no_arrivals(tmp_path: Path) -> None:
    got = joined(tmp_path, [data_parallel_trace(rank, 128) for rank in (0, 1)])
    assert (got.num_ranks, got.world) == (2, 128)
    assert any("2 of 128 ranks" in note for note in got.notes)
    assert Signal.ARRIVALS not in got.unknown
    alone = joined(tmp_path, [data_parallel_trace(5, 128)])
    assert alone.ranks[0].rank == 5
    assert Signal.ARRIVALS in alone.unknown


def test_a_step_that_one_rank_lacks_is_not_known_there(tmp_path: Path) -> None:
    traces = [data_parallel_trace(0, 2, num_collectives=0), data_parallel_trace(1, 2, num_steps=2, num_collectives=0)]
    got = joined(tmp_path, traces)
    assert got.steps.tolist() == [0, 1, 2, 3]
    assert np.isfinite(got.step_s).tolist() == [[True] * 4, [True, True, False, False]]


def old(rank_events: int) -> KinetoTrace:
    trace = KinetoTrace(is_old=True)
    trace.step(1, 0, 1000)
    for at in range(rank_events):
        trace.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)", 100 + 50 * at, 20, stream=9)
    return trace


def test_ranks_without_a_number_are_numbered_in_order_with_a_note(tmp_path: Path) -> None:
    got = joined(tmp_path, [old(3), old(3)], ["b.json", "a.json"])
    assert [each.rank for each in got.ranks] == [0, 1]
    assert any("in order" in note for note in got.notes)


def test_ranks_are_numbered_by_their_files_where_traces_do_not_say(tmp_path: Path) -> None:
    got = joined(tmp_path, [old(3), old(3)], ["rank7.json", "rank3.json"])
    assert [each.rank for each in got.ranks] == [3, 7]
    assert any("files' names" in note for note in got.notes)


def shifted(rank: int) -> KinetoTrace:
    trace = data_parallel_trace(rank, 2)
    for event in trace.events:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{100 + int(event['name'].partition('#')[2])}"
    return trace


def with_groups(rank: int, ranks: Sequence[int]) -> KinetoTrace:
    trace = data_parallel_trace(rank, 2)
    trace.groups = [{"pg_name": "0", "pg_size": len(ranks), "ranks": list(ranks)}]
    return trace


MIXED = {
    "two of one rank": ([data_parallel_trace(1, 2), data_parallel_trace(1, 2)], "rank 1"),
    "two sizes of training": ([data_parallel_trace(0, 2), data_parallel_trace(1, 4)], "2 ranks and one of 4"),
    "other groups": ([with_groups(0, [0, 1]), with_groups(1, [1, 2])], "groups of all ranks differ"),
    "no step in common": ([data_parallel_trace(0, 2), shifted(1)], "0 to 3, and 100 to 103"),
    "nothing that binds them": ([old(0), old(0)], "Nothing says"),
}


@pytest.mark.parametrize("case", MIXED)
def test_traces_that_contradict_one_another_are_refused_by_name(tmp_path: Path, case: str) -> None:
    traces, why = MIXED[case]
    with pytest.raises(UserError) as raised:
        joined(tmp_path, traces)
    assert raised.value.code == "trace-mixed"
    assert why in raised.value.what
    assert "trace0.json" in raised.value.what
    assert "trace1.json" in raised.value.what


def test_exchanges_of_hosts_are_matched_as_those_of_devices_are(tmp_path: Path) -> None:
    traces = []
    for rank in range(2):
        trace = KinetoTrace(rank=rank, world=2)
        for number in range(3):
            trace.step(number, 1000 * number, 1000)
            trace.event("user_annotation", "gloo:all_reduce", 1000 * number + 300 + 100 * rank, 200 - 100 * rank)
        traces.append(trace)
    got = joined(tmp_path, traces)
    assert got.collectives is not None
    assert got.collectives.transfer_s == pytest.approx(np.full((3, 1), 100 * US))
    assert got.spans.sequence.tolist() == [0, 1, 2, 0, 1, 2]
    assert set(got.spans.lane.tolist()) == {Lane.COMMUNICATION}
