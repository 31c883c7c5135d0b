"""Where the time of a training went, step by step and rank by rank, whatever wrote it down.

A `StepTimeline` is what every source is turned into: our own records, profiler traces, tables of operations. It has
a dense table of ranks by steps, the collectives of the steps on all ranks, the spans that a timeline is drawn from,
and what was seen of each device. A source says what it covers: what it cannot know is NaN and is named with the
reason in `unknown`, so that it is never taken for zero.

Times are seconds. Those of one rank count from an origin that all ranks share where their clocks could be aligned;
`Rank.clock_error_s` says how far that may be wrong, NaN that nobody knows. They may be negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.model.accounts import ACCOUNTS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ACCOUNT_NAMES: Final = tuple(ACCOUNTS)
NONE: Final = -1  # in a column of whole numbers: not known, or does not apply


class Signal(StrEnum):
    """What a source may or may not know; the words are those that `unknown` of a diagnosis uses."""

    STEPS = "steps"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    ARRIVALS = "arrivals of all ranks"  # tells waiting from transfer
    DATA_WAIT = "data wait"
    QUEUE = "loader queue"
    LAUNCHES = "launches"
    WORK = "work per rank"
    GC = "garbage collection"
    CHECKPOINTS = "checkpoints"
    MEMORY_BANDWIDTH = "memory bandwidth"
    CLOCKS = "clocks"
    DEVICE = "device activity"


class Lane(IntEnum):
    """Where a span lies when a rank is drawn."""

    HOST = 0
    COMPUTE = 1
    COMMUNICATION = 2
    COPY = 3


class Activity(IntEnum):
    """What a span or an operation does."""

    OTHER = 0
    COMPUTE = 1
    FORWARD = 2
    BACKWARD = 3
    COMMUNICATION = 4  # a collective of a kind that is not told apart below
    SEND_FORWARD = 5
    RECEIVE_FORWARD = 6
    SEND_BACKWARD = 7
    RECEIVE_BACKWARD = 8
    GATHER_PARAMETERS = 9
    SCATTER_GRADIENTS = 10
    REDUCE_GRADIENTS = 11
    REDUCE_EMBEDDING = 12
    REDUCE_LAYERNORM = 13
    CLIP = 14
    OPTIMIZER = 15
    DATA_WAIT = 16
    H2D = 17
    COPY = 18
    SET = 19
    CHECKPOINT = 20
    EVALUATION = 21
    GC = 22
    HOST = 23
    LAUNCH = 24


COMMUNICATES: Final = frozenset(range(Activity.COMMUNICATION, Activity.CLIP + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One process of the training, and how its clock stands to the first one's."""

    rank: int
    host: str = ""
    data_rank: int = NONE  # its place on the data-parallel axis
    stage: int = NONE  # its place on the pipeline's axis
    clock_offset_s: float = 0.0  # what was added to its times
    clock_error_s: float = float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """Timed intervals, as columns of equal length, sorted by rank index and start."""

    rank: Ints  # index into `StepTimeline.ranks`
    step: Ints  # index into `StepTimeline.steps`, or NONE
    lane: Ints
    activity: Ints
    name: Ints  # index into `StepTimeline.names`
    start_s: Floats
    end_s: Floats
    num_bytes: Floats  # NaN: not known
    group: Ints  # of a collective: the process group
    sequence: Ints  # of a collective: its number in the group, equal on all ranks
    micro: Ints  # micro-batch
    chunk: Ints  # model chunk over the whole pipeline, where stages hold several
    device: Ints

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def duration_s(self) -> Floats:
        """Seconds, `(num_spans,)`."""
        return self.end_s - self.start_s

    @classmethod
    def of(cls, num_spans: int, **columns: npt.ArrayLike) -> Spans:
        """Return spans of the given columns; those that are left out are not known. Sorted by rank and start."""
        filled: dict[str, npt.NDArray[np.generic]] = {
            name: np.asarray(columns[name], dtype)
            if name in columns
            else np.full(num_spans, np.nan if dtype is np.float64 else NONE, dtype)
            for name, dtype in _SPAN_COLUMNS.items()
        }
        if "rank" not in columns:
            filled["rank"] = np.zeros(num_spans, np.int64)
        order = np.lexsort((filled["start_s"], filled["rank"]))
        return cls(**{name: column[order] for name, column in filled.items()})  # type: ignore[arg-type]  # by the table below


