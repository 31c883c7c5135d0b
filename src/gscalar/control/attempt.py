"""One attempt: a gang from its launch to its last exit.

The loop reads as numbered steps: exits, records, stop requests, hangs, display. It ends when all
workers have ended, when one has failed, when one is hung, or when a stop ran out of time; then what
is left of the gang is ended, and what happened is classified.
"""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from msgspec import structs

from gscalar.base.canonical import canonical_json
from gscalar.base.errors import Retryable
from gscalar.control.display import Display, Notice
from gscalar.control.engine import Engine, Gang, GangRequest, WorkerExit
from gscalar.control.failures import RankEvidence, classify
from gscalar.control.heartbeats import Hang, find_hang, overdue
from gscalar.control.output import OutputHold, OutputTail, read_log_tail
from gscalar.control.requests import StopDesk
from gscalar.control.watch import GangWatch, Remarkable
from gscalar.model import events
from gscalar.model.roles import num_processes
from gscalar.model.sink import Sink
from gscalar.model.spec import JobSpec
from gscalar.model.status import Exit, FailureClass
from gscalar.observation.sampling import sample_hardware
from gscalar.state.files import write_atomic
from gscalar.state.home import Home, RunFolder

TICK_S: Final = 0.1
# How long the others may take to fail by themselves, once one rank has: their records then say how.
_GRACE_AFTER_FAILURE_S: Final = 0.5
# The same where only consequences are known and the root is still to come.
_GRACE_FOR_ROOT_S: Final = 2.0
# While stopping, one rank that has failed may leave the others waiting for it.
_GRACE_WHILE_STOPPING_S: Final = 5.0
# A collective that timed out may be seen just before the supervisor's own clock runs out.
_NEARLY: Final = 0.8
# Once the weights are NaN, every later step of every rank is not finite.
_MOST_NONFINITE_TOLD: Final = 5
_IN_ORDER: Final = (Exit.DONE, Exit.RESUMABLE)

