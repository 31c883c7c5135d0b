"""The local engine: workers as processes of this machine, under one keeper a gang.

The supervisor never is the parent of a worker: the keeper (keeper.py) is, so that nothing survives
the supervisor, SIGKILL included. Should the keeper be killed, the workers die with it, and what
they started is found by the gang's token in /proc/<pid>/environ.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gscalar.base.errors import Retryable
from gscalar.control.engine import GangRequest, WorkerExit
from gscalar.engines.local.cores import count_cores
from gscalar.engines.local.keeper import process_table
from gscalar.engines.local.memory import count_oom_kills
from gscalar.engines.local.ports import pick_port

_KEEPER: Final = Path(__file__).with_name("keeper.py")
_LAUNCH_LIMIT_S: Final = 60.0
_KILL_LIMIT_S: Final = 15.0
_SWEEP_LIMIT_S: Final = 5.0
# Another launcher's words about us would contradict ours.
_FOREIGN_PREFIXES: Final = ("TORCHELASTIC_", "GROUP_", "ROLE_")


class LocalEngine:
    """Launches gangs on this machine. Implements `gscalar.control.engine.Engine`."""

    def __init__(self) -> None:
        self._ports: set[int] = set()  # those used already: every attempt has a fresh one

    def launch(self, request: GangRequest) -> LocalGang:
        """Return the launched gang; see the Protocol."""
        port = pick_port(frozenset(self._ports))
        self._ports.add(port)
        for log in request.logs:
            # On a full disk the keeper drops and counts what does not fit.
            with contextlib.suppress(OSError):
                log.parent.mkdir(parents=True, exist_ok=True)
        gang = LocalGang(request)
        gang.start(worker_environments(request, port), inherited_environment(os.environ) | dict(request.environment))
        return gang


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables without those in which torchrun speaks of itself."""
    return {name: value for name, value in environment.items() if not name.startswith(_FOREIGN_PREFIXES)}


