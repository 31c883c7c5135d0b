"""Timelines of SQLite exports that the test makes: tables of several versions, processes, and damage."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import UserError
from gscalar.importers.nsight import read_nsight
from gscalar.model.timeline import Signal, StepTimeline

MS = 10**6  # nanoseconds
TEXTS = ["sgemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_Generic_4", "iteration 2"]
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "globalPid", "correlationId", "shortName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "globalPid", "correlationId", "bytes", "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end", "deviceId", "globalPid", "correlationId", "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "correlationId", "globalTid"),
    "NVTX_EVENTS": ("start", "end", "globalTid", "text", "textId"),
}
KERNELS, COPIES, SETS, CALLS, RANGES = COLUMNS
FIRST, SECOND = 1 << 48 | 1 << 24, 1 << 48 | 2 << 24  # two processes
Rows = Iterable[tuple[object, ...]]


def write(path: Path, tables: Mapping[str, Rows], columns: Mapping[str, tuple[str, ...]] = COLUMNS) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(TEXTS))
        for table, rows in tables.items():
            connection.execute(f"CREATE TABLE {table} ({', '.join(repr(name) for name in columns[table])})")
            places = ", ".join("?" * len(columns[table]))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
    connection.close()
    return path


def kernel(start_ms: float, end_ms: float, name: int = 0, *, process: int = FIRST, device: int = 0, call: int = 0):
    return int(start_ms * MS), int(end_ms * MS), device, process, call, name


def step(start_ms: float, end_ms: float, text: str | None = None, text_id: int | None = None, process: int = FIRST):
    return int(start_ms * MS), int(end_ms * MS), process | 7, text, text_id


def ms(timeline: StepTimeline, account: str, rank: int = 0) -> list[float]:
    return np.round(1e3 * timeline.account(account)[rank], 6).tolist()


def test_accounts_of_steps_that_ranges_mark(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(1, 5), kernel(4, 7, 1), kernel(11, 14)],
        COPIES: [(0, 2 * MS, 0, FIRST, 0, 4096, 1), (15 * MS, 16 * MS, 0, FIRST, 0, 64, 2)],
        SETS: [(8 * MS, 9 * MS, 0, FIRST, 0, 64)],
        RANGES: [step(0, 10, "iteration 1"), step(10, 20, text_id=3), step(16, 18, "next_batch")],
    }
    got = read_nsight(write(tmp_path / "a.sqlite", tables))
    assert got.steps.tolist() == [1, 2]
    assert ms(got, "compute") == [4.0, 3.0]
    assert ms(got, "exposed_communication") == [2.0, 0.0]
    assert ms(got, "h2d") == [1.0, 0.0]
    assert ms(got, "other") == [1.0, 1.0]
    assert ms(got, "data_wait") == [0.0, 2.0]
    assert ms(got, "host_gap") == [2.0, 4.0]
    np.testing.assert_allclose(np.nansum(got.accounts, axis=2), got.step_s)
    assert got.loading is not None
    np.testing.assert_allclose(got.loading.copy_s, [[0.002, 0.0]])
    np.testing.assert_allclose(got.loading.wait_s, [[0.0, 0.002]])


def test_without_ranges_steps_are_unknown_and_the_devices_are_not(tmp_path: Path) -> None:
    got = read_nsight(write(tmp_path / "a.sqlite", {KERNELS: [kernel(-3, -1), kernel(0, 2)]}))
    assert got.num_steps == 0
    assert "no range" in got.unknown[Signal.STEPS]
    assert got.devices[0].span_s == pytest.approx(0.005)
    assert got.devices[0].idle_s == pytest.approx(0.001)
    assert math.isnan(got.devices[0].idle_launch_s)
    assert Signal.LAUNCHES in got.unknown
    assert got.spans.start_s.tolist() == [0.0, 0.003]


def test_each_process_that_used_a_device_is_a_rank_in_the_order_of_devices(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(0, 2, process=SECOND, device=0), kernel(0, 5, process=FIRST, device=1)],
        RANGES: [step(at * 10, at * 10 + 10, f"step {at}", process=p) for p in (FIRST, SECOND) for at in (0, 1)],
    }
    got = read_nsight(write(tmp_path / "a.sqlite", tables))
    assert [(use.rank, use.device) for use in got.devices] == [(0, 0), (1, 1)]
    assert [ms(got, "compute", rank) for rank in (0, 1)] == [[2.0, 0.0], [5.0, 0.0]]
    assert got.clock_error_s == 0.0
    assert any("2 processes" in note for note in got.notes)


def test_a_step_that_one_rank_lacks_is_not_zero_there(tmp_path: Path) -> None:
    tables = {
        KERNELS: [kernel(0, 2, process=FIRST), kernel(0, 5, process=SECOND, device=1)],
        RANGES: [
            *(step(at * 10, at * 10 + 10, f"step {at}", process=FIRST) for at in (0, 1, 2)),
            *(step(at * 10, at * 10 + 10, f"step {at}", process=SECOND) for at in (1, 2)),
        ],
    }
    got = read_nsight(write(tmp_path / "a.sqlite", tables))
    assert got.steps.tolist() == [0, 1, 2]
    assert np.isnan(got.step_s).tolist() == [[False, False, False], [True, False, False]]


def test_a_gap_before_a_late_launch_is_told_from_one_that_was_queued(tmp_path: Path) -> None:
    # The same correlation number of another process is another call.
    tables = {
        KERNELS: [
            kernel(0, 2, call=1),
            kernel(3, 4, call=2),
            kernel(6, 7, call=3),
            kernel(20, 21, process=SECOND, call=2),
        ],
        CALLS: [(0, 1, 2, SECOND | 5), (0, 1, 1, FIRST | 5), (int(2.5 * MS), 1, 2, FIRST | 5), (1, 2, 3, FIRST | 5)],
    }
    got = read_nsight(write(tmp_path / "a.sqlite", tables)).devices[0]
    assert got.idle_launch_s == pytest.approx(0.001)
    assert got.idle_other_s == pytest.approx(0.002)


def test_exports_of_older_versions_lack_columns(tmp_path: Path) -> None:
    columns = {**COLUMNS, KERNELS: ("start", "end", "deviceId", "demangledName"), RANGES: ("start", "end", "text")}
    tables = {KERNELS: [(0, MS, 0, 0)], RANGES: [(0, MS, "step 1"), (MS, 2 * MS, "step 2"), (5, None, "a mark")]}
    got = read_nsight(write(tmp_path / "a.sqlite", tables, columns))
    assert ms(got, "compute") == [1.0, 0.0]
    assert got.names == ("sgemm",)


def test_communication_whose_kind_is_not_told_is_listed(tmp_path: Path) -> None:
    got = read_nsight(write(tmp_path / "a.sqlite", {KERNELS: [kernel(0, 1, 2), kernel(1, 2, 1)]}))
    assert got.unmatched == ("ncclDevKernel_Generic_4",)
    assert got.devices[0].communication_s == pytest.approx(0.002)


def test_a_kernel_without_a_name_computes(tmp_path: Path) -> None:
    tables = {KERNELS: [(0, MS, 0, FIRST, 0, None)], SETS: [(MS, 2 * MS, 0, FIRST, 0, 1)]}
    got = read_nsight(write(tmp_path / "a.sqlite", tables)).devices[0]
    assert got.compute_s == pytest.approx(0.001)


def test_operations_that_end_before_they_begin_are_left_out_and_counted(tmp_path: Path) -> None:
    got = read_nsight(write(tmp_path / "a.sqlite", {KERNELS: [kernel(5, 4), kernel(0, 1)]}))
    assert got.notes == ("1 operations with a negative duration are left out",)
    assert got.devices[0].num_operations == 1


def test_an_export_of_ranges_only_has_steps_and_no_device(tmp_path: Path) -> None:
    got = read_nsight(write(tmp_path / "a.sqlite", {RANGES: [step(0, 10, "step 1"), step(12, 20, "step 2")]}))
    np.testing.assert_allclose(got.step_s, [[0.010, 0.008]])
    assert {Signal.DEVICE, Signal.COMPUTE} <= got.unknown.keys()
    assert np.isnan(got.accounts).all()
    assert any("10%" in note for note in got.notes)


def test_nothing_is_written_beside_the_export(tmp_path: Path) -> None:
    path = write(tmp_path / "with space?#.sqlite", {KERNELS: [kernel(0, 1)]})
    before = path.read_bytes()
    read_nsight(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_texts_that_are_none_are_no_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.sqlite", {KERNELS: [kernel(0, 1)], RANGES: [step(0, 1, text_id=99)]})
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS StringIds (id INTEGER, value TEXT)")
        database.execute("INSERT INTO StringIds (id, value) VALUES (99, NULL)")
        database.execute("UPDATE NVTX_EVENTS SET text = NULL")
    assert read_nsight(path).num_steps == 0


def damaged(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "bad.sqlite"
    if kind == "no database":
        path.write_bytes(b"not a database, but long enough to be one" * 100)
    elif kind == "cut off":
        write(path, {KERNELS: [kernel(at, at + 1) for at in range(5000)]})
        path.write_bytes(path.read_bytes()[:20_000])
    elif kind == "other tables":
        write(path, {})
    elif kind == "empty tables":
        write(path, {KERNELS: [], RANGES: []})
    elif kind == "missing columns":
        write(path, {KERNELS: [(0,)]}, {KERNELS: ("start",)})
    elif kind == "texts for times":
        write(path, {KERNELS: [("soon", "later", 0, 0, 0, 0)]})
    return path


@pytest.mark.parametrize(
    "kind",
    ["no database", "cut off", "other tables", "empty tables", "missing columns", "texts for times", "no file"],
)
def test_what_cannot_be_read_is_said_with_the_file(tmp_path: Path, kind: str) -> None:
    path = damaged(tmp_path, kind)
    with pytest.raises(UserError, match=r"bad\.sqlite cannot be read") as caught:
        read_nsight(path)
    assert caught.value.code == "trace-damaged"
    assert path.exists() == (kind != "no file")