Outcome = Literal["completed", "failed", "stopped", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run as its supervisor knows it."""

    run: str
    home: Home
    folder: RunFolder
    spec: JobSpec
    command: tuple[str, ...]  # its program is absolute
    working_folder: Path
    job_file: Path
    lock_fd: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptResult:
    """How an attempt ended. `acknowledged`: a stop lost no work."""

    outcome: Outcome
    started: bool
    last_step: int
    failure: events.Failure | None = None
    acknowledged: bool = False


class Attempt:
    """One gang and all that watches it. Made and run by the supervisor."""

    def __init__(self, job: Job, index: int, *, engine: Engine, sink: Sink, display: Display, desk: StopDesk) -> None:
        self._job = job
        self._index = index
        self._engine = engine
        self._sink = sink
        self._display = display
        self._desk = desk
        self._workers = num_processes(job.spec)
        self._watch = GangWatch(job.folder, index, self._workers)
        self._output = OutputTail(job.folder.worker_log(index, 0))
        self._hold = OutputHold()
        self._exits: dict[int, WorkerExit] = {}
        self._own_exits: set[int] = set()  # ranks that ended before the supervisor ended the rest
        self._ending = False
        self._hang: Hang | None = None
        self._announced = False
        self._failure: events.Failure | None = None
        self._failed_at_s: float | None = None
        self._num_nonfinite = 0

    def run(self) -> AttemptResult:
        """Launch, watch until it is over, end what is left, and say what happened."""
        try:
            gang = self._engine.launch(self._request())
        except Retryable as error:
            return self._not_launched(error)
        try:
            pids = gang.pids
            self._sink.emit(events.AttemptStarted(self._index, time.time_ns(), self._workers, pids))
            started = {rank: pid for rank, pid in enumerate(pids) if pid}
            stop_sampling = sample_hardware(self._sink, lambda: started)
            try:
                while not self._over():
                    self._turn(gang)
            finally:
                stop_sampling()
            self._end(gang)
        finally:
            gang.close()
        self._turn(gang, closed=True)
        return self._conclude()

    def _request(self) -> GangRequest:
        job, spec = self._job, self._job.spec
        environment = {
            **spec.env,
            "GSCALAR_HOME": str(job.home.path),
            "GSCALAR_RUN_ID": job.run,
            "GSCALAR_ATTEMPT": str(self._index),
            "GSCALAR_JOB": str(job.job_file),
        }
        return GangRequest(
            run=job.run,
            attempt=self._index,
            token=uuid.uuid4().hex,
            command=job.command,
            folder=job.working_folder,
            workers=self._workers,
            logs=tuple(job.folder.worker_log(self._index, rank) for rank in range(self._workers)),
            environment=environment,
            cpus_per_worker=spec.resources.cpus_per_worker,
            gpus_per_worker=spec.resources.gpus_per_worker,
            held_fd=job.lock_fd,
        )

    # Watching

    def _turn(self, gang: Gang, *, closed: bool = False) -> None:
        """Look at everything once; without anything new this takes `TICK_S`."""
        # 1. Exits, at once: this is where the loop waits.
        for worker_exit in gang.poll(0.0 if closed else TICK_S):
            self._exits[worker_exit.rank] = worker_exit
            if not self._ending:
                self._own_exits.add(worker_exit.rank)
        now_s = time.monotonic()
        # 2. Records, read before anything is judged: a supervisor that was itself stopped must not
        #    take its own absence for a worker's silence.
        for rank, event in self._watch.poll(now_s):
            self._tell(rank, event)
        # 3. Requests to stop.
        if not closed:
            self._heed(gang)
        # 4. Hangs.
        if not closed and self._failed_at_s is None and not self._desk.state.asked:
            self._hang = self._find_hang(gang, now_s, self._job.spec.hang_after_s)
        # 5. Failures, recorded as soon as the root is known.
        if not closed and self._failed_at_s is None and not self._desk.state.asked:
            self._note_failure(now_s)
        # 6. Display.
        failing = bool(self._watch.traces[0].failures)
        lines = self._hold.feed(self._output.poll(), now_s, failing=failing)
        if lines:
            self._display.output(lines)
        self._display.progress(self._watch.progress(self._index))

    def _over(self) -> bool:
        if len(self._exits) == self._workers or self._failed_at_s is not None:
            return True
        stop = self._desk.state
        if stop.kill:
            return True
        bad_s = [e.time_ns / 1e9 for e in self._exits.values() if e.code not in _IN_ORDER]
        return stop.asked and bool(bad_s) and time.time() - min(bad_s) >= _GRACE_WHILE_STOPPING_S

    def _heed(self, gang: Gang) -> None:
        """Pass a request to stop on to the workers, once. A worker that stops by itself asks for all."""
        stop = self._desk.look()
        if not stop.asked and any(e.code == Exit.RESUMABLE for e in self._exits.values()):
            stop = self._desk.request("preempted")
        if not stop.asked or stop.kill or self._announced:
            return
        self._announced = True
        remaining_s = max(0.0, stop.deadline_s - time.monotonic())
        deadline_ns = time.time_ns() + int(remaining_s * 1e9)
        self._sink.emit(events.StopRequested(time.time_ns(), stop.reason, deadline_ns))
        request = {"reason": stop.reason, "deadline_ns": deadline_ns}
        with contextlib.suppress(OSError):  # on a full disk the signal alone must do
            write_atomic(self._job.folder.control / "stop.json", canonical_json(request))
        gang.signal(signal.SIGTERM, self._watch.script_pids())

    def _find_hang(self, gang: Gang, now_s: float, hang_after_s: float) -> Hang | None:
        alive = [rank for rank in range(self._workers) if rank not in self._exits]
        beats = self._watch.beats(alive)
        if not overdue(beats, now_s, hang_after_s):
            return None
        return find_hang(beats, gang.inspect(), now_s, hang_after_s)

    def _note_failure(self, now_s: float) -> None:
        failure = self._classify()
        if failure is None:
            return
        self._failed_at_s = now_s
        if not failure.secondary:
            self._record(failure)

    # Ending

    def _end(self, gang: Gang) -> None:
        """Give the others a moment to say what they know, then end what is left."""
        while self._failed_at_s is not None and len(self._exits) < self._workers:
            self._turn(gang)
            waited_s = time.monotonic() - self._failed_at_s
            if self._desk.state.kill or self._hang is not None:
                break
            if self._failure is None and waited_s < _GRACE_FOR_ROOT_S:
                self._find_root(gang)
            elif waited_s >= _GRACE_AFTER_FAILURE_S:
                break
        self._ending = True
        gang.kill()

    def _find_root(self, gang: Gang) -> None:
        """Look again, while all that is known are broken collectives."""
        # Who broke them may be silent: a stopped process makes the others' collectives time out.
        nearly_s = self._job.spec.hang_after_s * _NEARLY
        self._hang = self._find_hang(gang, time.monotonic(), nearly_s)
        failure = self._classify()
        if failure is not None and not failure.secondary:
            self._record(failure)

    def _classify(self) -> events.Failure | None:
        evidence = [self._evidence(rank) for rank in range(self._workers)]
        return classify(evidence, self._hang, now_ns=time.time_ns())

    def _evidence(self, rank: int) -> RankEvidence:
        trace = self._watch.traces[rank]
        worker_exit = self._exits.get(rank)
        if worker_exit is not None and rank not in self._own_exits:
            worker_exit = None
        bad = worker_exit is not None and worker_exit.code not in _IN_ORDER
        return RankEvidence(
            rank=rank,
            exit=worker_exit,
            failures=tuple(trace.failures),
            started=trace.started,
            step=trace.step,
            log_tail=read_log_tail(self._job.folder.worker_log(self._index, rank)) if bad else "",
        )

    def _record(self, failure: events.Failure) -> None:
        self._failure = failure
        self._sink.emit(failure)

    def _conclude(self) -> AttemptResult:
        stop, exits = self._desk.state, self._exits
        codes = [exits[rank].code if rank in exits else None for rank in range(self._workers)]
        outcome: Outcome
        failure = None
        lost_nothing = all(
            code in _IN_ORDER or self._watch.traces[rank].lost_nothing for rank, code in enumerate(codes)
        )
        if all(code == Exit.DONE for code in codes):
            outcome = "completed"
        elif stop.asked:
            outcome = "stopped" if lost_nothing else "killed"
            failure = self._failure_while_stopping()
        else:
            outcome = "failed"
            failure = self._failure or self._classify()
            assert failure is not None, codes
            if self._failure is None:
                self._record(failure)
        self._show_rest(failed=failure is not None)
        self._note_dropped()
        plain = {k: v for k, v in structs.asdict(failure).items() if k != "time_ns"} if failure else None
        self._sink.emit(events.AttemptEnded(self._index, time.time_ns(), outcome, plain))
        return AttemptResult(
            outcome=outcome,
            started=self._watch.started,
            last_step=self._watch.last_step,
            failure=failure,
            acknowledged=lost_nothing and failure is None,
        )

    def _failure_while_stopping(self) -> events.Failure | None:
        """Return what went wrong besides the stop: an exception, and not the signal that we sent."""
        failure = self._classify()
        if failure is None or failure.failure_class == FailureClass.KILLED:
            return None
        return failure

    def _not_launched(self, error: Retryable) -> AttemptResult:
        now_ns = time.time_ns()
        self._sink.emit(events.AttemptStarted(self._index, now_ns, self._workers))
        failure = events.Failure(
            time_ns=now_ns, rank=0, step=0, failure_class=FailureClass.LOST, kind="launch", message=error.what
        )
        self._sink.emit(failure)
        plain = {k: v for k, v in structs.asdict(failure).items() if k != "time_ns"}
        self._sink.emit(events.AttemptEnded(self._index, now_ns, "failed", plain))
        return AttemptResult(outcome="failed", started=False, last_step=0, failure=failure)

    # Telling

    def _tell(self, rank: int, event: Remarkable) -> None:
        match event:
            case events.Note(level=level, text=text):
                self._display.notice(Notice(level="warning" if level == "warning" else "info", text=text))
            case events.Resumed(step=step) if rank == 0:
                self._display.notice(Notice(level="info", text=f"continues from the checkpoint of step {step}"))
            case events.CheckpointFailed(step=step, reason=reason):
                text = f"the checkpoint of step {step} could not be written: {reason}"
                self._display.notice(Notice(level="warning", text=text))
            case events.Nonfinite(step=step, what=what):
                self._num_nonfinite += 1
                if self._num_nonfinite <= _MOST_NONFINITE_TOLD:
                    last = self._num_nonfinite == _MOST_NONFINITE_TOLD
                    more = "; further ones are recorded and counted in the summary" if last else ""
                    text = f"rank {rank}: the {what} of step {step} is not finite{more}"
                    self._display.notice(Notice(level="warning", text=text))
            case _:
                pass

    def _show_rest(self, *, failed: bool) -> None:
        lines = self._hold.feed(self._output.rest(), time.monotonic(), failing=True)
        lines += self._hold.end(failed=failed)
        if lines:
            self._display.output(lines)

    def _note_dropped(self) -> None:
        dropped = sum(worker_exit.dropped_bytes for worker_exit in self._exits.values())
        if dropped:
            text = f"{dropped} bytes of the workers' output were dropped, the disk was full"
            self._sink.emit(events.Note(time.time_ns(), "warning", "disk-full", text))
            self._display.notice(Notice(level="warning", text=text))
