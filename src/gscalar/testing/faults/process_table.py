"""The processes of a run, as an injector sees them: who is who, who is below whom, and signals to nobody else.

A process is known by pid and start time. A record's header has the start time as psutil gives it; a worker that has
not called `init` yet has no header and is known by the run in its environment, as the launcher set it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil

from gscalar.testing.faults.guard import read_stat, signal_process

# Start times are computed from the boot time, which moves a little when the clock is corrected.
_TOLERANCE_S: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process that was there at the time of a look."""

    pid: int
    parent: int
    start_ticks: int  # clock ticks since boot; with the pid, its identity
    started_s: float  # the same since 1970
    state: str  # the letter of proc(5): R, S, T, Z, ...
    name: str

    @property
    def alive(self) -> bool:
        """Whether it is more than an entry in the table."""
        return self.state not in "ZX"


class ProcessTable(Protocol):
    """What an injector asks of the system."""

    def find(self, pid: int) -> Process | None:
        """Return the process that has this pid now."""

    def descendants(self, pid: int) -> list[Process]:
        """Return all living processes below this one."""

    def run_of(self, pid: int) -> str | None:
        """Return the run in the environment that the process began with."""

    def send(self, process: Process, signum: int) -> bool:
        """Send a signal to this very process; False where it is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Who a process of the run is, as the records say. `started_s` is None where there is no header yet."""

    pid: int
    started_s: float | None = None


def find_writer(table: ProcessTable, writer: Writer | None, run_id: str) -> Process | None:
    """Return the living process that the records mean, or None; a reused pid is not taken for it."""
    if writer is None or writer.pid <= 1:
        return None
    process = table.find(writer.pid)
    if process is None or not process.alive:
        return None
    if writer.started_s is None:
        return process if table.run_of(writer.pid) == run_id else None
    return process if abs(process.started_s - writer.started_s) < _TOLERANCE_S else None


class LinuxProcesses:
    """The processes of this machine. Implements `ProcessTable`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def find(self, pid: int) -> Process | None:
        # Asked each time, as psutil does for the header: it moves with the clock.
        return self._read(pid, psutil.boot_time())

    def descendants(self, pid: int) -> list[Process]:
        children: dict[int, list[Process]] = {}
        for process in self._all():
            children.setdefault(process.parent, []).append(process)
        return [process for process in below(pid, children) if process.alive]

    def run_of(self, pid: int) -> str | None:
        try:
            block = Path(f"{self._proc}/{pid}/environ").read_bytes()
        except OSError:
            return None
        values = (entry.removeprefix(b"GSCALAR_RUN_ID=") for entry in block.split(b"\0") if _names_run(entry))
        return next((value.decode(errors="replace") for value in values), None)

    def send(self, process: Process, signum: int) -> bool:
        return signal_process(process.pid, process.start_ticks, signum)

    def _read(self, pid: int, boot_s: float) -> Process | None:
        stat = read_stat(pid, self._proc)
        if stat is None:
            return None
        parent, ticks, state, name = stat
        started_s = boot_s + ticks / self._ticks_per_s
        return Process(pid=pid, parent=parent, start_ticks=ticks, started_s=started_s, state=state, name=name)

    def _all(self) -> Iterator[Process]:
        boot_s = psutil.boot_time()
        for entry in os.scandir(self._proc):
            process = self._read(int(entry.name), boot_s) if entry.name.isdigit() else None
            if process is not None:
                yield process


def below(pid: int, children: dict[int, list[Process]]) -> Iterator[Process]:
    """Yield every process below this one, parents first."""
    waiting, seen = [pid], {pid}
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                waiting.append(child.pid)
                yield child


def find_loaders(processes: Iterable[Process]) -> list[Process]:
    """Return those that load data for a torch DataLoader; they name themselves so."""
    return [process for process in processes if process.name == "pt_data_worker"]


def _names_run(entry: bytes) -> bool:
    return entry.startswith(b"GSCALAR_RUN_ID=")
