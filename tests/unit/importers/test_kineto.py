from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import UserError
from gscalar.importers.kineto import read_kineto
from gscalar.importers.rank_trace import RankTrace
from gscalar.model.timeline import NONE, Activity, Signal
from gscalar.testing.kineto_traces import KinetoTrace


def read(trace: KinetoTrace, folder: Path, name: str = "trace.json.gz") -> RankTrace:
    return read_kineto(trace.write(folder / name))


def named(trace: RankTrace) -> dict[str, Activity]:
    operations = trace.operations
    pairs = zip(operations.name.tolist(), operations.activity.tolist(), strict=True)
    return {trace.names[name]: Activity(activity) for name, activity in pairs}


def small(*, is_old: bool) -> KinetoTrace:
    trace = KinetoTrace(is_old=is_old)
    trace.step(7, 1000, 500)
    trace.step(8, 1500, 600)
    trace.event("cpu_op", "aten::conv2d", 1000, 90)
    trace.loader(1010, 100)
    trace.copy(1120, 30, launch_us=1110, bytes=4096)
    trace.kernel("gemm", 1200, 100, launch_us=1150)
    trace.kernel("Memset (Device)", 1320, 5, launch_us=1160, category="gpu_memset")
    trace.event("user_annotation", "Optimizer.step#SGD.step", 1400, 50)
    return trace


@pytest.mark.parametrize("is_old", [False, True], ids=["today", "2021"])
def test_both_dialects_give_the_same_columns(tmp_path: Path, is_old: bool) -> None:
    got = read(small(is_old=is_old), tmp_path)
    assert got.steps.tolist() == [7, 8]
    assert got.begin_s == pytest.approx([0, 500e-6])
    assert got.end_s == pytest.approx([500e-6, 1100e-6])
    assert got.operations.start_s == pytest.approx([120e-6, 200e-6, 320e-6])
    assert got.operations.end_s == pytest.approx([150e-6, 300e-6, 325e-6])
    assert got.operations.launch_s == pytest.approx([110e-6, 150e-6, 160e-6])
    assert got.operations.activity.tolist() == [Activity.H2D, Activity.COMPUTE, Activity.SET]
    assert got.operations.num_bytes[0] == 4096
    assert np.isnan(got.operations.num_bytes[1])
    assert got.host_spans.activity.tolist() == [Activity.DATA_WAIT, Activity.OPTIMIZER]
    assert got.num_workers == 0
    assert got.origin_ns == 1_000_000
    assert not got.notes


def test_the_head_says_which_rank_it_is_and_what_times_count_from(tmp_path: Path) -> None:
    trace = KinetoTrace(rank=3, world=8, base_ns=1_700_000_000_000_000_000)
    trace.step(1, -20.5, 100)
    trace.kernel("gemm", -10, 5)
    got = read(trace, tmp_path)
    assert (got.rank, got.world, got.is_rank_declared, got.host) == (3, 8, True, "toy")
    assert got.origin_ns == 1_700_000_000_000_000_000 - 20_500
    assert got.operations.start_s == pytest.approx([10.5e-6])


def test_the_file_s_name_says_the_rank_where_the_trace_does_not(tmp_path: Path) -> None:
    trace = KinetoTrace(is_old=True)
    trace.step(1, 0, 1)
    assert read(trace, tmp_path, "job_rank-12.step5.json").rank == 12
    assert read(trace, tmp_path, "resnet50_workers4.json").rank == NONE


def test_microseconds_since_1970_keep_their_digits(tmp_path: Path) -> None:
    now = 1_623_142_623_460_111
    trace = KinetoTrace(is_old=True)
    trace.kernel("a", now, 2)
    trace.kernel("b", now + 3, 1)
    got = read(trace, tmp_path)
    assert (got.operations.start_s * 1e6).tolist() == [0, 3]
    assert got.origin_ns == now * 1000


# the kernel's name, and what stands beside it; its kind, and whether its name is listed
COLLECTIVES = {
    "torch's word beside it": ("ncclDevKernel_Generic", {"word": "_allgather_base"}, "all_gather", False),
    "its word decides, not the name": (
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", {"word": "all_to_all"}, "all_to_all", False
    ),
    "a word that nobody knows": ("ncclDevKernel_Generic", {"word": "frobnicate"}, "", True),
    "a word that nobody knows, a name that tells": (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", {"word": "coalesced"}, "all_reduce", False
    ),
    "of whatever name": ("mysterious_kernel", {"word": "broadcast"}, "broadcast", False),
}  # fmt: skip


@pytest.mark.parametrize("case", COLLECTIVES)
def test_a_collective_is_what_torch_says_else_what_its_name_says(tmp_path: Path, case: str) -> None:
    name, beside, kind, is_listed = COLLECTIVES[case]
    trace = KinetoTrace()
    trace.collective(0, 10, name=name, ranks=(0, 1), **beside)
    got = read(trace, tmp_path)
    assert got.exchanges.kind == (kind,)
    assert got.unmatched == ((name,) if is_listed else ())
    assert got.exchanges.num_bytes.tolist() == [4000]
    assert got.groups["0"].ranks == (0, 1)


