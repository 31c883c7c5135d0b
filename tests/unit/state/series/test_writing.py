from __future__ import annotations

import math
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.base.version import __version__
from gscalar.state.home import Home
from gscalar.state.series import SeriesKey, open_series, reset_damaged
from gscalar.state.series.database import SCHEMA_VERSION
from gscalar.state.series.types import FileChange, FileState, NewRows, Source
from gscalar.state.series.writing import Overtaken, SeriesWriter
from gscalar.state.sqlite_files import remove_database

KEYS = (SeriesKey("metric", "loss", 0), SeriesKey("metric", "lr", 0))
FILE = "a000-r00000.rec"


@pytest.fixture
def place(home: Path) -> Home:
    return Home(home)


@pytest.fixture
def writer(place: Home) -> Iterator[SeriesWriter]:
    opened = SeriesWriter(place, "run")
    yield opened
    opened.close()


def rows(begin: int, values: np.ndarray | list[float]) -> NewRows:
    """Return rows of both keys, the second one negative; the step is the place."""
    found = NewRows(0, Source.LOG, [KEYS])
    for step, value in enumerate(values, begin):
        found.steps.append(step)
        found.times_ns.append(step * 1000)
        found.sets.append(0)
        found.values.append(struct.pack("<2d", value, -value))
    return found


def add(writer: SeriesWriter, begin: int, values: np.ndarray | list[float], *, cut: int = 2**62) -> None:
    state = FileState(begin + len(values), 0, 0, cut, b"")
    writer.commit({FILE: begin} if begin else {}, [FileChange(FILE, state, False, [rows(begin, values)])])


def count(place: Home, table: str) -> int:
    connection = sqlite3.connect(place.series("run"))
    try:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        connection.close()


def loss(place: Home) -> np.ndarray:
    with open_series(place, "run") as reader:
        return reader.points("metric", "loss", 0).values


def test_the_tails_of_a_group_stay_few_and_become_a_chunk(place: Home, writer: SeriesWriter) -> None:
    most = 0
    for step in range(4096):
        add(writer, step, [float(step)])
        if step % 64 == 62:
            most = max(most, count(place, "tails"))
    assert most <= 28
    assert (count(place, "tails"), count(place, "chunks"), count(place, "pieces")) == (0, 1, 2)
    assert loss(place).tolist() == list(range(4096))


@pytest.mark.parametrize("num", [1, 4095, 4096, 4097, 10_000])
def test_many_rows_at_once_are_full_chunks_and_a_tail(place: Home, writer: SeriesWriter, num: int) -> None:
    add(writer, 0, [0.5])
    add(writer, 1, np.arange(1, num, dtype=float))
    assert (count(place, "chunks"), count(place, "tails") > 0) == (num // 4096, num % 4096 > 0)
    assert loss(place).tolist() == [0.5, *range(1, num)]


def test_what_is_no_number_stays_what_it_is(place: Home, writer: SeriesWriter) -> None:
    values = [math.nan, -0.0, math.inf, -math.inf, 1.5] * 1000
    values[5] = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0]
    add(writer, 0, values)
    assert loss(place).tobytes() == np.array(values).tobytes()
    with open_series(place, "run") as reader:
        got = reader.list()[0]
    assert (got.count, got.num_nan, got.num_posinf, got.num_neginf) == (5000, 1000, 1000, 1000)
    assert (got.least, got.greatest, got.last) == (-math.inf, math.inf, 1.5)


def test_every_spike_is_drawn(place: Home, writer: SeriesWriter) -> None:
    values = np.random.default_rng(0).normal(size=150_000)
    spikes = np.random.default_rng(1).choice(len(values), 50, replace=False)
    values[spikes] = 1000.0 + spikes
    add(writer, 0, values)
    with open_series(place, "run") as reader:
        chart = reader.chart("metric", "loss", 0, columns=1000)
    columns = np.searchsorted(chart.begin, spikes, "right") - 1
    assert not chart.exact
    assert (chart.greatest[columns] >= values[spikes]).all()


def test_whoever_read_from_an_old_offset_writes_nothing(place: Home, writer: SeriesWriter) -> None:
    other = SeriesWriter(place, "run")
    add(writer, 0, [1.0, 2.0])
    with pytest.raises(Overtaken):
        add(other, 0, [1.0])
    add(other, 2, [3.0])
    with pytest.raises(Overtaken):
        add(writer, 2, [3.0])
    other.close()
    assert loss(place).tolist() == [1.0, 2.0, 3.0]


