"""What goes into the catalog and comes out of it: plain values, one class a table.

`RunSummary` is all that the catalog holds about one run; it is computed from the run's records as a
whole (`gscalar.control.summary`) and replaced as a whole. `FileRow` is how far one record file is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec


class MetricSummary(msgspec.Struct):
    """Last, least and greatest of the values of one name; NaN counts, and is never least or greatest."""

    count: int = 0
    num_nan: int = 0
    last_step: int = 0
    last: float = math.nan
    least: float = math.inf
    greatest: float = -math.inf

    @property
    def min(self) -> float:
        """The least value; NaN where every value is NaN."""
        return self.least if self.count > self.num_nan else math.nan

    @property
    def max(self) -> float:
        """The greatest value; NaN where every value is NaN."""
        return self.greatest if self.count > self.num_nan else math.nan

    def then(self, later: MetricSummary) -> MetricSummary:
        """Return the summary of these values followed by later ones."""
        newest = later if later.count else self
        return MetricSummary(
            count=self.count + later.count,
            num_nan=self.num_nan + later.num_nan,
            last_step=newest.last_step,
            last=newest.last,
            least=min(self.least, later.least),
            greatest=max(self.greatest, later.greatest),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRow:
    """One gang launch. `failure` has the fields of a Failure event but its time."""

    attempt: int
    started_ns: int | None
    ended_ns: int | None
    outcome: str | None
    failure: dict[str, Any] | None
    world: int
    from_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamRow:
    """One value of the spec, by its dotted key. `number` is set where the value is one."""

    key: str
    value: str
    number: float | None
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRow:
    """One checkpoint that is there. `path` is relative to the run's folder."""

    path: str
    step: int
    attempt: int
    time_ns: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRow:
    """One way in which a worker ended badly."""

    attempt: int
    rank: int
    time_ns: int
    step: int
    failure_class: str
    kind: str
    message: str
    traceback: str
    secondary: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteRow:
    """One line for people; the same line of several writers is one row with their `count`."""

    attempt: int
    rank: int
    time_ns: int
    level: str
    code: str
    text: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """All that the catalog holds about a run, but for its record files.

    `owner` is the process whose end ends the run: `{host, pid, pid_start}`. `digests` may hold
    `weights`, `data` and `spec`; `nonfinite` and `damage` are empty where there is none. `measured` is what steps,
    processes and hardware took, as `gscalar.control.indexing` lays it down.
    """

    id: str
    project: str
    name: str
    status: str
    created_ns: int
    started_ns: int | None = None
    ended_ns: int | None = None
    last_seen_ns: int | None = None
    steps: int = 0
    total_steps: int = 0
    tokens: float = 0.0
    samples: float = 0.0
    world: int = 0
    seed: int | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    nonfinite: dict[str, Any] = field(default_factory=dict)
    num_dropped: int = 0
    damage: dict[str, Any] = field(default_factory=dict)
    owner: dict[str, Any] | None = None
    deleted_ns: int | None = None
    attempts: tuple[AttemptRow, ...] = ()
    params: tuple[ParamRow, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, MetricSummary] = field(default_factory=dict)
    checkpoints: tuple[CheckpointRow, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    notes: tuple[NoteRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRow:
    """How far a record file is read and what it said; `facts` are the indexer's own bytes."""

    file: str
    attempt: int
    rank: int
    writer: str
    offset: int
    size: int
    mtime_ns: int
    facts: bytes
    num_events: int
    num_damaged: int
    damaged_bytes: int
    num_dropped: int
    num_seals: int
    closed: bool
    metrics: dict[str, MetricSummary] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """What tells whether a run needs another look, without reading its summary."""

    status: str
    owner: dict[str, Any] | None
    deleted: bool
    settled_mtime_ns: int | None
