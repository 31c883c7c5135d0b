"""Timelines of XSpaces that the test puts together: devices of both kinds, steps by either mark, and damage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import UserError
from gscalar.importers.xplane import looks_like_xspace, read_xplane
from gscalar.model.timeline import Activity, Signal, StepTimeline
from gscalar.testing.xspaces import event, line, plane, space

MS = 10**9  # picoseconds
MARKS = line("python", [event(1, at * 10 * MS, 10 * MS, step_num=5 + at) for at in range(3)])
HOST = plane("/host:CPU", [MARKS], ["train"])


def read(tmp_path: Path, planes: Sequence[bytes]) -> StepTimeline:
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(space(planes))
    return read_xplane(path)


def ms(timeline: StepTimeline, account: str) -> list[float]:
    return np.round(1e3 * timeline.account(account)[0], 6).tolist()


def test_steps_of_the_host_are_numbered_as_their_annotation_says(tmp_path: Path) -> None:
    got = read(tmp_path, [HOST])
    assert got.steps.tolist() == [5, 6, 7]
    assert got.ranks[0].host == "host-a"
    np.testing.assert_allclose(got.begin_s, [[0.0, 0.010, 0.020]])
    np.testing.assert_allclose(got.step_s, 0.010)


def test_a_trace_of_a_cpu_says_that_it_does_not_know_what_computed(tmp_path: Path) -> None:
    got = read(tmp_path, [HOST])
    assert {Signal.DEVICE, Signal.COMPUTE, Signal.COMMUNICATION, Signal.DATA_WAIT} <= got.unknown.keys()
    assert np.isnan(got.accounts).all()
    assert got.devices == ()
    assert got.loading is None


def test_tf_data_waits_count_on_the_thread_that_steps_only(tmp_path: Path) -> None:
    names = ["train", "IteratorGetNextOp::DoCompute"]
    marks = [event(1, at * 10 * MS, 10 * MS, step_num=at) for at in range(2)]
    stepping = line("python", [*marks, event(2, 1 * MS, 2 * MS), event(2, 11 * MS, 1 * MS)])
    loading = line("tf_data", [event(2, 0, 20 * MS)])
    got = read(tmp_path, [plane("/host:CPU", [stepping, loading], names)])
    assert ms(got, "data_wait") == [2.0, 1.0]
    assert got.loading is not None
    np.testing.assert_allclose(got.loading.wait_s, [[0.002, 0.001]])
    assert Signal.DATA_WAIT not in got.unknown


def test_streams_of_a_gpu_are_what_counts_and_not_the_lines_that_tell_it_again(tmp_path: Path) -> None:
    names = ["fusion.1", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "MemcpyH2D", "Memset", "train_step"]
    compute = line("Stream #13(Compute)", [event(1, 1 * MS, 4 * MS), event(1, 11 * MS, 2 * MS)])
    other = line("Stream #14(Memcpy)", [event(2, 4 * MS, 3 * MS), event(3, 0, 2 * MS), event(4, 8 * MS, 1 * MS)])
    again = line("XLA Modules", [event(5, 0, 20 * MS)])
    got = read(tmp_path, [HOST, plane("/device:GPU:1", [compute, other, again], names)])
    assert ms(got, "compute") == [4.0, 2.0, 0.0]
    assert ms(got, "exposed_communication") == [2.0, 0.0, 0.0]
    assert ms(got, "h2d") == [1.0, 0.0, 0.0]
    assert ms(got, "other") == [1.0, 0.0, 0.0]
    assert ms(got, "host_gap") == [2.0, 8.0, 10.0]
    assert [device.device for device in got.devices] == [1]
    assert got.devices[0].busy_s == pytest.approx(0.010)
    assert math.isnan(got.devices[0].idle_launch_s)
    assert got.unmatched == ()


def test_a_loop_of_a_tpu_counts_by_what_it_holds(tmp_path: Path) -> None:
    names = ["0", "1", "while.2", "fusion.3", "%all-reduce.4 = f32[] all-reduce(f32[] %p)", "infeed.5"]
    steps = line("Steps", [event(1, 0, 10 * MS), event(2, 10 * MS, 10 * MS)])
    inside = [event(4, 1 * MS, 3 * MS), event(5, 4 * MS, 2 * MS), event(4, 6 * MS, 1 * MS)]
    operations = line("XLA Ops", [event(3, 1 * MS, 7 * MS), *inside, event(6, 10 * MS, 5 * MS)])
    got = read(tmp_path, [plane("/device:TPU:0", [steps, operations], names)])
    assert got.steps.tolist() == [0, 1]
    assert ms(got, "compute") == [4.0, 0.0]
    assert ms(got, "exposed_communication") == [2.0, 0.0]
    assert ms(got, "data_wait") == [0.0, 5.0]
    assert ms(got, "host_gap") == [4.0, 5.0]


def test_collectives_in_flight_are_hidden_while_the_tpu_computes(tmp_path: Path) -> None:
    names = ["0", "fusion.3", "all-gather-start.1"]
    steps = line("Steps", [event(1, 0, 10 * MS)])
    operations = line("XLA Ops", [event(2, 0, 6 * MS)])
    flying = line("Async XLA Ops", [event(3, 2 * MS, 6 * MS), event(3, 3 * MS, 1 * MS)])
    got = read(tmp_path, [plane("/device:TPU:0", [steps, operations, flying], names)])
    assert ms(got, "exposed_communication") == [2.0]
    assert got.devices[0].overlap_s == pytest.approx(0.004)


def test_a_step_of_several_devices_lasts_from_the_first_to_the_last_and_accounts_are_their_mean(tmp_path: Path) -> None:
    def device(number: int, start: int, computes: int) -> bytes:
        lines = [line("Steps", [event(1, start * MS, 10 * MS)]), line("XLA Ops", [event(2, start * MS, computes * MS)])]
        return plane(f"/device:TPU:{number}", lines, ["3", "fusion"])

    got = read(tmp_path, [device(0, 0, 4), device(1, 2, 8)])
    assert ms(got, "compute") == [6.0]
    np.testing.assert_allclose(got.step_s, [[0.012]])
    np.testing.assert_allclose(np.nansum(got.accounts, axis=2), got.step_s)


def test_lines_have_clocks_of_their_own(tmp_path: Path) -> None:
    early = line("Stream #1", [event(1, 0, MS)], timestamp_ns=1_000_000)
    late = line("Stream #2", [event(1, 0, MS)], timestamp_ns=4_000_000)
    got = read(tmp_path, [plane("/device:GPU:0", [early, late], ["kernel"])])
    assert got.devices[0].span_s == pytest.approx(0.004)
    assert got.spans.activity.tolist() == [Activity.COMPUTE] * 2
    assert got.num_steps == 0
    assert Signal.STEPS in got.unknown


def test_operations_that_end_before_they_begin_are_left_out_and_counted(tmp_path: Path) -> None:
    got = read(tmp_path, [plane("/device:GPU:0", [line("Stream #1", [event(1, 0, -MS), event(1, 0, MS)])], ["k"])])
    assert got.devices[0].num_operations == 1
    assert any("negative duration" in note for note in got.notes)


def test_cores_that_are_not_read_are_named(tmp_path: Path) -> None:
    got = read(tmp_path, [HOST, plane("/device:TPU:0 SparseCore 0", [], [])])
    assert got.notes == ("not read: /device:TPU:0 SparseCore 0",)


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"", "empty", id="an empty file"),
        pytest.param(space([HOST])[:-20], "cut off|ends after", id="a file that is cut off"),
        pytest.param(
            space([HOST]) + b"\x0a\x03\x1a\x07\x00", "cut off|ends after", id="a line that is longer than all"
        ),
        pytest.param(b"\x0a\x10\x12" + bytes(40), "field number 0", id="a field without a number"),
        pytest.param(b"this is not a profile", "wire type|ends after|cut off", id="another file"),
        pytest.param(space([plane("/host:CPU", [], [])]), "no events", id="a profile without events"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_file(tmp_path: Path, content: bytes, want: str) -> None:
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(UserError, match=want) as caught:
        read_xplane(path)
    assert caught.value.code == "trace-damaged"
    assert "vm.xplane.pb" in caught.value.what


@pytest.mark.parametrize(
    ("content", "want"),
    [(space([HOST]), True), (b"", False), (b"SQLite format 3\0", False), (b'{"traceEvents"', False), (b"PAR1", False)],
)
def test_a_profile_is_known_by_how_it_begins(content: bytes, want: bool) -> None:
    assert looks_like_xspace(content[:64]) is want
