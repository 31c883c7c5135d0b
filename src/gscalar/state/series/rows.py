"""Rows of a group: as they are committed, and as arrays.

A row has a step, a time, the id of its key set and one value for each key of that set. As bytes, rows are
steps (int64) | times (int64) | key set ids (int32) | values (float64, row by row), all little-endian, so that
adding a few rows is joining what the record's events hold, without a look at any value.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.state.series.types import Floats, Ints, NewRows

_AXIS_BYTES: Final = 8
_SET_BYTES: Final = 4
Members = Mapping[int, Ints]  # the series of each key set, by its id


@dataclass(slots=True)
class Rows:
    """Rows as arrays. `values` are flat, row by row; `starts` says where a row's values begin."""

    steps: Ints
    times_ns: Ints
    sets: npt.NDArray[np.int32]
    values: Floats
    starts: Ints

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, index: npt.NDArray[np.int64] | slice) -> Rows:
        """Return some of the rows; the values stay where they are."""
        return Rows(self.steps[index], self.times_ns[index], self.sets[index], self.values, self.starts[index])

    def sort(self) -> Rows:
        """Return the rows in the order of step, then time, then as they are."""
        rises = self.steps[1:] > self.steps[:-1]
        ties = (self.steps[1:] == self.steps[:-1]) & (self.times_ns[1:] >= self.times_ns[:-1])
        return self if (rises | ties).all() else self.take(np.lexsort((self.times_ns, self.steps)))

    def uniform_set(self) -> int | None:
        """Return the key set that all rows have; None where they differ."""
        return int(self.sets[0]) if len(self) and (self.sets == self.sets[0]).all() else None

    def columns(self, members: Members) -> list[tuple[Ints, Ints, Floats]]:
        """Return the rows by column: series that stand in the same rows, these rows, and values (series, rows)."""
        uniform = self.uniform_set()
        if uniform is not None:
            return [(members[uniform], np.arange(len(self)), self._gather(self.starts, len(members[uniform])))]
        present = [int(each) for each in np.unique(self.sets)]
        holders: dict[int, list[int]] = {}
        for each in present:
            for series in members[each].tolist():
                holders.setdefault(series, []).append(each)
        together: dict[tuple[int, ...], list[int]] = {}
        for series, sets in holders.items():
            together.setdefault(tuple(sets), []).append(series)
        return [self._join(np.array(series, np.int64), sets, members) for sets, series in together.items()]

    def column(self, series: int, members: Members) -> tuple[Ints, Floats]:
        """Return the rows that have a value of the series, and these values."""
        uniform = self.uniform_set()
        if uniform is not None:
            place = np.flatnonzero(members[uniform] == series)
            if not len(place):
                return np.empty(0, np.int64), np.empty(0, np.float64)
            return np.arange(len(self)), self.values[self.starts + place[0]]
        sets = tuple(int(each) for each in np.unique(self.sets) if (members[int(each)] == series).any())
        _, rows, values = self._join(np.array([series], np.int64), sets, members)
        return rows, values[0]

    def _join(self, series: Ints, sets: tuple[int, ...], members: Members) -> tuple[Ints, Ints, Floats]:
        rows = np.flatnonzero(np.isin(self.sets, sets))
        values = np.empty((len(series), len(rows)), np.float64)
        for each in sets:
            of_set = self.sets[rows] == each
            starts = self.starts[rows[of_set]]
            order = np.argsort(members[each], kind="stable")
            places = order[np.searchsorted(members[each], series, sorter=order)]
            values[:, of_set] = self.values[starts + places[:, None]]
        return series, rows, values

    def _gather(self, starts: Ints, num_columns: int) -> Floats:
        first = int(starts[0])
        dense = self.values[first : first + len(starts) * num_columns]
        if len(starts) == 1 or (np.diff(starts) == num_columns).all():
            return np.ascontiguousarray(dense.reshape(-1, num_columns).T)
        gathered: Floats = self.values[starts + np.arange(num_columns)[:, None]]
        return gathered


def pack_rows(new: NewRows, set_ids: list[int]) -> bytes:
    """Return new rows as bytes, with the ids that their key sets have in the store."""
    sets = array("i", [set_ids[each] for each in new.sets]) if len(set_ids) > 1 else array("i", set_ids) * len(new.sets)
    return b"".join([_little(new.steps), _little(new.times_ns), _little(sets), *new.values])


def join_rows(parts: list[tuple[int, bytes]]) -> bytes:
    """Return rows as one piece of bytes; a part is how many there are and their bytes."""
    fields: list[list[bytes]] = [[], [], [], []]
    for num, content in parts:
        borders = (0, num * _AXIS_BYTES, 2 * num * _AXIS_BYTES, num * (2 * _AXIS_BYTES + _SET_BYTES), len(content))
        for index, found in enumerate(fields):
            found.append(content[borders[index] : borders[index + 1]])
    return b"".join(part for found in fields for part in found)


def unpack_rows(num: int, content: bytes, members: Members) -> Rows:
    """Return rows as arrays."""
    steps = np.frombuffer(content, "<i8", num)
    times_ns = np.frombuffer(content, "<i8", num, num * _AXIS_BYTES)
    sets = np.frombuffer(content, "<i4", num, 2 * num * _AXIS_BYTES)
    values = np.frombuffer(content, "<f8", -1, num * (2 * _AXIS_BYTES + _SET_BYTES))
    ids = np.unique(sets) if num and (sets != sets[0]).any() else sets[:1]
    sizes = np.array([len(members[int(each)]) for each in ids], np.int64)
    lengths = sizes[np.searchsorted(ids, sets)] if num else np.empty(0, np.int64)
    return Rows(steps, times_ns, sets, values, np.cumsum(lengths) - lengths)


def slice_rows(rows: Rows, begin: int, members: Members) -> bytes:
    """Return the rows from `begin` on as bytes."""
    first = int(rows.starts[begin]) if begin < len(rows) else len(rows.values)
    fields: Iterable[npt.NDArray[np.generic]] = (
        rows.steps[begin:].astype("<i8"),
        rows.times_ns[begin:].astype("<i8"),
        rows.sets[begin:].astype("<i4"),
        rows.values[first:].astype("<f8"),
    )
    return b"".join(each.tobytes() for each in fields)


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()
