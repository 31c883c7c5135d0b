"""Following the records of an attempt's workers: what each rank has done, and when it last gave a sign.

Nothing here judges; `failures` and `heartbeats` do, on what this collects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gscalar.control.heartbeats import RankBeat
from gscalar.control.progress import AccountWindow, Progress, StepWindow
from gscalar.model.events import (
    AnyEvent,
    Beat,
    CheckpointFailed,
    CheckpointSaved,
    Clock,
    ClockJumped,
    Failure,
    Finished,
    Hardware,
    Header,
    Nonfinite,
    Note,
    Resumed,
    Step,
    StopAcknowledged,
    WorkerStarted,
)
from gscalar.state.home import RunFolder
from gscalar.state.records import Frame, RecordTail

Remarkable = CheckpointFailed | CheckpointSaved | Nonfinite | Note | Resumed
_REMARKABLE: Final = (CheckpointFailed, CheckpointSaved, Nonfinite, Note, Resumed)
# Written by threads that live on where the training hangs: no signs of life.
_BESIDE_THE_TRAINING: Final = (Clock, ClockJumped, Hardware)


@dataclass(slots=True)
class RankTrace:
    """What one rank's record has said so far. `arrived_s` is the supervisor's monotonic clock."""

    rank: int
    header: Header | None = None
    started: bool = False
    armed: bool = False
    finished: bool = False
    acknowledged: bool = False
    arrived_s: float = 0.0
    time_ns: int = 0
    step: int = 0
    num_steps: int = 0  # of this attempt
    phase: str = "starting"
    failures: list[Failure] = field(default_factory=list)

    def fold(self, event: AnyEvent, arrived_s: float) -> None:
        """Take the next event of the record."""
        if isinstance(event, _BESIDE_THE_TRAINING):
            return
        self.arrived_s = arrived_s
        self.time_ns = getattr(event, "time_ns", self.time_ns)
        match event:
            case Header():
                self.header = event
            case WorkerStarted():
                self.started = True
            case Resumed():
                self.step = event.step
            case Step():
                self.step = event.step
                self.num_steps += 1
                self.armed = True
                self.phase = "training"
            case Beat():
                self.armed = self.armed or self.started
                self.phase = event.phase
            case Failure():
                self.failures.append(event)
            case StopAcknowledged():
                self.acknowledged = True
            case Finished():
                self.finished = True
                self.phase = "finished"
            case _:
                pass

    @property
    def lost_nothing(self) -> bool:
        """Whether an end now loses no work: a stop was acknowledged, or the script has not completed a step yet."""
        return self.acknowledged or (self.started and self.num_steps == 0)

    def beat(self) -> RankBeat:
        """Return the rank's last sign of life."""
        return RankBeat(
            rank=self.rank,
            started=self.started,
            armed=self.armed,
            finished=self.finished or self.acknowledged or bool(self.failures),
            arrived_s=self.arrived_s,
            time_ns=self.time_ns,
            step=self.step,
        )


class GangWatch:
    """The tails of one attempt's records."""

    def __init__(self, folder: RunFolder, attempt: int, workers: int) -> None:
        self.traces = [RankTrace(rank) for rank in range(workers)]
        self._window = StepWindow()
        self._accounts = [AccountWindow() for _ in range(workers)]
        self._tails = [RecordTail(folder.worker_record(attempt, rank)) for rank in range(workers)]

    def poll(self, now_s: float) -> list[tuple[int, Remarkable]]:
        """Read what is new; return what people are told about, with its rank."""
        told: list[tuple[int, Remarkable]] = []
        for trace, tail in zip(self.traces, self._tails, strict=True):
            try:
                items = tail.poll()
            except OSError:
                continue  # a shared file system that stutters; the next poll goes on from here
            for item in items:
                if not isinstance(item, Frame):
                    continue  # damage is reported by whoever indexes the record
                trace.fold(item.event, now_s)
                if isinstance(item.event, Step):
                    self._accounts[trace.rank].add(item.event)
                    if trace.rank == 0:
                        self._window.add(item.event)
                if isinstance(item.event, _REMARKABLE):
                    told.append((trace.rank, item.event))
        return told

    def progress(self, attempt: int) -> Progress:
        """Return the figures of now, for people."""
        return self._window.progress(attempt, len(self.traces), self.traces[0].phase, self._accounts)

    def beats(self, ranks: Sequence[int]) -> list[RankBeat]:
        """Return the last signs of life of these ranks."""
        return [self.traces[rank].beat() for rank in ranks]

    def script_pids(self) -> dict[int, int]:
        """Return the process that called `init`, by rank: below the worker where a shell starts Python."""
        return {trace.rank: trace.header.pid for trace in self.traces if trace.header is not None}

    @property
    def last_step(self) -> int:
        """The last step that any rank completed."""
        return max(trace.step for trace in self.traces)

    @property
    def started(self) -> bool:
        """Whether any rank's script called `init`."""
        return any(trace.started for trace in self.traces)
