"""What one rank's trace tells, as columns: the vocabulary between reading a file and joining ranks.

Times are seconds from `origin_ns`, which counts from the epoch of the rank's own clock: a float cannot hold the
nanoseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import NONE, Activity, Floats, Ints, Signal

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """What devices did, sorted by start; `(num_operations,)` each."""

    start_s: Floats
    end_s: Floats
    launch_s: Floats  # when the host issued it; NaN: not known
    activity: Ints
    name: Ints  # index into the trace's names
    device: Ints
    num_bytes: Floats  # NaN: not known

    def __len__(self) -> int:
        return len(self.start_s)

    def chosen(self, *activities: Activity) -> Bools:
        """Return which operations do one of these."""
        return np.isin(self.activity, activities)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpans:
    """What the host did and is of use, sorted by start; `(num_spans,)` each."""

    start_s: Floats
    end_s: Floats
    activity: Ints
    name: Ints
    num_bytes: Floats

    def __len__(self) -> int:
        return len(self.start_s)

    def chosen(self, *activities: Activity) -> Bools:
        """Return which spans do one of these."""
        return np.isin(self.activity, activities)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanges:
    """What a rank exchanged with others, on devices or (without any) on its host, in order of issue."""

    operation: Ints  # index into the operations, or into the host's spans
    kind: tuple[str, ...]  # all_reduce, ...; "" where it is not known
    group: tuple[str, ...]  # the process group; "" where it is not known
    issued_s: Floats
    start_s: Floats
    end_s: Floats
    num_bytes: Floats

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessGroup:
    """A process group as a trace names it."""

    size: int = 0  # 0: not known
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """One rank's trace."""

    path: Path
    rank: int = NONE  # NONE: neither the trace nor the file's name says
    is_rank_declared: bool = False  # whether the trace itself says
    world: int = 0  # 0: the trace does not say
    host: str = ""
    origin_ns: int = 0
    operations: Operations
    host_spans: HostSpans
    exchanges: Exchanges
    on_host: bool  # whether the exchanges are of the host
    groups: dict[str, ProcessGroup]
    steps: Ints  # numbers, sorted
    begin_s: Floats
    end_s: Floats
    names: tuple[str, ...]
    num_workers: int = NONE
    unknown: dict[Signal, str]
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_cut: bool = False  # whether the file ended too early
