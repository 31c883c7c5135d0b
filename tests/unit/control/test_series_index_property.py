"""However records are written, read and read again, the series are what reading all points at once gives."""

from __future__ import annotations

import math
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gscalar.control.indexing.columns import step_columns
from gscalar.control.indexing.series_index import SeriesIndex, refresh_series
from gscalar.model import events
from gscalar.model.accounts import pack_accounts, unpack_accounts
from gscalar.state.home import Home, RunFolder
from gscalar.state.records.reader import Frame, RecordTail
from gscalar.state.series import SeriesKey, open_series, writing
from gscalar.state.series.types import FileChange
from gscalar.state.series.writing import SeriesWriter
from gscalar.testing import series_oracle as oracle
from gscalar.testing.builders import RunBuilder
from gscalar.testing.series_oracle import Point

ACTIONS = st.sampled_from(
    ["train", "train", "log", "log", "late", "nan", "accounts", "idle", "hardware", "resume", "anew", "damage", "seal"]
)
LOOKS = st.sampled_from(["kept", "kept", "other", "race", "killed", "nothing"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_ROWS", 8)
    monkeypatch.setattr(writing, "FINE_POINTS", 2)
    monkeypatch.setattr(writing, "COARSE_POINTS", 4)


def act(run: RunBuilder, action: str, number: int) -> None:
    """Do something that a run does; `number` is unique in the example."""
    now_ns = run.clock.advance(0.01)
    if action == "train":
        run.train(3)
    elif action == "log":
        run.log({f"m{number % 3}": float(number), "shared": -float(number)}, rank=number % len(run.workers))
    elif action == "late":
        values = struct.pack("<d", number)
        run.tell(events.Names(90, ("shared",))).tell(events.Points(run.step - number % 7, now_ns, 90, values))
    elif action == "nan":
        run.log({"shared": math.nan, "m0": math.inf, "zero": -0.0})
    elif action == "accounts":
        run.step += 1
        packed = pack_accounts({"compute": number / 7, "other": 0.5})[: 8 * (9 - number % 3)]
        run.tell(events.Step(run.step, now_ns, 0.5, 0.0, 8.0, 0.1, 1.0, 0, 0, packed))
    elif action == "idle":
        run.step += 1
        run.tell(events.Step(run.step, now_ns, 0.0, 8.0, 8.0, 0.1, 1.0))
    elif action == "hardware":
        run.workers[0].sample(now_ns, -1, {"host/cpu_cores": float(number)})
        run.workers[0].sample(now_ns, 0, {"worker/cpu_cores": 1.0, "worker/memory_bytes": float(number)})
    elif action == "resume":
        run.end_attempt("killed").launch(1 + number % 2, from_step=run.step * (number % 4) // 4)
    elif action == "anew":
        run.end_attempt("failed").launch(1 + number % 2)
    elif action == "damage":
        with run.workers[0].path.open("ab") as file:
            file.write(b"\x07garbage\xff" * 3)
        run.train(1)
    elif action == "seal":
        run.workers[0].seal("checkpoint")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    script=st.lists(st.tuples(ACTIONS, LOOKS, st.sampled_from([1, 3, 20_000])), min_size=1, max_size=14),
    axis=st.sampled_from(["step", "time"]),
)
def test_incremental_is_all_at_once(script: list[tuple[str, str, int]], axis: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        run = RunBuilder(home).launch(2)
        kept = SeriesIndex(home, run.run_id)
        for number, (action, look, max_frames) in enumerate(script):
            act(run, action, number)
            glance(home, run.run_id, kept, look, max_frames)
        run.abandon()
        kept.catch_up()
        kept.close()
        compare(home, run, axis)
        for path in home.series("x").parent.glob("*.db*"):
            path.unlink()
        refresh_series(home, run.run_id)
        compare(home, run, axis)


def glance(home: Home, run_id: str, kept: SeriesIndex, look: str, max_frames: int) -> None:
    """Look at the records as one of several processes, one of which may die in the middle of a commit."""
    if look == "kept":
        kept.catch_up(max_frames=max_frames)
    elif look == "other":
        refresh_series(home, run_id)
    elif look == "race":
        with pytest.MonkeyPatch.context() as patch:
            commit = SeriesWriter.commit

            def overtaken(writer: SeriesWriter, expected: dict[str, int], changes: list[FileChange]) -> None:
                patch.undo()
                refresh_series(home, run_id)
                commit(writer, expected, changes)

            patch.setattr(SeriesWriter, "commit", overtaken)
            kept.catch_up(max_frames=max_frames)
    elif look == "killed":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SeriesWriter, "_add_rows", die)
            try:
                kept.catch_up(max_frames=max_frames)
            except KeyboardInterrupt:
                pass


def die(*_: object) -> None:
    raise KeyboardInterrupt


def compare(home: Home, run: RunBuilder, axis: str) -> None:
    want = plain(run.folder)
    with open_series(home, run.run_id) as reader:
        infos = {SeriesKey(each.kind, each.name, each.rank): each for each in reader.list()}
        assert set(infos) == set(want)
        for key, points in want.items():
            oracle.assert_info(infos[key], points)
            ordered = oracle.order(points, axis)
            oracle.assert_points(reader.points(*key, axis=axis), ordered)
            oracle.assert_chart(reader.chart(*key, axis=axis, columns=3), ordered, 3)


def plain(folder: RunFolder) -> dict[SeriesKey, list[Point]]:
    """Return the points of each series, computed the simple way: every value of every event, one by one."""
    found: dict[SeriesKey, list[tuple[str, Point]]] = {}
    starts: dict[int, int] = {}
    for path in sorted(folder.records.glob("a*-r*.rec")):
        attempt, rank = int(path.stem[1:4]), int(path.stem[6:])
        tail = RecordTail(path)
        for item in tail.poll():
            event = item.event if isinstance(item, Frame) else None
            told: list[tuple[str, str, int, float]] = []
            step, source = -1, 1
            if isinstance(event, events.Resumed):
                starts[attempt] = event.step
            elif isinstance(event, events.Step):
                starts.setdefault(attempt, -1)
                step, source = event.step, 2
                told = [("metric", name, rank, each) for name, values in step_columns([event]) for each in values]
                told += [("account", name, rank, each) for name, each in unpack_accounts(event.accounts).items()]
            elif isinstance(event, events.Points):
                step = event.step
                told = [("metric", name, rank, each) for name, each in (tail.values(event) or {}).items()]
            elif isinstance(event, events.Hardware):
                source = 3
                values = struct.unpack(f"<{len(event.values) // 8}d", event.values)
                names = tail.names[event.names_id]
                told = [("hardware", name, event.rank, each) for name, each in zip(names, values, strict=True)]
            for kind, name, of, value in told:
                assert event is not None
                point = Point(step, event.time_ns, value, attempt, (attempt, path.name, source))
                found.setdefault(SeriesKey(kind, name, of), []).append((path.name, point))
    kept = {}
    for key, points in found.items():
        counts = [each for _, each in points if each.step <= cut_of(each.attempt, starts)]
        if counts:
            kept[key] = counts
    return kept


def cut_of(attempt: int, starts: dict[int, int]) -> int:
    return min((start for later, start in starts.items() if later > attempt), default=2**62)