_SPAN_COLUMNS: Final[dict[str, type]] = {
    name: np.float64 if name in ("start_s", "end_s", "num_bytes") else np.int64 for name in Spans.__dataclass_fields__
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives:
    """The collectives that every step has, on all ranks: `(num_ranks, num_steps, num_collectives)`, in order of issue.

    It ends at one moment everywhere. What it took after the last rank had come is transfer, the rest is waiting for
    that rank.
    """

    kind: tuple[str, ...]  # all_reduce, all_gather, ... a collective
    group: Ints  # (num_collectives,)
    num_bytes: Floats  # (num_collectives,), of one rank's part; NaN: not known
    ready_s: Floats  # when the rank had its part
    start_s: Floats  # when the transport took it up
    end_s: Floats

    @property
    def transfer_s(self) -> Floats:
        """Seconds from the last rank's start, `(num_steps, num_collectives)`.

        The shortest of all ranks, which needs no common clock (TraceLens). NaN where no rank has it.
        """
        took: Floats = np.nanmin(self.end_s - self.start_s, axis=0, initial=np.inf)
        return np.where(np.isinf(took), np.nan, np.maximum(took, 0.0))

    @property
    def wait_s(self) -> Floats:
        """Seconds that each rank waited for the last one, of the shape of `start_s`."""
        waited: Floats = np.maximum(self.end_s - self.start_s - self.transfer_s, 0.0)
        return waited


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """What one device did from its first operation to its last (HTA's temporal split), in seconds.

    Idle is the span without the union of all operations. A gap is `launch` where the host issued the next operation
    after the one before had ended, `queued` where it was issued before and began within 30 ns, else `other`.
    """

    rank: int  # index into `StepTimeline.ranks`
    device: int
    span_s: float
    busy_s: float
    compute_s: float  # union of all kernels that do not communicate
    communication_s: float  # union of all kernels that communicate
    copy_s: float
    exposed_s: float  # communication while nothing else runs, no copy either
    overlap_s: float  # communication while something computes
    idle_launch_s: float  # NaN where launches are not known
    idle_queued_s: float
    idle_other_s: float
    num_operations: int
    median_operation_s: float
    overlap_with_copies_s: float = float("nan")  # as `overlap_s`, where copies count as computing

    @property
    def idle_s(self) -> float:
        """Seconds in which the device did nothing."""
        return self.span_s - self.busy_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """What is known of the loader, `(num_ranks, num_steps)` each; NaN where it is not."""

    wait_s: Floats  # the training's wait for a batch
    work_s: Floats  # what making one batch takes one loader
    exposed_wait_s: Floats  # the wait without what the device did meanwhile
    copy_s: Floats  # the copy of the batch to the device
    queue_empty: Floats  # share of the waits that found nothing ready
    num_workers: int = NONE  # 0: the training's own process loads
    batch_bytes: float = float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimeline:
    """One training's time. Ranks and steps are sorted; a step that some rank lacks has NaN there."""

    source: str  # record | kineto | nsight | operations | xplane
    name: str  # the run's id, or the file's name
    ranks: tuple[Rank, ...]
    steps: Ints  # numbers of the steps, (num_steps,); empty where the source has none
    begin_s: Floats  # (num_ranks, num_steps)
    end_s: Floats  # (num_ranks, num_steps)
    accounts: Floats  # (num_ranks, num_steps, len(ACCOUNT_NAMES)); they sum to the step where all are known
    spans: Spans
    names: tuple[str, ...]
    world: int = 0  # of the training; more than `ranks` where some are missing
    collectives: Collectives | None = None
    devices: tuple[DeviceUse, ...] = ()
    loading: Loading | None = None
    work: Floats | None = None  # (num_ranks, num_steps), in `work_unit`
    work_unit: str = ""  # tokens, samples, ...
    counters: Mapping[str, Floats] = field(default_factory=dict)  # mean of each rank, (num_ranks,), NaN: not known
    unknown: Mapping[Signal, str] = field(default_factory=dict)  # with the reason, for people
    unmatched: tuple[str, ...] = ()  # names that may be communication, and whose kind is not known
    notes: tuple[str, ...] = ()  # what was left out or mended, for people
    is_cut: bool = False  # whether the source ended too early: nobody knows what else was in it

    @property
    def num_ranks(self) -> int:
        """Ranks that are known."""
        return len(self.ranks)

    @property
    def num_steps(self) -> int:
        """Steps that are known; 0 where the source has none, only a window of time."""
        return len(self.steps)

    @property
    def step_s(self) -> Floats:
        """Duration of each rank's steps, `(num_ranks, num_steps)`."""
        return self.end_s - self.begin_s

    @property
    def is_pipeline(self) -> bool:
        """Whether its ranks lie on stages."""
        return any(each.stage > 0 for each in self.ranks)

    def account(self, name: str) -> Floats:
        """Seconds of one account, `(num_ranks, num_steps)`."""
        column: Floats = self.accounts[:, :, ACCOUNT_NAMES.index(name)]
        return column

    @property
    def clock_error_s(self) -> float:
        """The largest error of a rank's clock against another's; NaN where it is not known for all, 0 of one rank."""
        if self.num_ranks < 2:
            return 0.0
        return float(np.max([each.clock_error_s for each in self.ranks]))  # NaN wins


def no_steps(num_ranks: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return the fields of a timeline whose source has no steps."""
    empty = np.empty((num_ranks, 0))
    return {
        "steps": np.empty(0, np.int64),
        "begin_s": empty,
        "end_s": empty,
        "accounts": np.empty((num_ranks, 0, len(ACCOUNT_NAMES))),
    }
