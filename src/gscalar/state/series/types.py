"""What the series store gives to its readers, and what it takes from the indexer."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SeriesKey(NamedTuple):
    """Which series: `kind` is metric, account or hardware; rank -1 is the host."""

    kind: str
    name: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesInfo:
    """One series without what is superseded. First and last are in the order of steps, then of time.

    `least` and `greatest` are over finite values and infinities, NaN where there is none; their steps are the first
    at which they were reached, `first_step` where they are NaN.
    """

    kind: str
    name: str
    rank: int
    count: int
    num_nan: int
    num_posinf: int
    num_neginf: int
    first_step: int
    last_step: int
    first_time_ns: int
    last_time_ns: int
    last: float
    least: float
    greatest: float
    least_step: int
    greatest_step: int


class SeriesPoints(NamedTuple):
    """Points in order, one array a column, all of one length."""

    steps: Ints
    times_ns: Ints
    values: Floats  # NaN, infinities and -0.0 bit for bit as they were logged
    attempts: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Chart:
    """A series in columns, each drawn by four of its points: first, least, greatest, last.

    One array a field, one element a column; a column without a point is left out. `begin` and `end` are the positions
    of its first and last point on the axis (steps, or nanoseconds), so columns never overlap. All points of a
    position are in one column. `first` and `last` may be NaN, which counts as a point; `least` and `greatest` are NaN,
    and their positions `begin`, only where the column has nothing else.
    """

    exact: bool  # every point is its own column
    axis: str  # step | time
    begin: Ints
    end: Ints
    first: Floats
    last: Floats
    least: Floats
    greatest: Floats
    least_at: Ints
    greatest_at: Ints
    count: Ints
    num_nan: Ints
    num_posinf: Ints
    num_neginf: Ints


class Source(IntEnum):
    """What the rows of a group are made of. Of equal step and time, what was logged comes before what a step says."""

    LOG = 1
    STEP = 2
    HARDWARE = 3


@dataclass(slots=True)
class NewRows:
    """Rows of one group, in the order of the record: each has the values of one key set at one step and time."""

    attempt: int
    source: Source
    key_sets: list[tuple[SeriesKey, ...]] = field(default_factory=list)
    steps: array[int] = field(default_factory=lambda: array("q"))
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    sets: array[int] = field(default_factory=lambda: array("i"))  # which of `key_sets` a row has
    values: list[bytes] = field(default_factory=list)  # little-endian float64, one for each key of the row's set


@dataclass(slots=True)
class FileState:
    """How far a record file is in the store. Its points after step `cut` are superseded."""

    offset: int
    size: int
    mtime_ns: int
    cut: int
    facts: bytes


@dataclass(slots=True)
class FileChange:
    """What one commit adds of a record file; `restarts` takes away what was there of it before."""

    name: str
    state: FileState
    restarts: bool
    groups: list[NewRows]
