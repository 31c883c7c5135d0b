"""What a record file holds: the events of one process, in the order they happened.

Every event is an array on disk (msgpack, tag first), so a frame stays small; a new field goes to
the end with a default, and a field is never removed or reused. Times are wall-clock nanoseconds
since 1970 (`time_ns`) of the writing host. `step` counts optimizer steps that are done: the first
update makes it 1, and what is logged before it has step 0.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

RECORD_VERSION: Final = 1


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all events; the tag on disk is given by each class."""


class Header(Event, frozen=True, tag="H"):
    """The first event of every record file: who writes it."""

    version: int
    run: str
    attempt: int
    rank: int  # -1 for the supervisor and for edits
    world: int
    writer: str  # worker | supervisor | edit
    host: str
    pid: int
    pid_start: float  # psutil's create_time, so that a reused pid is not taken for the writer
    time_ns: int
    gscalar: str  # version of the package


class Names(Event, frozen=True, tag="N"):
    """The metric names that later `Points` with this id carry, in order."""

    names_id: int
    names: tuple[str, ...]


class Points(Event, frozen=True, tag="P"):
    """The values of one `log` call: little-endian float64, one for each name."""

    step: int
    time_ns: int
    names_id: int
    values: bytes


class Step(Event, frozen=True, tag="S"):
    """One optimizer step that is done on this rank. `tokens` and `samples` are of all ranks.

    What is this rank's own part of them is NaN where nobody knows: in records of older versions, of a loop whose
    batches the run does not see, of a trainer that does not tell.
    """

    step: int
    time_ns: int
    duration_s: float
    samples: float
    tokens: float
    lr: float
    loss: float  # weighted mean over this rank's micro-steps
    epoch: int = 0
    total_steps: int = 0  # 0 where the length of the training is not known
    accounts: bytes = b""  # as `gscalar.model.accounts` packs them; they sum to `duration_s`
    shares: bytes = b""  # as `gscalar.model.shares` packs them: the samples of this rank's micro-batches
    own_samples: float = math.nan
    own_tokens: float = math.nan
    own_weight: float = math.nan  # what its micro-steps counted in the mean over the global batch


class Spans(Event, frozen=True, tag="SP"):
    """The timed intervals of one step on this rank, as `gscalar.model.spans` packs them.

    `time_ns` is the step's begin, from which they count.
    """

    step: int
    time_ns: int
    rows: tuple[int, ...]


class Collectives(Event, frozen=True, tag="SC"):
    """The collectives of one step on this rank, as `gscalar.model.spans` packs them, from the step's begin."""

    step: int
    time_ns: int
    rows: tuple[int, ...]


class SampleOrder(Event, frozen=True, tag="O"):
    """The global order that the positions of `Step.shares` count in.

    Position p of epoch e is sample `Permutation(size, seed, e).at(p)` of `gscalar.runtime.cursor` where it is
    shuffled, p itself where it is not; where `listed`, the user's own sampler decides.
    """

    time_ns: int
    data: int  # number of the data object, in the order of first use
    size: int
    seed: int
    shuffle: bool
    listed: bool
    global_batch: int  # samples of a full micro-batch of all ranks


class Hardware(Event, frozen=True, tag="HW"):
    """What a host (rank -1) or one worker's process used: float64 for the names of `names_id`.

    Names and units are those of `gscalar.model.hardware`; a counter that could not be read is left out.
    """

    time_ns: int
    rank: int
    names_id: int
    values: bytes


class Clock(Event, frozen=True, tag="CK"):
    """How this process's wall clock stands to rank 0's: rank 0's time = own time + offset + drift * later."""

    time_ns: int
    offset_s: float
    drift: float  # seconds a second
    bound_s: float  # the offset is wrong by at most this
    num_pings: int


class ClockJumped(Event, frozen=True, tag="CJ"):
    """The wall clock of this host was set: it moved by so much more than the monotonic clock."""

    time_ns: int
    by_s: float


class Beat(Event, frozen=True, tag="B"):
    """The process lives and works: `phase` is prepare, training, evaluation, checkpoint or compile."""

    time_ns: int
    phase: str


class WorkerStarted(Event, frozen=True, tag="W"):
    """A worker knows its job. `spec` and `origins` are those of a `ResolvedSpec`, as plain dicts.

    `declares_config` says that the script named keys of its own: origins do not, where the job sets every one.
    """

    time_ns: int
    project: str
    name: str
    spec: dict[str, Any]
    origins: dict[str, str]
    environment: dict[str, Any]
    declares_config: bool = False


