"""Adding to a run's series: rows to tails, full tails to chunks, all of one commit in one transaction.

While a run goes on, a commit has a few rows of each group. They are stored as they come, one tail a commit, and
every eight tails of about one size are joined to one, so that a group has at most some thirty of them and a row is
copied four times at most. At 4096 rows the tails of a group become a chunk, which is never touched again.

Any number of processes may add to one run. Each says how far it believes every record file to be read; where that is
not what is stored, another one was faster, and nothing is written (`Overtaken`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from gscalar.state.home import Home
from gscalar.state.series.blocks import summarize_blocks
from gscalar.state.series.codec import encode_axis, encode_floats
from gscalar.state.series.database import MAX_COLUMNS, create, explained, transaction
from gscalar.state.series.rows import Rows, join_rows, pack_rows, slice_rows, unpack_rows
from gscalar.state.series.types import FileChange, FileState, Ints, NewRows, SeriesKey
from gscalar.state.sqlite_files import identity

CHUNK_ROWS: Final = 4096
FINE_POINTS: Final = 64
COARSE_POINTS: Final = 512
_TAIL_FAN_IN: Final = 8


class Overtaken(Exception):
    """Another process has read on from the same offset and was faster. Nothing is written."""


class SeriesWriter:
    """The open store of one run, for adding to it. Use it from one thread."""

    def __init__(self, home: Home, run_id: str, *, busy_timeout_s: float = 30.0) -> None:
        """Raises: EnvironmentProblem (`store-newer`, `home-not-writable`, `disk-full`), Retryable (`catalog-busy`)."""
        self.path = home.series(run_id)
        self._connection = create(home, run_id, busy_timeout_s=busy_timeout_s)
        self._identity = identity(self.path)
        self._version = -1
        self._forget()

    def _forget(self) -> None:
        """Know nothing of what is stored; ids are looked up again."""
        self._files: dict[str, int] = {}
        self._series: dict[SeriesKey, int] = {}
        self._groups: dict[tuple[int, int, int], int] = {}
        self._sets: dict[tuple[int, tuple[SeriesKey, ...]], int] = {}
        self._members: dict[int, Ints] = {}
        self._tails: dict[int, list[tuple[int, int]]] = {}  # id and number of rows, by group, in order

    def is_current(self) -> bool:
        """Tell whether the file is still the one that was opened (somebody may have deleted the index)."""
        return identity(self.path) == self._identity

    def load_files(self) -> dict[str, FileState]:
        """Return how far each record file is in the store. Raises as `commit` does."""
        with explained(self.path):
            rows = self._connection.execute("SELECT name, offset, size, mtime_ns, cut, facts FROM files").fetchall()
        return {name: FileState(*rest) for name, *rest in rows}

    def commit(self, expected: Mapping[str, int], changes: list[FileChange]) -> None:
        """Add what the changes say, if all files are stored up to the `expected` offsets.

        Raises:
            Overtaken: they are not; load again.
            EnvironmentProblem: `series-damaged`, `home-not-writable`, `disk-full`.
            Retryable: `catalog-busy`.
        """
        try:
            with explained(self.path), transaction(self._connection, writes=True):
                self._check(expected)
                for change in changes:
                    self._apply(change)
        except BaseException:
            # Ids that were given in what is rolled back are given again to others.
            self._forget()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # ---- one commit

    def _check(self, expected: Mapping[str, int]) -> None:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            # Another connection has written since: what it took away or joined is not to be built on.
            self._forget()
            self._version = version
        if dict(self._connection.execute("SELECT name, offset FROM files")) != expected:
            raise Overtaken(self.path.name)

    def _apply(self, change: FileChange) -> None:
        if change.restarts:
            self._remove_rows(change.name)
        state = change.state
        self._connection.execute(
            "INSERT INTO files (name, offset, size, mtime_ns, cut, facts) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET offset = excluded.offset, size = excluded.size,"
            " mtime_ns = excluded.mtime_ns, cut = excluded.cut, facts = excluded.facts",
            (change.name, state.offset, state.size, state.mtime_ns, state.cut, state.facts),
        )
        for rows in change.groups:
            if rows.steps:
                self._add_rows(self._group_id(change.name, rows), rows)

    def _remove_rows(self, file: str) -> None:
        groups = "SELECT g.id FROM groups g JOIN files f ON f.id = g.file_id WHERE f.name = ?"
        chunks = f"SELECT id FROM chunks WHERE group_id IN ({groups})"
        for (chunk,) in self._connection.execute(chunks, (file,)).fetchall():
            low = chunk * MAX_COLUMNS
            self._connection.execute("DELETE FROM columns WHERE id >= ? AND id < ?", (low, low + MAX_COLUMNS))
        for table in ("pieces", "chunks", "tails", "key_sets", "members"):
            self._connection.execute(f"DELETE FROM {table} WHERE group_id IN ({groups})", (file,))
        self._connection.execute(f"DELETE FROM groups WHERE id IN ({groups})", (file,))
        self._forget()

    # ---- ids

    def _group_id(self, file: str, rows: NewRows) -> int:
        file_id = self._files.get(file)
        if file_id is None:
            file_id = self._files[file] = self._id("SELECT id FROM files WHERE name = ?", "", (file,))
        key = (file_id, rows.attempt, int(rows.source))
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._id(
                "SELECT id FROM groups WHERE file_id = ? AND attempt = ? AND source = ?",
                "INSERT INTO groups (file_id, attempt, source) VALUES (?, ?, ?)",
                key,
            )
        return found

    def _set_id(self, group: int, keys: tuple[SeriesKey, ...]) -> int:
        found = self._sets.get((group, keys))
        if found is not None:
            return found
        series = np.array([self._series_id(each) for each in keys], "<i4")
        found = self._id(
            "SELECT id FROM key_sets WHERE group_id = ? AND members = ?",
            "INSERT INTO key_sets (group_id, members) VALUES (?, ?)",
            (group, series.tobytes()),
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO members (series_id, group_id) VALUES (?, ?)",
            [(each, group) for each in series.tolist()],
        )
        self._sets[group, keys] = found
        return found

    def _series_id(self, key: SeriesKey) -> int:
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = self._id(
                "SELECT id FROM series WHERE kind = ? AND name = ? AND rank = ?",
                "INSERT INTO series (kind, name, rank) VALUES (?, ?, ?)",
                key,
            )
        return found

    def _id(self, query: str, insert: str, key: tuple[object, ...]) -> int:
        row = self._connection.execute(query, key).fetchone()
        return int(row[0]) if row is not None else int(self._connection.execute(insert, key).lastrowid or 0)

    def _load_members(self, group: int) -> dict[int, Ints]:
        """Return the series of each key set of the group."""
        query = "SELECT id, members FROM key_sets WHERE group_id = ?"
        return {each: np.frombuffer(members, "<i4").astype(np.int64) for each, members in
                self._connection.execute(query, (group,))}  # fmt: skip

    # ---- rows

    def _add_rows(self, group: int, new: NewRows) -> None:
        set_ids = [self._set_id(group, keys) for keys in new.key_sets]
        content, num = pack_rows(new, set_ids), len(new.steps)
        tails = self._tails.get(group)
        if tails is None:
            query = "SELECT id, num_rows FROM tails WHERE group_id = ? ORDER BY id"
            tails = self._tails[group] = self._connection.execute(query, (group,)).fetchall()
        if sum(rows for _, rows in tails) + num < CHUNK_ROWS:
            self._add_tail(group, num, content)
            self._join_tails(group)
            return
        members = self._load_members(group)
        num, content = self._take_tails(group, tails, num, content)
        rows = unpack_rows(num, content, members)
        begin = 0
        while num - begin >= CHUNK_ROWS:
            self._add_chunk(group, rows.take(slice(begin, begin + CHUNK_ROWS)), members)
            begin += CHUNK_ROWS
        if begin < num:
            self._add_tail(group, num - begin, slice_rows(rows, begin, members))

    def _add_tail(self, group: int, num: int, content: bytes) -> None:
        query = "INSERT INTO tails (group_id, num_rows, content) VALUES (?, ?, ?)"
        added = self._connection.execute(query, (group, num, content)).lastrowid or 0
        self._tails[group].append((added, num))

    def _join_tails(self, group: int) -> None:
        """Join the last tails while there are eight of one size, a size being a power of eight rows."""
        tails = self._tails[group]
        while True:
            size = _size_class(tails[-1][1])
            alike = 0
            while alike < len(tails) and _size_class(tails[-1 - alike][1]) <= size:
                alike += 1
            if alike < _TAIL_FAN_IN:
                return
            joined, self._tails[group] = tails[-alike:], tails[:-alike]
            num, content = self._take_tails(group, joined, 0, b"")
            self._add_tail(group, num, content)
            tails = self._tails[group]

    def _take_tails(self, group: int, tails: list[tuple[int, int]], num: int, content: bytes) -> tuple[int, bytes]:
        """Take tails out of the store; return how many rows they and the given ones are, and their bytes."""
        if not tails:
            return num, content
        ids = (group, tails[0][0], tails[-1][0])
        query = "SELECT num_rows, content FROM tails WHERE group_id = ? AND id BETWEEN ? AND ? ORDER BY id"
        parts = self._connection.execute(query, ids).fetchall()
        self._connection.execute("DELETE FROM tails WHERE group_id = ? AND id BETWEEN ? AND ?", ids)
        taken = {each for each, _ in tails}
        self._tails[group] = [each for each in self._tails[group] if each[0] not in taken]
        if num:
            parts.append((num, content))
        return sum(rows for rows, _ in parts), join_rows(parts)

    def _add_chunk(self, group: int, rows: Rows, members: Mapping[int, Ints]) -> None:
        rows = rows.sort()
        uniform = rows.uniform_set()
        sets = b"" if uniform is not None else rows.sets.astype("<i4").tobytes()
        query = "INSERT INTO chunks (group_id, num_rows, axis, sets) VALUES (?, ?, ?, ?)"
        axis = encode_axis(rows.steps, rows.times_ns)
        chunk = self._connection.execute(query, (group, len(rows), axis, sets)).lastrowid or 0
        place = 0
        for series, index, values in rows.columns(members):
            steps, times_ns = rows.steps[index], rows.times_ns[index]
            fine, coarse = (
                summarize_blocks(steps, times_ns, values, np.arange(0, len(index), size))
                for size in (FINE_POINTS, COARSE_POINTS)
            )
            for each, values_of, fine_of, coarse_of in zip(series.tolist(), values, fine, coarse, strict=True):
                self._connection.execute(
                    "INSERT INTO columns (id, fine, content) VALUES (?, ?, ?)",
                    (chunk * MAX_COLUMNS + place, fine_of.tobytes(), encode_floats(values_of)),
                )
                self._connection.execute(
                    "INSERT INTO pieces (series_id, chunk_id, group_id, place, coarse) VALUES (?, ?, ?, ?, ?)",
                    (each, chunk, group, place, coarse_of.tobytes()),
                )
                place += 1


def _size_class(num_rows: int) -> int:
    return (num_rows.bit_length() - 1) // 3