def test_two_writers_that_take_turns_join_each_others_tails(place: Home, writer: SeriesWriter) -> None:
    other = SeriesWriter(place, "run")
    for step in range(100):
        add((writer, other)[step % 2], step, [float(step)])
    other.close()
    assert loss(place).tolist() == list(range(100))
    assert count(place, "tails") <= 21


def test_a_cut_that_moves_changes_what_counts(place: Home, writer: SeriesWriter) -> None:
    add(writer, 0, np.arange(5000.0))
    for cut, want in ((4500, 4501), (100, 101), (-1, 0), (2**62, 5000)):
        writer.commit({FILE: 5000}, [FileChange(FILE, FileState(5000, 0, 0, cut, b""), False, [])])
        with open_series(place, "run") as reader:
            assert len(reader.points("metric", "loss", 0).steps) == want
            assert [each.count for each in reader.list()] == ([want] * 2 if want else [])


def test_an_open_reader_sees_what_comes_later(place: Home, writer: SeriesWriter) -> None:
    with open_series(place, "run") as reader:
        for begin, num in ((0, 10), (10, 5000), (5010, 7)):
            add(writer, begin, np.arange(begin, begin + num, dtype=float))
            for _ in range(2):
                assert reader.points("metric", "loss", 0).values.tolist() == list(range(begin + num))
                assert reader.chart("metric", "loss", 0, columns=3).count.sum() == begin + num
                assert reader.list()[0].count == begin + num


def test_a_file_that_is_read_anew_leaves_nothing_behind(place: Home, writer: SeriesWriter) -> None:
    add(writer, 0, np.arange(5000.0))
    state = FileState(2, 0, 0, 2**62, b"")
    writer.commit({FILE: 5000}, [FileChange(FILE, state, True, [rows(0, [7.0, 8.0])])])
    assert loss(place).tolist() == [7.0, 8.0]
    assert [count(place, each) for each in ("chunks", "columns", "pieces", "tails")] == [0, 0, 0, 1]


def test_a_series_that_is_not_there_is_empty(place: Home, writer: SeriesWriter) -> None:
    add(writer, 0, [1.0])
    with open_series(place, "run") as reader:
        assert len(reader.points("metric", "nothing", 0).steps) == 0
        assert len(reader.chart("metric", "nothing", 0).begin) == 0
    with open_series(place, "never") as reader:
        assert reader.list() == []
    assert not place.series("never").exists(), "reading has made a file"


# ---- the file


def set_version(place: Home, version: int, writer: str | None = None) -> None:
    connection = sqlite3.connect(place.series("run"))
    if writer:
        connection.execute("UPDATE writer SET gscalar = ?", (writer,))
        connection.commit()
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


@pytest.mark.parametrize("opening", [lambda place: SeriesWriter(place, "run"), lambda place: open_series(place, "run")])
def test_a_newer_store_is_refused_and_the_version_that_is_needed_is_named(place: Home, opening: object) -> None:
    SeriesWriter(place, "run").close()
    set_version(place, SCHEMA_VERSION + 1, "9.8.7")
    with pytest.raises(EnvironmentProblem) as caught:
        opening(place)  # type: ignore[operator]
    assert caught.value.code == "store-newer"
    assert "gscalar 9.8.7 or newer" in caught.value.what
    assert __version__ in caught.value.what


def test_an_older_store_is_emptied_to_be_filled_again(place: Home, writer: SeriesWriter) -> None:
    add(writer, 0, [1.0])
    writer.close()
    set_version(place, 0)
    with open_series(place, "run") as reader:
        assert reader.list() == []
    again = SeriesWriter(place, "run")
    assert again.load_files() == {}
    again.close()


def test_a_file_that_is_no_database_is_set_aside(place: Home) -> None:
    path = place.series("run")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(EnvironmentProblem, match="series-damaged"), open_series(place, "run"):
        pass
    SeriesWriter(place, "run").close()
    assert [each.read_bytes()[:14] for each in path.parent.glob("run.db.damaged-*")] == [b"not a database"]
    assert reset_damaged(place, "run") is None, "a sound file is left alone"


def test_removing_leaves_nothing_and_may_be_repeated(place: Home, writer: SeriesWriter) -> None:
    add(writer, 0, [1.0])
    assert writer.is_current()
    remove_database(place.series("run"))
    remove_database(place.series("run"))
    assert not writer.is_current()
    assert list(place.series("run").parent.glob("run*")) == []