# Names alone: what they do, and of what communicates the kind ("" where it is not guessed).
KERNELS = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)": "broadcast",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "",
    "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)": "",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "",
    "nvshmemi_transfer_kernel": "",
    "void at::native::vectorized_elementwise_kernel<4>(int)": None,
    "ampere_sgemm_128x64_nn": None,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kind_that_a_name_does_not_tell_is_not_guessed(tmp_path: Path, name: str) -> None:
    trace = KinetoTrace()
    trace.kernel(name, 0, 10)
    got = read(trace, tmp_path)
    kind = KERNELS[name]
    assert got.exchanges.kind == (() if kind is None else (kind,))
    assert named(got) == {name: Activity.COMPUTE if kind is None else Activity.COMMUNICATION}
    assert got.unmatched == ((name,) if kind == "" else ())


def test_an_annotation_of_the_stream_makes_its_kernels_communicate(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.kernel("custom_exchange", 100, 20, stream=20)
    trace.kernel("gemm", 105, 20, stream=7)
    trace.kernel("after", 130, 20, stream=20)
    trace.event("gpu_user_annotation", "nccl:all_reduce", 99, 25, pid=0, tid=20)
    got = read(trace, tmp_path)
    want = {"custom_exchange": Activity.COMMUNICATION, "gemm": Activity.COMPUTE, "after": Activity.COMPUTE}
    assert named(got) == want
    assert got.exchanges.kind == ("all_reduce",)


def test_a_host_operator_tells_of_the_kernel_that_has_its_number(tmp_path: Path) -> None:
    trace = KinetoTrace()
    said = {"Collective name": "reduce_scatter", "Process Group Name": "3", "In msg nelems": 8, "dtype": "BFloat16"}
    trace.event("cpu_op", "record_param_comms", 0, 5, args={"External id": 77, **said})
    trace.kernel("ncclDevKernel_Generic", 10, 5, **{"External id": 77})
    got = read(trace, tmp_path)
    assert (got.exchanges.kind, got.exchanges.group) == (("reduce_scatter",), ("3",))
    assert got.exchanges.num_bytes.tolist() == [16]


def test_exchanges_are_in_the_order_in_which_they_were_issued(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.collective(300, 10, launch_us=20, stream=21, word="broadcast")
    trace.collective(200, 10, launch_us=30, stream=20, word="allreduce")
    got = read(trace, tmp_path)
    assert got.exchanges.kind == ("broadcast", "all_reduce")
    assert np.diff(got.exchanges.issued_s) == pytest.approx([10e-6])


def test_without_a_device_the_exchanges_are_the_host_s(tmp_path: Path) -> None:
    trace = KinetoTrace(rank=34, world=300)
    trace.step(551, 0, 1000)
    trace.event("user_annotation", "gloo:all_reduce", 100, 200, tid=99)
    got = read(trace, tmp_path)
    assert got.on_host
    assert got.exchanges.kind == ("all_reduce",)
    assert {Signal.DEVICE, Signal.COMPUTE, Signal.LAUNCHES} <= got.unknown.keys()
    assert Signal.COMMUNICATION not in got.unknown


# the name of a host's span, and what it is; None: nothing
HOST_SPANS = {
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__": Activity.DATA_WAIT,
    "Optimizer.step#AdamW.step": Activity.OPTIMIZER,
    "Optimizer.zero_grad#AdamW.zero_grad": None,
    "gc.collect": Activity.GC,
    "Python GC": Activity.GC,
    "## checkpoint ##": Activity.CHECKPOINT,
    "trainer.save_checkpoint": Activity.CHECKPOINT,
    "torch.save": Activity.CHECKPOINT,
    "CheckpointFunction": None,
    "CheckpointFunctionBackward": None,
    "checkpoint_wrapped_block": None,
    "gloo:allreduce": Activity.COMMUNICATION,
    "nccl:all_reduce": None,
    "aten::gcd": None,
}


@pytest.mark.parametrize("name", HOST_SPANS)
def test_only_spans_whose_name_is_evidence_are_kept(tmp_path: Path, name: str) -> None:
    trace = KinetoTrace()
    trace.event("user_annotation", name, 0, 10)
    got = read(trace, tmp_path)
    want = HOST_SPANS[name]
    assert got.host_spans.activity.tolist() == ([] if want is None else [want])
    for signal, activity in ((Signal.GC, Activity.GC), (Signal.CHECKPOINTS, Activity.CHECKPOINT)):
        assert (signal in got.unknown) == (want is not activity)


def test_the_number_of_loaders_is_known_only_where_there_is_none(tmp_path: Path) -> None:
    for workers, want in ((False, 0), (True, NONE)):
        trace = KinetoTrace()
        trace.loader(0, 10, workers=workers)
        assert read(trace, tmp_path).num_workers == want


def test_what_lasts_less_than_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    trace = small(is_old=False)
    trace.kernel("broken", 1300, -4)
    got = read(trace, tmp_path)
    assert len(got.operations) == 3
    assert any("1 events last less than nothing" in note for note in got.notes)


def test_operations_that_are_in_the_file_twice_count_once(tmp_path: Path) -> None:
    trace = small(is_old=False)
    trace.events += [dict(event) for event in trace.events]
    got = read(trace, tmp_path)
    assert len(got.operations) == 3
    assert len(got.host_spans) == 2
    assert got.steps.tolist() == [7, 8]
    assert any("3 operations are in the file twice" in note for note in got.notes)


def test_equal_operations_at_once_on_two_streams_are_two(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.kernel("gemm", 0, 10, stream=7)
    trace.kernel("gemm", 0, 10, stream=8)
    assert len(read(trace, tmp_path).operations) == 2


def test_events_of_an_odd_form_do_no_harm(tmp_path: Path) -> None:
    trace = small(is_old=False)
    trace.events += [{"ph": "X", "cat": "kernel", "name": ["no", "name"], "ts": "x"}, 5]  # type: ignore[list-item]  # odd
    trace.event("user_annotation", "ProfilerStep#9", 2100, 100, args={"device": "cuda:0", "bytes": [1]})
    got = read(trace, tmp_path)
    assert got.steps.tolist() == [7, 8, 9]
    assert len(got.operations) == 3
    assert any("2 events have no form that is known" in note for note in got.notes)


def test_a_file_that_ends_too_early_is_used_up_to_there_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(small(is_old=False).text()[:-600])
    got = read_kineto(path)
    assert got.is_cut
    assert any("ends too early" in note for note in got.notes)
    # The last operation that is whole is a copy in step 7: what the device did in step 8 is not in the file.
    assert got.steps.tolist() == [7]
    assert any(note.startswith("1 steps are left out") for note in got.notes)


def with_kernel(trace: KinetoTrace, **fields: object) -> KinetoTrace:
    trace.events.append({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1350, "dur": 5, **fields})
    return trace


@pytest.mark.parametrize(
    ("fields", "num_operations"),
    [
        ({"args": {"device": 10**30}}, 4),  # what is odd of the arguments is not taken
        ({"args": {"correlation": -(2**63) - 1}}, 4),
        ({"args": {"External id": 10**20, "device": 0}}, 4),
        ({"args": {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10**400}}, 4),
        ({"pid": 10**20}, 3),
        ({"args": {"bytes": "BEYOND"}}, 3),
        ({"ts": "BEYOND"}, 3),
    ],
)
def test_numbers_that_no_column_holds_do_no_harm(
    tmp_path: Path, fields: dict[str, object], num_operations: int
) -> None:
    path = tmp_path / "trace.json"
    text = with_kernel(small(is_old=False), **fields).text().replace('"BEYOND"', "1e400")
    path.write_text(text)
    got = read_kineto(path)
    assert len(got.operations) == num_operations
    assert got.steps.tolist() == [7, 8]


def test_what_a_head_says_beyond_all_measure_is_not_known(tmp_path: Path) -> None:
    trace = small(is_old=False)
    trace.rank, trace.world = 10**25, -4
    got = read(trace, tmp_path)
    assert (got.rank, got.world, got.is_rank_declared) == (NONE, 0, False)


def test_a_step_s_number_beyond_all_measure_is_no_step(tmp_path: Path) -> None:
    trace = small(is_old=False)
    trace.step(10**23, 3000, 10)
    assert read(trace, tmp_path).steps.tolist() == [7, 8]


@pytest.mark.parametrize("start", ['{"traceEvents":[', "[", '{"a":', '{"traceEvents":[{"ph":"X","args":'])
def test_json_that_is_nested_too_deeply_is_damaged(tmp_path: Path, start: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(start + '{"a":' * 50_000)
    with pytest.raises(UserError, match="nested too deeply") as caught:
        read_kineto(path)
    assert caught.value.code == "trace-damaged"


def test_steps_that_are_counted_down_do_not_overlap(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(2, 0, 100)
    trace.step(1, 100, 100)
    assert not any("overlap" in note for note in read(trace, tmp_path).notes)


def test_steps_of_one_number_and_steps_that_overlap_are_said(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 100)
    trace.step(1, 10, 100)
    trace.step(2, 50, 100)
    got = read(trace, tmp_path)
    assert got.steps.tolist() == [1, 2]
    assert got.end_s[0] == pytest.approx(100e-6)
    assert len(got.notes) == 2


def test_a_trace_of_another_tool_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "v8", "name": "f", "ts": 1, "dur": 2}]}))
    with pytest.raises(UserError) as raised:
        read_kineto(path)
    assert raised.value.code == "trace-unknown"
    assert "none of PyTorch's profiler" in raised.value.what


def test_a_trace_without_any_event_is_one_that_knows_nothing(tmp_path: Path) -> None:
    got = read(KinetoTrace(rank=0, world=1), tmp_path)
    assert len(got.operations) == len(got.steps) == 0
    assert {Signal.STEPS, Signal.DEVICE, Signal.DATA_WAIT, Signal.COMMUNICATION} <= got.unknown.keys()