def worker_environments(request: GangRequest, port: int) -> list[dict[str, str]]:
    """Return what each rank has of its own: its place in the gang, and its share of the cores."""
    cores = request.cpus_per_worker or max(1, count_cores() // request.workers)
    shared = {
        "WORLD_SIZE": str(request.workers),
        "LOCAL_WORLD_SIZE": str(request.workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GSCALAR_GANG": request.token,
        "PYTHONUNBUFFERED": "1",
    }
    if "OMP_NUM_THREADS" not in request.environment and "OMP_NUM_THREADS" not in os.environ:
        shared["OMP_NUM_THREADS"] = str(cores)
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(request.workers)]


class LocalGang:
    """The workers of one attempt and their keeper. Implements `gscalar.control.engine.Gang`."""

    def __init__(self, request: GangRequest) -> None:
        self._request = request
        self._pids: tuple[int, ...] = (0,) * request.workers
        self._waiting = set(range(request.workers))  # ranks whose exit is not known
        self._exits: list[WorkerExit] = []  # known and not yet returned
        self._buffer = b""
        self._oom_kills = count_oom_kills()
        self._gone = False  # the keeper
        self._empty = False
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each rank; 0 for one that could not be started."""
        return self._pids

    def start(self, workers: list[dict[str, str]], environment: dict[str, str]) -> None:
        """Start the keeper and, through it, the workers.

        Raises:
            Retryable: `rendezvous-failed`, no process can be started now.
        """
        request = self._request
        held = () if request.held_fd is None else (request.held_fd,)
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=held,
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        except OSError as error:
            raise _cannot_start(error.strerror or str(error)) from error
        own = [
            {"environment": variables, "log": str(log)} for variables, log in zip(workers, request.logs, strict=True)
        ]
        self._say(
            {
                "command": list(request.command),
                "folder": str(request.folder),
                "environment": environment,
                "workers": own,
                "held_fd": request.held_fd,
            }
        )
        deadline = time.monotonic() + _LAUNCH_LIMIT_S
        while not any(self._pids) and not self._gone and time.monotonic() < deadline and not self._exits:
            self._listen(0.1)
        if not any(self._pids) and not self._exits:
            self.close()
            raise _cannot_start("the keeper process did not answer")

    def poll(self, timeout_s: float) -> list[WorkerExit]:
        """Wait up to `timeout_s` for an exit; return the new ones."""
        if not self._exits:
            self._listen(timeout_s)
        exits, self._exits = self._exits, []
        return exits

    def signal(self, signum: int, pids: Mapping[int, int] | None = None) -> None:
        """Send a signal to every living worker, or to the process below it that `pids` names."""
        table = process_table()
        targets = []
        for rank in sorted(self._waiting):
            pid = (pids or {}).get(rank, self._pids[rank])
            # The worker leads a session; a process outside it is somebody else's.
            mine = pid in table and table[pid][1] == self._pids[rank]
            targets.append(pid if mine else self._pids[rank])
        self._say({"signal": signum, "pids": [pid for pid in targets if pid]})

    def inspect(self) -> dict[int, str]:
        """Return each living rank's state; one stopped process makes a rank `stopped`."""
        table = process_table()
        states = {}
        for rank in sorted(self._waiting):
            letters = {state for _, session, state in table.values() if session == self._pids[rank]}
            states[rank] = "stopped" if letters & {"T", "t"} else "running" if letters else "unknown"
        return states

    def kill(self) -> None:
        """Kill every process of the gang. On return none is left."""
        if self._keeper is None:
            return
        self._empty = False
        self._say({"kill": 1})
        deadline = time.monotonic() + _KILL_LIMIT_S
        while not self._gone and not self._empty and time.monotonic() < deadline:
            self._listen(0.1)
        if not self._empty:
            sweep(self._request.token)

    def close(self) -> None:
        """Kill what is left and let the keeper go."""
        keeper = self._keeper
        if keeper is None:
            return
        self.kill()
        self._keeper = None
        for pipe in (keeper.stdin, keeper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            keeper.wait(_KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            sweep(self._request.token)

    def _say(self, command: dict[str, Any]) -> None:
        if self._keeper is None or self._keeper.stdin is None:
            return
        # A dead keeper is noticed by the end of its output.
        with contextlib.suppress(OSError):
            self._keeper.stdin.write(json.dumps(command).encode() + b"\n")
            self._keeper.stdin.flush()

    def _listen(self, timeout_s: float) -> None:
        if self._gone or self._keeper is None or self._keeper.stdout is None:
            time.sleep(timeout_s)
            return
        fd = self._keeper.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], timeout_s)
        if not ready:
            return
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            self._lose("the process that kept the workers died")
            return
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, event: dict[str, Any]) -> None:
        if "pids" in event:
            self._pids = tuple(event["pids"])
        elif "empty" in event:
            self._empty = True
        elif "crash" in event:
            self._lose(f"the process that kept the workers failed: {event['crash']}")
        else:
            self._waiting.discard(event["exit"])
            self._exits.append(
                WorkerExit(
                    rank=event["exit"],
                    time_ns=event["time_ns"],
                    code=event.get("code"),
                    signum=event.get("signum"),
                    oom_killed=count_oom_kills() > self._oom_kills,
                    detail=event.get("detail", ""),
                    dropped_bytes=event["dropped"],
                )
            )

    def _lose(self, detail: str) -> None:
        """The keeper is gone, and nobody knows how its workers end: they end now."""
        self._gone = True
        sweep(self._request.token)
        now_ns = time.time_ns()
        self._exits += [WorkerExit(rank=rank, time_ns=now_ns, detail=detail) for rank in sorted(self._waiting)]
        self._waiting.clear()


def sweep(token: str, limit_s: float = _SWEEP_LIMIT_S) -> None:
    """Kill every process whose environment carries the gang's token, until none is left."""
    deadline = time.monotonic() + limit_s
    while (found := find_by_token(token)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def find_by_token(token: str) -> list[int]:
    """Return the living processes whose environment, as it was at exec, has GSCALAR_GANG=`token`."""
    mark = f"GSCALAR_GANG={token}".encode()
    found = []
    for pid, (_, _, state) in process_table().items():
        if state in "ZX" or pid == os.getpid():
            continue
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue  # it ended, or it is another user's
    return found


def _cannot_start(why: str) -> Retryable:
    return Retryable(
        code="rendezvous-failed",
        what=f"The workers could not be started: {why}.",
        next_step="Look whether the machine is out of memory or of processes (`ulimit -u`).",
    )
