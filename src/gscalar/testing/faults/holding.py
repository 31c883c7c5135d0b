"""Stopping and continuing processes for several faults at once, with a guard that undoes it whatever happens.

A process is stopped while at least one fault holds it. The guard (guard.py) knows of a hold before it begins and until
it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from gscalar.base.errors import EnvironmentProblem
from gscalar.testing.faults.process_table import Process, ProcessTable

_GUARD: Final = Path(__file__).with_name("guard.py")
_END_LIMIT_S: Final = 10.0


class Tell(Protocol):
    """Gives the guard one word and its value."""

    def __call__(self, word: str, value: object) -> None: ...


class GuardProcess:
    """The running guard. `close` lets it undo what is left and waits for it."""

    def __init__(self) -> None:
        # A session of its own, so that Ctrl-C and a killed process group pass it by; no word about any run.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )

    def __call__(self, word: str, value: object) -> None:
        """Tell the guard something.

        Raises:
            EnvironmentProblem: `fault-impossible`, the guard is gone.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({word: value}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EnvironmentProblem(
                code="fault-impossible",
                what="The process that guards the fault injector is gone, and without it nothing is injected.",
                value=error.strerror,
                next_step="Begin the injection again; was the injector itself stopped for some seconds?",
            ) from error

    def close(self) -> None:
        """End the guard, which first undoes what is left."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Holds:
    """Who is held, and by how many faults."""

    def __init__(self, table: ProcessTable, tell: Tell) -> None:
        self._table = table
        self._tell = tell
        self._counts: dict[tuple[int, int], int] = {}

    @contextlib.contextmanager
    def holding(self, processes: Sequence[Process]) -> Iterator[None]:
        """Stop these processes, and let them go on at the end if no other fault holds them."""
        held: list[Process] = []
        try:
            for process in processes:
                held.append(process)
                self._hold(process)
            yield
        finally:
            problems = [problem for process in held if (problem := self._free(process))]
        if problems:
            raise problems[0]

    def _hold(self, process: Process) -> None:
        key = (process.pid, process.start_ticks)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] == 1:
            self._tell("hold", key)
            self._table.send(process, signal.SIGSTOP)

    def _free(self, process: Process) -> EnvironmentProblem | None:
        key = (process.pid, process.start_ticks)
        self._counts[key] -= 1
        if self._counts[key]:
            return None
        del self._counts[key]
        self._table.send(process, signal.SIGCONT)
        # All are let go before anybody complains about the guard.
        try:
            self._tell("free", key)
        except EnvironmentProblem as problem:
            return problem
        return None
