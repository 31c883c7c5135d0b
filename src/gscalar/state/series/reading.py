"""Reading a run's series: what there is, the points of one, its chart.

A chart opens only what is partly outside its window or cannot be told from summaries; all else comes from
blocks of 64 or 512 points, whichever gives some blocks a column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from gscalar.state.home import Home
from gscalar.state.series import charting
from gscalar.state.series.blocks import COUNTS, Blocks, Points, edge_records, join_points, merge_blocks, starts_of
from gscalar.state.series.database import connect, explained, transaction
from gscalar.state.series.loading import OUTSIDE, PARTLY, PLACE_BITS, WHOLE, Pieces, Snapshot, judge
from gscalar.state.series.types import Chart, Ints, SeriesInfo, SeriesKey, SeriesPoints
from gscalar.state.series.writing import COARSE_POINTS

# As many points are drawn one by one: opening them takes as long as reading the blocks of ten times as many.
_EXACT_POINTS: Final = 1 << 17
_BLOCKS_A_COLUMN: Final = 2
# Of wide blocks that overlap with no other, as many are opened; what is left makes columns wider.
_MAX_WIDE: Final = 32
_INT64: Final = np.iinfo(np.int64)


def open_series(home: Home, run_id: str) -> SeriesReader:
    """Return the run's series as they are in the store; there may be none yet.

    `gscalar.control.indexing.series_index.refresh_series` brings the store up to the records.

    Raises:
        EnvironmentProblem: `store-newer`, `series-damaged`, `home-not-writable`.
    """
    path = home.series(run_id)
    with explained(path):
        return SeriesReader(path, connect(path, busy_timeout_s=30.0))


class SeriesReader:
    """The open store of one run, for reading. Each call sees one state of it. Use it from one thread.

    Every call raises EnvironmentProblem `series-damaged` where the file turns out to be.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._stored: Snapshot | None = None
        self._version = -1

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> SeriesReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def points(
        self, kind: str, name: str, rank: int, *, axis: str = "step", begin: int | None = None, end: int | None = None
    ) -> SeriesPoints:
        """Return the points from position `begin` to `end` of the axis, both included, in its order.

        The order is that of the axis (`step`, or `time` in nanoseconds), then of the other one, then of the record.
        A series that is not there has no points.
        """
        low, high = _window(axis, begin, end)
        with self._snapshot() as stored:
            pieces, tail = stored.find(SeriesKey(kind, name, rank))
            opened = stored.open(pieces, np.flatnonzero(judge(pieces, axis, low, high) != OUTSIDE))
            attempts = np.array([each.attempt for each in sorted(stored.groups.values())], np.int32)
        points = _clip(join_points(opened + tail), axis, low, high).sort(axis)
        return SeriesPoints(points.steps, points.times_ns, points.values, attempts[points.order >> PLACE_BITS])

    def chart(
        self,
        kind: str,
        name: str,
        rank: int,
        *,
        axis: str = "step",
        begin: int | None = None,
        end: int | None = None,
        columns: int = 1000,
    ) -> Chart:
        """Return the series from position `begin` to `end` of the axis, both included, in at most `columns` columns.

        Each column is exact. They divide the window, or where it is open the reach of the points, into equal parts, up
        to the ends of blocks (`gscalar.state.series.charting`).
        """
        assert columns > 0, columns
        window = _window(axis, begin, end)
        with self._snapshot() as stored:
            pieces, parts = stored.find(SeriesKey(kind, name, rank))
            judged = judge(pieces, axis, *window)
            parts += stored.open(pieces, np.flatnonzero(judged == PARTLY))
            parts = [_clip(each, axis, *window) for each in parts]
            whole = np.flatnonzero(judged == WHOLE)
            num = pieces.count(whole)
            if num <= max(_EXACT_POINTS, columns):
                parts += stored.open(pieces, whole)
                whole = whole[:0]
            fine = num < COARSE_POINTS * _BLOCKS_A_COLUMN * columns
            blocks, of_piece = stored.load_blocks(pieces, whole, fine=fine)
            points = join_points(parts).sort(axis)
            if len(blocks):
                low, high = _reach(blocks, points, axis, begin, end)
                more, blocks = _open_wide(stored, pieces, blocks, of_piece, axis, max(1, (high - low) // columns))
                points = join_points(parts + more).sort(axis) if more else points
        return _draw(blocks, points, axis, begin, end, columns)

    def load_file_times(self) -> dict[str, tuple[int, int]]:
        """Return size and time of change of each record file when it was read to its end, by name."""
        with explained(self._path):
            rows = self._connection.execute("SELECT name, size, mtime_ns FROM files").fetchall()
        return {name: (size, mtime_ns) for name, size, mtime_ns in rows}

    @contextmanager
    def _snapshot(self) -> Iterator[Snapshot]:
        with explained(self._path), transaction(self._connection, writes=False):
            # Changes with what other connections commit, and this one never writes.
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            if self._stored is None or version != self._version:
                self._stored, self._version = Snapshot(self._connection), version
            yield self._stored

    # The last one: below it in the class, `list` is this method.
    def list(self) -> list[SeriesInfo]:
        """Return every series that has a point, by kind, name and rank."""
        with self._snapshot() as stored:
            keys = stored.load_keys()
            series, blocks = stored.summarize_all()
        order = np.argsort(series, kind="stable")
        series, blocks = series[order], blocks.take(order)
        sums = merge_blocks(series, blocks, "step")
        first, last = edge_records(series, blocks, "step")
        found = [
            SeriesInfo(
                kind=keys[each].kind,
                name=keys[each].name,
                rank=keys[each].rank,
                **{name: int(getattr(sums, name)[place]) for name in COUNTS},
                first_step=int(sums.begin[place]),
                last_step=int(sums.end[place]),
                first_time_ns=int(first["first_time"][place]),
                last_time_ns=int(last["last_time"][place]),
                last=float(sums.last[place]),
                least=float(sums.least[place]),
                greatest=float(sums.greatest[place]),
                least_step=int(sums.least_at[place]),
                greatest_step=int(sums.greatest_at[place]),
            )
            for place, each in enumerate(series[starts_of(series)].tolist())
        ]
        return sorted(found, key=lambda each: (each.kind, each.name, each.rank))


def _open_wide(
    stored: Snapshot, pieces: Pieces, blocks: Blocks, of_piece: Ints, axis: str, width: int
) -> tuple[list[Points], Blocks]:
    """Return points in place of the blocks from which no columns of this width can be made, and the other blocks."""
    parts = []
    for find, limit in ((charting.find_wide, _MAX_WIDE), (charting.find_knots, None)):
        found = of_piece[find(blocks, axis, width)].tolist()
        chosen = np.array(list(dict.fromkeys(found))[:limit], np.int64)
        if len(chosen):
            parts += stored.open(pieces, chosen)
            kept = np.flatnonzero(~np.isin(of_piece, chosen))
            blocks, of_piece = blocks.take(kept), of_piece[kept]
    return parts, blocks


def _window(axis: str, begin: int | None, end: int | None) -> tuple[int, int]:
    assert axis in ("step", "time"), axis
    return _INT64.min if begin is None else begin, _INT64.max if end is None else end


def _clip(points: Points, axis: str, low: int, high: int) -> Points:
    at = points.position(axis)
    inside = (at >= low) & (at <= high)
    return points if inside.all() else points.take(np.flatnonzero(inside))


def _reach(blocks: Blocks, points: Points, axis: str, begin: int | None, end: int | None) -> tuple[int, int]:
    """Return the ends of the axis that the columns divide: of the window, or of the points where it is open."""
    at = points.position(axis)
    lows, highs = (np.append(blocks.records[f"{edge}_{axis}"], at) for edge in ("first", "last"))
    return int(lows.min()) if begin is None else begin, int(highs.max()) if end is None else end


def _draw(blocks: Blocks, points: Points, axis: str, begin: int | None, end: int | None, columns: int) -> Chart:
    if not len(blocks) and not len(points):
        return charting.empty_chart(axis)
    edges = charting.lay_edges(*_reach(blocks, points, axis, begin, end), columns)
    if len(blocks):
        return charting.draw(blocks, points, axis, edges)
    return charting.draw_points(points, axis, edges, columns)
