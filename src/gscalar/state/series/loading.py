"""What a run's store holds, as blocks and points: loading them, and leaving out what is superseded.

Of a record file with a cut, the points after that step are superseded. They are in the store, since a cut moves when a
later attempt begins; a chunk that lies on both sides of the cut is opened.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gscalar.state.series.blocks import BLOCK, Blocks, Points, Records, join_blocks, starts_of, summarize_blocks
from gscalar.state.series.codec import decode_axis, decode_floats
from gscalar.state.series.database import MAX_COLUMNS
from gscalar.state.series.rows import Rows, join_rows, unpack_rows
from gscalar.state.series.types import Floats, Ints, SeriesKey

OUTSIDE, WHOLE, PARTLY = 0, 1, 2
# The order of points of equal step and time: the place of their group, then their chunk; the tail is last.
PLACE_BITS: Final = 32
_TAIL: Final = (1 << PLACE_BITS) - 1
# Of what is asked for again and again, as much is kept: axes of 80 KB, pieces of 270 KB for a million points.
_AXES_KEPT: Final = 128
_SERIES_KEPT: Final = 32
_BLOCKS_KEPT: Final = 1 << 17  # of all series: 17 MB
_INT64: Final = np.iinfo(np.int64)


class Group(NamedTuple):
    place: int  # among the run's groups: by attempt, record file, source
    attempt: int
    cut: int


@dataclass(slots=True)
class Pieces:
    """The pieces of one series, or of all one by one, in the order of the record, with their coarse blocks."""

    series: Ints
    chunks: Ints
    groups: Ints
    places: Ints
    order: Ints
    cuts: Ints
    coarse: Records
    of_block: Ints  # the piece of each coarse block

    def __len__(self) -> int:
        return len(self.chunks)

    def count(self, chosen: Ints) -> int:
        """Return how many points some of the pieces have."""
        return int(self.coarse["count"][self.blocks_of(chosen)].sum())

    def of_series(self, series: int) -> Pieces:
        """Return the pieces of one series."""
        first, last = np.searchsorted(self.series, (series, series + 1)).tolist()
        low, high = np.searchsorted(self.of_block, (first, last)).tolist()
        part = slice(first, last)
        return Pieces(
            self.series[part],
            self.chunks[part],
            self.groups[part],
            self.places[part],
            self.order[part],
            self.cuts[part],
            self.coarse[low:high],
            self.of_block[low:high] - first,
        )

    def blocks_of(self, chosen: Ints) -> Ints:
        """Return which coarse blocks are of some of the pieces."""
        is_chosen = np.zeros(len(self), bool)
        is_chosen[chosen] = True
        return np.flatnonzero(is_chosen[self.of_block])


class Snapshot:
    """One state of a run's store, and what was loaded of it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Look at the groups; with every call the caller holds a transaction of the connection open, of this state."""
        self._connection = connection
        self._found: dict[SeriesKey, tuple[Pieces, list[Points]]] = {}
        self._tails: dict[int, Rows | None] = {}
        self._all: Pieces | None = None
        self._sets: dict[int, dict[int, Ints]] = {}
        self._axes: dict[int, tuple[Ints, Ints, npt.NDArray[np.int32]]] = {}  # of the chunks opened last
        query = (
            "SELECT g.id, g.attempt, f.cut FROM groups g JOIN files f ON f.id = g.file_id"
            " ORDER BY g.attempt, f.name, g.source"
        )
        rows = self._execute(query)
        self.groups = {row[0]: Group(place, row[1], row[2]) for place, row in enumerate(rows)}

    def load_keys(self) -> dict[int, SeriesKey]:
        """Return every series by its id."""
        return {row[0]: SeriesKey(*row[1:]) for row in self._execute("SELECT id, kind, name, rank FROM series")}

    def find(self, key: SeriesKey) -> tuple[Pieces, list[Points]]:
        """Return the pieces of a series, and what the tails have of it."""
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _SERIES_KEPT:
                self._found.clear()
            found = self._found[key] = self._find(key)
        return found[0], list(found[1])

    def _find(self, key: SeriesKey) -> tuple[Pieces, list[Points]]:
        query = "SELECT id FROM series WHERE kind = ? AND name = ? AND rank = ?"
        (series,) = next(iter(self._execute(query, key)), (-1,))
        groups = self._execute("SELECT group_id FROM members WHERE series_id = ?", (series,))
        parts = []
        for (group,) in groups:
            tail = self._load_tail(group)
            if tail is not None:
                index, values = tail.column(series, self._members(group))
                parts.append(_place(tail.steps[index], tail.times_ns[index], values, self.groups[group], _TAIL))
        if self._all is not None:
            return self._all.of_series(series), parts
        pieces = "SELECT series_id, chunk_id, group_id, place, coarse FROM pieces WHERE series_id = ?"
        return self._pieces(self._execute(pieces, (series,))), parts

    def summarize_all(self) -> tuple[Ints, Blocks]:
        """Return blocks of all that counts, and the series of each block."""
        query = "SELECT series_id, chunk_id, group_id, place, coarse FROM pieces ORDER BY series_id, chunk_id"
        pieces = self._pieces(self._execute(query))
        if len(pieces.coarse) <= _BLOCKS_KEPT:
            self._all = pieces
        judged = judge(pieces, "step", _INT64.min, _INT64.max)
        blocks, of_piece = self.load_blocks(pieces, np.flatnonzero(judged == WHOLE), fine=False)
        series, found = [pieces.series[of_piece]], [blocks]
        partly = np.flatnonzero(judged == PARTLY)
        for piece, points in zip(partly.tolist(), self.open(pieces, partly), strict=True):
            if len(points):
                series.append(pieces.series[piece : piece + 1])
                found.append(points.block(np.zeros(1, np.int64)))
        for group, facts in self.groups.items():
            tail = self._load_tail(group)
            if tail is None:
                continue
            tail = tail.take(np.flatnonzero(tail.steps <= facts.cut)).sort()
            order = np.full(1, facts.place << PLACE_BITS | _TAIL)
            for members, index, values in tail.columns(self._members(group)) if len(tail) else ():
                first = np.zeros(1, np.int64)
                records = summarize_blocks(tail.steps[index], tail.times_ns[index], values, first)[:, 0]
                orders = np.repeat(order, len(members))
                series.append(members)
                found.append(Blocks(records, orders, orders))
        return np.concatenate(series), join_blocks(found)

    def load_blocks(self, pieces: Pieces, chosen: Ints, *, fine: bool) -> tuple[Blocks, Ints]:
        """Return the blocks of some pieces, and the piece of each."""
        if fine:
            records, of_piece = self._load_fine(pieces, chosen)
        else:
            index = pieces.blocks_of(chosen)
            records, of_piece = pieces.coarse.take(index), pieces.of_block[index]
        order = pieces.order[of_piece]
        return Blocks(records, order, order), of_piece

    def _load_fine(self, pieces: Pieces, chosen: Ints) -> tuple[Records, Ints]:
        ids = (pieces.chunks[chosen] * MAX_COLUMNS + pieces.places[chosen]).tolist()
        query = "SELECT fine FROM columns WHERE id = ?"
        blobs = [self._connection.execute(query, (each,)).fetchone()[0] for each in ids]
        lengths = np.array([len(each) // BLOCK.itemsize for each in blobs], np.int64)
        return np.frombuffer(b"".join(blobs), BLOCK), np.repeat(chosen, lengths)

    def open(self, pieces: Pieces, chosen: Ints) -> list[Points]:
        """Return the points of some pieces that are not superseded."""
        return [self._open_piece(pieces, each) for each in chosen.tolist()]

    def _open_piece(self, pieces: Pieces, piece: int) -> Points:
        chunk, group = int(pieces.chunks[piece]), int(pieces.groups[piece])
        steps, times_ns, sets = self._axis(chunk)
        if len(sets):
            having = [each for each, of_set in self._members(group).items() if (of_set == pieces.series[piece]).any()]
            index = np.flatnonzero(np.isin(sets, having))
            steps, times_ns = steps[index], times_ns[index]
        query = "SELECT content FROM columns WHERE id = ?"
        ((content,),) = self._execute(query, (chunk * MAX_COLUMNS + int(pieces.places[piece]),))
        return _place(steps, times_ns, decode_floats(content, len(steps)), self.groups[group], chunk & _TAIL)

    def _axis(self, chunk: int) -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
        found = self._axes.get(chunk)
        if found is None:
            ((num, axis, sets),) = self._execute("SELECT num_rows, axis, sets FROM chunks WHERE id = ?", (chunk,))
            if len(self._axes) >= _AXES_KEPT:
                self._axes.clear()
            found = self._axes[chunk] = (*decode_axis(axis, num), np.frombuffer(sets, "<i4"))
        return found

    def _load_tail(self, group: int) -> Rows | None:
        """Return the rows of a group that no chunk holds."""
        if group not in self._tails:
            self._tails[group] = self._unpack_tail(group)
        return self._tails[group]

    def _unpack_tail(self, group: int) -> Rows | None:
        parts = self._execute("SELECT num_rows, content FROM tails WHERE group_id = ? ORDER BY id", (group,))
        if not parts:
            return None
        return unpack_rows(sum(num for num, _ in parts), join_rows(parts), self._members(group))

    def _pieces(self, rows: list[tuple[Any, ...]]) -> Pieces:
        numbers = np.array([row[:4] for row in rows], np.int64).reshape(-1, 4)
        lengths = np.array([len(row[4]) // BLOCK.itemsize for row in rows], np.int64)
        places = np.array([self.groups[row[2]].place for row in rows], np.int64)
        return Pieces(
            series=numbers[:, 0],
            chunks=numbers[:, 1],
            groups=numbers[:, 2],
            places=numbers[:, 3],
            order=places << PLACE_BITS | (numbers[:, 1] & _TAIL),
            cuts=np.array([self.groups[row[2]].cut for row in rows], np.int64),
            coarse=np.frombuffer(b"".join([row[4] for row in rows]), BLOCK),
            of_block=np.repeat(np.arange(len(rows)), lengths),
        )

    def _members(self, group: int) -> dict[int, Ints]:
        """Return the series of each key set of a group."""
        found = self._sets.get(group)
        if found is None:
            rows = self._execute("SELECT id, members FROM key_sets WHERE group_id = ?", (group,))
            found = self._sets[group] = {each: np.frombuffer(blob, "<i4").astype(np.int64) for each, blob in rows}
        return found

    def _execute(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()


def judge(pieces: Pieces, axis: str, low: int, high: int) -> npt.NDArray[np.int8]:
    """Tell of each piece whether its points are in the window and not superseded: all, some, or none of them."""
    firsts, lasts = starts_of(pieces.of_block), np.append(starts_of(pieces.of_block)[1:], len(pieces.of_block)) - 1
    lasts = lasts[: len(firsts)]
    coarse = pieces.coarse
    first_step, last_step = coarse["first_step"][firsts], coarse["last_step"][lasts]
    outside, partly = first_step > pieces.cuts, last_step > pieces.cuts
    first, last = coarse[f"first_{axis}"][firsts], coarse[f"last_{axis}"][lasts]
    beside, crossing = (last < low) | (first > high), (first < low) | (last > high)
    if axis == "time" and len(pieces):
        # Where times do not rise, the summaries do not say where on the axis the points are.
        back = coarse["time_ordered"] == 0
        back[1:] |= (coarse["first_time"][1:] < coarse["last_time"][:-1]) & (
            pieces.of_block[1:] == pieces.of_block[:-1]
        )
        unordered = np.logical_or.reduceat(back, firsts)
        beside, crossing = beside & ~unordered, crossing | unordered
    return np.where(outside | beside, OUTSIDE, np.where(partly | crossing, PARTLY, WHOLE)).astype(np.int8)


def _place(steps: Ints, times_ns: Ints, values: Floats, group: Group, place: int) -> Points:
    """Return points of a group without the superseded ones."""
    order = np.full(len(steps), group.place << PLACE_BITS | place)
    found = Points(steps, times_ns, values, order)
    counts = steps <= group.cut
    return found if counts.all() else found.take(np.flatnonzero(counts))
