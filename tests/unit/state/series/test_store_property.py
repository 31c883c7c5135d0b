"""Whatever is added in whatever pieces, the store answers as lists of points in memory do."""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gscalar.state.home import Home
from gscalar.state.series import SeriesKey, SeriesReader, open_series, reading, writing
from gscalar.state.series.types import FileChange, FileState, NewRows, Source
from gscalar.state.series.writing import SeriesWriter
from gscalar.testing import series_oracle as oracle
from gscalar.testing.series_oracle import Point

KEYS = [SeriesKey("metric", name, 0) for name in "abc"]
KEY_SETS = [(KEYS[0],), (KEYS[0], KEYS[1]), (KEYS[2], KEYS[1], KEYS[0])]
FILES = ("a000-r00000.rec", "a001-r00000.rec")
NO_CUT = 2**62

VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.5, 1e300, math.nan, math.inf, -math.inf])
STEPS = st.one_of(st.integers(0, 30), st.integers(-5, 200), st.sampled_from([-(2**63), 2**61, 2**40]))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks, blocks and tails so small that a few rows fill many."""
    monkeypatch.setattr(writing, "CHUNK_ROWS", 8)
    monkeypatch.setattr(writing, "FINE_POINTS", 2)
    monkeypatch.setattr(writing, "COARSE_POINTS", 4)
    monkeypatch.setattr(writing, "_TAIL_FAN_IN", 2)
    monkeypatch.setattr(reading, "COARSE_POINTS", 4)
    monkeypatch.setattr(reading, "_BLOCKS_A_COLUMN", 1)
    monkeypatch.setattr(reading, "_MAX_WIDE", 2)


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, int, int, int, list[float]]]]:
    """Return commits, each a list of rows: file, source, step, time, values; the key set by the number of values."""
    ordered = draw(st.booleans())
    commits = []
    clock = 0
    for _ in range(draw(st.integers(1, 8))):
        rows = []
        for _ in range(draw(st.integers(0, 20))):
            clock += draw(st.sampled_from([1, 1, 1, 0, 50, -3]) if not ordered else st.integers(1, 3))
            step = clock if ordered else draw(STEPS)
            values = draw(st.lists(VALUES, min_size=1, max_size=3))
            rows.append((draw(st.integers(0, 1)), draw(st.sampled_from([1, 1, 1, 2])), step, clock, values))
        commits.append(rows)
    return commits


def add(
    writer: SeriesWriter, state: dict[str, int], rows: list[tuple[int, int, int, int, list[float]]], cut: int
) -> None:
    """Commit rows; the first file is superseded after the step `cut`."""
    changes = []
    for index, name in enumerate(FILES):
        groups = {source: NewRows(index, Source(source)) for source in (1, 2)}
        for file, source, step, time_ns, values in rows:
            if file == index:
                group = groups[source]
                keys = KEY_SETS[len(values) - 1]
                if keys not in group.key_sets:
                    group.key_sets.append(keys)
                group.sets.append(group.key_sets.index(keys))
                group.steps.append(step)
                group.times_ns.append(time_ns)
                group.values.append(struct.pack(f"<{len(values)}d", *values))
        offset = state.get(name, 0) + len(rows)
        changes.append(
            FileChange(name, FileState(offset, 0, 0, cut if index == 0 else NO_CUT, b""), False, list(groups.values()))
        )
    writer.commit(dict(state), changes)
    state.update({change.name: change.state.offset for change in changes})


def plain(commits: list[list[tuple[int, int, int, int, list[float]]]], key: SeriesKey, cut: int) -> list[Point]:
    found = []
    for file, source, step, time_ns, values in (row for rows in commits for row in rows):
        keys = KEY_SETS[len(values) - 1]
        if key in keys and (file or step <= cut):
            found.append(Point(step, time_ns, values[keys.index(key)], file, (file, FILES[file], source)))
    return found


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    commits=histories(),
    cut=st.sampled_from([NO_CUT, 10, 40, -1]),
    exact_points=st.sampled_from([0, 10]),
    axis=st.sampled_from(["step", "time"]),
    ends=st.tuples(st.none() | st.integers(-5, 60), st.none() | st.integers(-5, 60)),
    columns=st.sampled_from([1, 2, 5, 1000]),
)
def test_the_store_answers_as_memory_does(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    commits: list[list[tuple[int, int, int, int, list[float]]]],
    cut: int,
    exact_points: int,
    axis: str,
    ends: tuple[int | None, int | None],
    columns: int,
) -> None:
    monkeypatch.setattr(reading, "_EXACT_POINTS", exact_points)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        home = Home(Path(folder))
        state: dict[str, int] = {}
        writer = SeriesWriter(home, "run")
        for rows in commits:
            add(writer, state, rows, cut)
        writer.close()
        with open_series(home, "run") as reader:
            check(reader, commits, cut, axis, ends, columns)


def check(
    reader: SeriesReader,
    commits: list[list[tuple[int, int, int, int, list[float]]]],
    cut: int,
    axis: str,
    ends: tuple[int | None, int | None],
    columns: int,
) -> None:
    infos = {(each.kind, each.name, each.rank): each for each in reader.list()}
    for key in KEYS:
        points = plain(commits, key, cut)
        assert (key in infos) == bool(points)
        if points:
            oracle.assert_info(infos[key], points)
        for begin, end in ((None, None), ends):
            want = oracle.window(points, axis, begin, end)
            oracle.assert_points(reader.points(*key, axis=axis, begin=begin, end=end), want)
            got = reader.chart(*key, axis=axis, begin=begin, end=end, columns=columns)
            oracle.assert_chart(got, want, columns)