class Adopted(Event, frozen=True, tag="A"):
    """`prepare` has seen model, optimizer and data: facts for people, such as parameter counts."""

    time_ns: int
    facts: dict[str, Any]


class AttemptStarted(Event, frozen=True, tag="AS"):
    """The supervisor launched a gang (or a script began alone)."""

    attempt: int
    time_ns: int
    world: int
    pids: tuple[int, ...] = ()


class Resumed(Event, frozen=True, tag="R"):
    """The attempt goes on from a checkpoint; later steps of earlier attempts are superseded."""

    time_ns: int
    step: int
    path: str


class CheckpointSaved(Event, frozen=True, tag="C"):
    """A checkpoint is durable and committed. `sha256` is the digest of its manifest."""

    time_ns: int
    step: int
    path: str  # relative to the run's folder
    num_bytes: int
    sha256: str
    stall_s: float  # how long training waited
    write_s: float


class CheckpointFailed(Event, frozen=True, tag="CF"):
    """A checkpoint could not be written; the one before stays the latest."""

    time_ns: int
    step: int
    reason: str


class CheckpointRemoved(Event, frozen=True, tag="CR"):
    """A checkpoint was pruned, or put aside because it is damaged (`reason` says which)."""

    time_ns: int
    step: int
    path: str
    reason: str


class Failure(Event, frozen=True, tag="F"):
    """An exception left the user's script, or a worker ended in another bad way."""

    time_ns: int
    rank: int
    step: int
    failure_class: str  # user_error | killed | out_of_memory | hung | lost
    kind: str  # exception type, or signal name
    message: str
    traceback: str = ""
    secondary: bool = False  # a consequence of another rank's failure (a broken collective)


class Nonfinite(Event, frozen=True, tag="NF"):
    """A loss or gradient was NaN or infinite. `name` is the first such parameter, where looked for."""

    time_ns: int
    step: int
    rank: int
    what: str  # loss | gradient
    name: str = ""


class StopRequested(Event, frozen=True, tag="SR"):
    """Somebody asked for a checkpoint and an end: SIGTERM, Ctrl-C, `gscalar cancel`."""

    time_ns: int
    reason: str  # preempted | interrupted | cancelled
    deadline_ns: int


class StopAcknowledged(Event, frozen=True, tag="SA"):
    """The worker has written its checkpoint (or had none to write) and exits resumable (75)."""

    time_ns: int
    step: int


class AttemptEnded(Event, frozen=True, tag="AE"):
    """An attempt is over. `outcome` is completed, failed, stopped or killed."""

    attempt: int
    time_ns: int
    outcome: str
    failure: dict[str, Any] | None = None  # Failure's fields but time_ns, where there is one


class RunEnded(Event, frozen=True, tag="RE"):
    """The run is over: completed, failed, cancelled or interrupted (resumable)."""

    time_ns: int
    status: str


class Finished(Event, frozen=True, tag="Z"):
    """The worker's session ended in order. Digests: SHA-256 of final parameters, of the data order."""

    time_ns: int
    step: int
    tokens: float
    samples: float
    digests: dict[str, str]


class Note(Event, frozen=True, tag="T"):
    """One line for people, shown in the summary: a warning, a fallback, what was dropped."""

    time_ns: int
    level: str  # info | warning
    code: str
    text: str


class Dropped(Event, frozen=True, tag="D"):
    """This many events could not be written before this place (disk full)."""

    time_ns: int
    count: int
    reason: str


class Edited(Event, frozen=True, tag="E"):
    """A person changed the run: `tags` set (None removes), `name` changed, or `deleted`."""

    time_ns: int
    tags: dict[str, str | None] = {}
    name: str | None = None
    deleted: bool = False


class Seal(Event, frozen=True, tag="X"):
    """The chain over all bytes before this frame: SHA-256(previous seal's digest || bytes from its frame on)."""

    time_ns: int
    sha256: bytes
    reason: str  # checkpoint | close


AnyEvent = (
    Header | Names | Points | Step | Spans | Collectives | SampleOrder | Hardware | Clock | ClockJumped | Beat
    | WorkerStarted | Adopted | AttemptStarted | Resumed | CheckpointSaved | CheckpointFailed | CheckpointRemoved
    | Failure | Nonfinite | StopRequested | StopAcknowledged | AttemptEnded | RunEnded | Finished | Note | Dropped
    | Edited | Seal
)  # fmt: skip
