"""Builds the record files of small runs, as a supervisor and its workers would have written them.

`write_run` makes a whole run in one line; `RunBuilder` makes one piece by piece, for tests of what happens in
between. The clock is a fake one, so the same calls make the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gscalar.model import events
from gscalar.model.accounts import pack_accounts
from gscalar.model.events import RECORD_VERSION, Event, Header
from gscalar.state.files import write_atomic
from gscalar.state.home import Home, RunFolder
from gscalar.state.records.writer import RecordWriter

# 2026-01-02 03:04:05 UTC
START_NS: Final = 1_767_323_045_000_000_000
DEFAULT_RUN_ID: Final = "7k2m9qx4tz0a"


class FakeClock:
    """A clock in nanoseconds that moves only when it is told to."""

    def __init__(self, now_ns: int = START_NS) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, duration_s: float) -> int:
        """Move on, and return the new time."""
        self.now_ns += round(duration_s * 1e9)
        return self.now_ns


class RunBuilder:
    """One run, written piece by piece.

    `alone` is a script without a supervisor: rank 0 itself tells of the attempt and of the run's end. Workers of
    an attempt write from `launch` on; what they write is there when a method returns.
    """

    def __init__(
        self,
        home: Home,
        run_id: str = DEFAULT_RUN_ID,
        *,
        spec: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
        alone: bool = False,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.folder: RunFolder = home.run(run_id)
        self.run_id = run_id
        self.spec = default_spec() | dict(spec or {})
        self.origins = {"command": "spec", "config.lr": "spec", "tags": "spec"} | dict(origins or {})
        self.alone = alone
        self.attempt = -1
        self.step = 0
        self._tokens = [0.0]  # by step
        # Who writes: another host, of which nobody can tell whether its processes live.
        self.host, self.pid, self.pid_start = "builder", 4242, 1.0
        self.workers: list[RecordWriter] = []
        self._supervisor: RecordWriter | None = None
        self.folder.create()
        job = {
            "run": run_id,
            "project": self.spec["project"],
            "name": self.spec["name"],
            "created_ns": self.clock(),
            "spec": self.spec,
            "origins": self.origins,
        }
        write_atomic(self.folder.job_file, json.dumps(job).encode())

    # ---- what a supervisor does

    def launch(self, world: int = 1, *, from_step: int | None = None) -> RunBuilder:
        """Begin the next attempt; with `from_step`, from a checkpoint of that step."""
        self.attempt += 1
        if not self.alone and self._supervisor is None:
            path = self.folder.supervisor_record(self.attempt)
            self._supervisor = self._writer(path, rank=-1, world=world, writer="supervisor")
        self.workers = [
            self._writer(self.folder.worker_record(self.attempt, rank), rank=rank, world=world, writer="worker")
            for rank in range(world)
        ]
        self._owner().emit(events.AttemptStarted(self.attempt, self.clock.advance(0.1), world))
        self.tell(self._started())
        self.tell(events.Adopted(self.clock.advance(0.1), {"parameters": 1000}))
        self.step = from_step or 0
        del self._tokens[self.step + 1 :]
        if from_step is not None:
            self.tell(events.Resumed(self.clock.advance(0.1), from_step, _checkpoint_path(from_step)))
        return self

    def end_attempt(self, outcome: str, failure: Mapping[str, Any] | None = None) -> RunBuilder:
        """Close the workers' files and tell how the attempt ended."""
        self._close_workers()
        if self._supervisor is not None:
            ended_ns = self.clock.advance(0.1)
            self._supervisor.emit(
                events.AttemptEnded(self.attempt, ended_ns, outcome, dict(failure) if failure else None)
            )
        return self

    def end(self, status: str = "completed") -> RunBuilder:
        """End the run: its last attempt too, where that is still going."""
        outcome = {"completed": "completed", "failed": "failed"}.get(status, "stopped")
        if self.alone:
            self._owner().emit(events.RunEnded(self.clock.advance(0.1), status))
            self._close_workers()
        else:
            if self.workers:
                self.end_attempt(outcome)
            assert self._supervisor is not None, "launch first"
            self._supervisor.emit(events.RunEnded(self.clock.advance(0.1), status))
            self._supervisor.close()
            self._supervisor = None
        return self

    # ---- what workers do

    def train(
        self,
        num_steps: int,
        *,
        first_loss: float = 4.0,
        tokens: float = 1024.0,
        accounts: Sequence[Mapping[str, float]] = (),
    ) -> RunBuilder:
        """Do steps on every rank; the loss of step n on rank r is `first_loss / n + r`.

        A step takes what `accounts` of its rank sum to (of the last one given, for further ranks), or 50 ms.
        """
        given = [accounts[min(rank, len(accounts) - 1)] if accounts else {} for rank in range(len(self.workers))]
        durations_s = [sum(each.values()) if each else 0.05 for each in given]
        for _ in range(num_steps):
            self.step += 1
            now_ns = self.clock.advance(max(durations_s))
            self._tokens.append(self._tokens[-1] + tokens)
            for rank, worker in enumerate(self.workers):
                loss = first_loss / self.step + rank
                packed = pack_accounts(dict(given[rank])) if given[rank] else b""
                worker.emit(events.Step(self.step, now_ns, durations_s[rank], 8.0, tokens, 0.001, loss, 0, 100, packed))
        return self

    def log(self, values: Mapping[str, float], *, rank: int = 0) -> RunBuilder:
        """Log values at the current step on one rank."""
        self.workers[rank].log(self.step, self.clock(), values)
        return self

    def checkpoint(self, num_bytes: int = 4096) -> RunBuilder:
        """Tell of a checkpoint of the current step, and seal the record as a worker does then."""
        path, sha256 = _checkpoint_path(self.step), f"{self.step:064x}"
        now_ns = self.clock.advance(0.01)
        self.workers[0].emit(events.CheckpointSaved(now_ns, self.step, path, num_bytes, sha256, 0.001, 0.01))
        self.workers[0].seal("checkpoint")
        return self

    def fail(self, kind: str = "ValueError", message: str = "no such thing", *, rank: int = 0) -> RunBuilder:
        """Tell of an exception in the script."""
        text = f"Traceback (most recent call last):\n{kind}: {message}\n"
        self.workers[rank].emit(
            events.Failure(self.clock.advance(0.01), rank, self.step, "user_error", kind, message, text)
        )
        return self

    def finish(self, weights: str = "ab" * 32) -> RunBuilder:
        """Let every worker finish in order; rank 0 tells the digest of the weights."""
        now_ns = self.clock.advance(0.01)
        for rank, worker in enumerate(self.workers):
            digests = {"weights": weights, "data": "cd" * 32} if rank == 0 else {}
            worker.emit(events.Finished(now_ns, self.step, self._tokens[-1], 8.0 * self.step, digests))
        return self

    def tell(self, event: Event, *, rank: int | None = None) -> RunBuilder:
        """Write any event, on one rank or on all."""
        for worker in self.workers if rank is None else [self.workers[rank]]:
            worker.emit(event)
        return self

    def tell_owner(self, event: Event) -> RunBuilder:
        """Write any event where the attempt's beginning was told: the supervisor's file, or the lone worker's."""
        self._owner().emit(event)
        return self

    def sample(self, values: Mapping[str, float], *, of: int = -1) -> RunBuilder:
        """Sample the hardware of the host or of one rank, a second after what came before."""
        self._owner().sample(self.clock.advance(1.0), of, values)
        return self

    def jump(self, by_s: float) -> RunBuilder:
        """Set the wall clock, and tell so."""
        self.clock.advance(by_s)
        return self.tell_owner(events.ClockJumped(self.clock(), by_s))

    def edit(self, edit_id: str, **changes: Any) -> RunBuilder:
        """Change the run as a person does, in a file of its own."""
        writer = self._writer(self.folder.records / f"edit-{edit_id}.rec", rank=-1, world=0, writer="edit")
        writer.emit(events.Edited(self.clock.advance(1.0), **changes))
        writer.close()
        return self

    def abandon(self) -> RunBuilder:
        """Leave all files as SIGKILL of every process would: without an end, a seal or a word."""
        for writer in (*self.workers, self._supervisor):
            if writer is not None:
                size = writer.path.stat().st_size
                writer.close()
                os.truncate(writer.path, size)  # takes the seal back
        self.workers, self._supervisor = [], None
        return self

    def _started(self) -> events.WorkerStarted:
        spec = {**self.spec, "config": dict(self.spec["config"])}
        environment = {"python": {"version": "3.11.0"}, "os": {"host": self.host}}
        return events.WorkerStarted(self.clock(), spec["project"], spec["name"], spec, dict(self.origins), environment)

    def _owner(self) -> RecordWriter:
        writer = self.workers[0] if self.alone else self._supervisor
        assert writer is not None
        return writer

    def _close_workers(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers = []

    def _writer(self, path: Path, *, rank: int, world: int, writer: str) -> RecordWriter:
        header = Header(
            RECORD_VERSION, self.run_id, max(self.attempt, 0), rank, world, writer,
            self.host, self.pid, self.pid_start, self.clock(), "0.1.0",
        )  # fmt: skip
        return RecordWriter(path, header, clock_ns=self.clock)


def _checkpoint_path(step: int) -> str:
    return f"checkpoints/step-{step:09d}"


def default_spec() -> dict[str, Any]:
    """Return a small resolved spec as a plain dict."""
    return {
        "version": 1,
        "name": "tiny",
        "project": "demo",
        "command": ["python", "train.py"],
        "config": {"lr": 0.001, "layers": 2, "optimizer": "adamw"},
        "workers": 1,
        "seed": 7,
        "deterministic": False,
        "plan": {"accumulate": 1, "precision": "fp32", "sync": {"kind": "allreduce"}},
        "tags": {"team": "language"},
        "env": {},
    }


def write_run(
    home: Home,
    run_id: str = DEFAULT_RUN_ID,
    *,
    spec: Mapping[str, Any] | None = None,
    world: int = 1,
    steps: int = 5,
    status: str = "completed",
    alone: bool = False,
    clock: FakeClock | None = None,
) -> RunFolder:
    """Write a whole run of one attempt and return its folder.

    Rank 0 logs `val/loss` (half the training loss) at the end, and a checkpoint is there.
    """
    run = RunBuilder(home, run_id, spec=spec, alone=alone, clock=clock)
    run.launch(world).train(steps).checkpoint().log({"val/loss": 2.0 / max(steps, 1)})
    if status == "completed":
        run.finish()
    elif status == "failed":
        run.fail()
    run.end(status)
    return run.folder
