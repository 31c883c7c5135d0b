"""Following a run from outside: the attempt that goes on, who its processes are, and what step each rank has done.

Everything is read from the record files of the run's folder, whoever launched it. A file is opened only when it has
grown, so that a look every few milliseconds costs next to nothing.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError
from gscalar.control.watch import GangWatch
from gscalar.model import events
from gscalar.state.home import RunFolder
from gscalar.state.records import Frame, RecordTail
from gscalar.testing.faults.process_table import Writer

_LIST_EVERY_S: Final = 0.1
_WORKER_FILE: Final = re.compile(r"a(\d{3,})-r(\d{5,})\.rec")
_SUPERVISOR_FILE: Final = re.compile(r"supervisor-a(\d{3,})\.rec")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """What is known of a run at one moment."""

    attempt: int = -1  # -1: none yet
    steps: tuple[int, ...] = ()  # by rank: the last one that is done
    workers: tuple[Writer | None, ...] = ()  # by rank
    supervisor: Writer | None = None
    supervised: bool = False
    ended: str = ""  # how the run ended, where its newest owner has said so

    @property
    def world(self) -> int:
        """Workers of the attempt."""
        return len(self.workers)


class RunWatch:
    """The tails of a run's records."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._listed_s = float("-inf")
        self._sizes: dict[tuple[str, str], int] = {}  # when last read, by reader and file
        self._supervisor: RecordTail | None = None
        self._head: RecordTail | None = None  # rank 0's record, where no supervisor tells of attempts
        self._gang: GangWatch | None = None
        self._attempt = -1
        self._pids: tuple[int, ...] = ()
        self._supervisor_header: events.Header | None = None
        self._ended = ""
        self._files: list[str] = []  # of the gang
        self._state = RunState()

    def look(self, now_s: float) -> RunState:
        """Return what is known now.

        Raises:
            UserError: `fault-impossible`, the run is on another host.
        """
        listed = now_s - self._listed_s >= _LIST_EVERY_S
        if listed:
            self._listed_s = now_s
            self._find_files()
        changed = False
        for tail in (self._supervisor, self._head):
            if tail is not None and self._has_grown(str(tail.path), "owner"):
                self._read(tail)
                changed = True
        if self._gang is not None and self._any_has_grown():
            self._gang.poll(now_s)
            changed = True
        if changed or listed:
            self._state = self._gather()
        return self._state

    def _find_files(self) -> None:
        names = [path.name for path in self._folder.records.glob("*.rec")]
        supervisors = [int(match[1]) for name in names if (match := _SUPERVISOR_FILE.fullmatch(name))]
        if supervisors:
            self._follow_supervisor(self._folder.supervisor_record(max(supervisors)))
            return
        attempts = [int(match[1]) for name in names if (match := _WORKER_FILE.fullmatch(name))]
        head = self._folder.worker_record(max(attempts, default=0), 0)
        if attempts and (self._head is None or self._head.path != head):
            self._head, self._ended = RecordTail(head), ""

    def _follow_supervisor(self, path: Path) -> None:
        if self._supervisor is None or self._supervisor.path != path:
            self._supervisor, self._head, self._supervisor_header, self._ended = RecordTail(path), None, None, ""

    def _read(self, tail: RecordTail) -> None:
        try:
            items = tail.poll()
        except OSError:
            return  # the next look goes on from here
        for event in (item.event for item in items if isinstance(item, Frame)):
            match event:
                case events.Header():
                    self._take_header(event)
                case events.AttemptStarted():
                    self._begin_attempt(event.attempt, event.world, event.pids)
                case events.RunEnded():
                    self._ended = event.status
                case _:
                    pass

    def _take_header(self, header: events.Header) -> None:
        if header.host != socket.gethostname():
            raise UserError(
                code="fault-impossible",
                what="The run is on another host, and faults are injected on its own.",
                value=header.host,
                next_step=f"Start the injector on {header.host}.",
            )
        self._ended = ""
        if header.writer == "supervisor":
            self._supervisor_header = header
        elif header.attempt != self._attempt:
            self._begin_attempt(header.attempt, header.world, ())

    def _begin_attempt(self, attempt: int, world: int, pids: tuple[int, ...]) -> None:
        self._pids = pids
        if attempt != self._attempt or self._gang is None:
            self._attempt, self._gang = attempt, GangWatch(self._folder, attempt, world)
            self._files = [str(self._folder.worker_record(attempt, rank)) for rank in range(world)]

    def _any_has_grown(self) -> bool:
        grown = [self._has_grown(file, "gang") for file in self._files]  # not lazily: each size is noted
        return any(grown)

    def _has_grown(self, file: str, reader: str) -> bool:
        try:
            size = os.stat(file).st_size  # noqa: PTH116 - some hundred times a second
        except OSError:
            return False
        grown = size != self._sizes.get((reader, file))
        self._sizes[reader, file] = size
        return grown

    def _gather(self) -> RunState:
        traces = self._gang.traces if self._gang is not None else []
        return RunState(
            attempt=self._attempt,
            steps=tuple(trace.step for trace in traces),
            workers=tuple(self._worker(trace.rank, trace.header) for trace in traces),
            supervisor=_writer(self._supervisor_header),
            supervised=self._supervisor is not None,
            ended=self._ended,
        )

    def _worker(self, rank: int, header: events.Header | None) -> Writer | None:
        if header is not None:
            return _writer(header)
        return Writer(pid=self._pids[rank]) if rank < len(self._pids) else None


def _writer(header: events.Header | None) -> Writer | None:
    return None if header is None else Writer(pid=header.pid, started_s=header.pid_start)
