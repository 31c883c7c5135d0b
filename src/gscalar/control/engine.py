"""What the supervisor asks of whatever starts processes: this machine, Slurm, Kubernetes, Vertex AI.

An engine launches a gang: the workers of one attempt. It gives each worker the rendezvous that
torchrun users know (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
fresh for every gang, on top of `GangRequest.environment`; it captures what a worker prints in the
worker's log file; and it leaves nothing behind: when a gang is killed or closed, or when the
process that launched it dies in any way, every worker and every process that a worker started is
gone. `gscalar.testing.engine_suite` holds every engine to this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class GangRequest:
    """One attempt's workers: what to start, where, and with what."""

    run: str
    attempt: int
    token: str  # unique to the attempt; every worker carries it as GSCALAR_GANG
    command: tuple[str, ...]
    folder: Path  # working folder of the workers
    workers: int
    logs: tuple[Path, ...]  # one a rank: stdout and stderr, in the order they were written
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus_per_worker: int | None = None  # None: the machine's cores over the workers
    gpus_per_worker: int = 0
    held_fd: int | None = None  # a descriptor (a lock) kept open while any process of the gang may live


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    """How a worker ended: a code, or a signal, or neither where it vanished or never started."""

    rank: int
    time_ns: int
    code: int | None = None
    signum: int | None = None
    oom_killed: bool = False  # the kernel killed for lack of memory in the gang's group since its launch
    detail: str = ""  # why there is neither a code nor a signal
    dropped_bytes: int = 0  # output that did not fit on the disk

    @property
    def done(self) -> bool:
        """Whether the worker ended in order, with nothing left to do."""
        return self.code == 0


class Gang(Protocol):
    """The workers of one attempt, launched. Used by one thread."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each rank; 0 for one that could not be started."""

    def poll(self, timeout_s: float) -> list[WorkerExit]:
        """Wait up to `timeout_s` for an exit; return the new ones. Each exit is returned once."""

    def signal(self, signum: int, pids: Mapping[int, int] | None = None) -> None:
        """Send a signal to every living worker, and to nobody else.

        `pids` names, by rank, the process below the worker that shall get it instead (the Python
        process where the command is a shell script); it is ignored where it is not the gang's.
        """

    def inspect(self) -> dict[int, str]:
        """Return each living rank's state: `running`, `stopped` (by SIGSTOP or a debugger), `unknown`."""

    def kill(self) -> None:
        """Kill every process of the gang. On return none is left; `poll` reports the exits."""

    def close(self) -> None:
        """Kill what is left and give back what the gang holds. May be called twice."""


class Engine(Protocol):
    """Starts gangs. Used by one thread."""

    def launch(self, request: GangRequest) -> Gang:
        """Return the launched gang. A worker that cannot be started is reported by `poll` with a detail.

        Raises:
            Retryable: `rendezvous-failed`, the gang cannot be started now.
        """
