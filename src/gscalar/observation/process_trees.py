"""What a worker's process and all its descendants use: cores and resident memory.

A training's work is done by more than one process: data loaders, compilers, a shell around Python.
Their CPU time is summed with that of the children which each has waited for (cutime and cstime of
/proc/PID/stat), so that a child's time stays in the sum when the child ends.

Finding them must cost little. The children that a process's main thread has forked are one small file;
a pass over all of /proc, every ten seconds, finds those of other threads, and is all there is where
the kernel has no such file.

Limits: a process whose parent has ended belongs to nobody; pages that processes share count in each
of them; a child that nobody waits for takes its time along. Where the sum falls for such a reason, the
look tells no cores. Source: proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from gscalar.observation.kernel_files import read_kernel_file

_FULL_PASS_EVERY_S: Final = 10.0


class _Process(NamedTuple):
    parent: int
    started_ticks: int
    cpu_ticks: int  # its own, and those of children it has waited for
    resident_pages: int


@dataclass(slots=True)
class _Tree:
    """One worker's processes at the last look."""

    started_ticks: int  # of the worker, so that a reused pid is not taken for it
    looked_s: float
    pids: frozenset[int] = field(default_factory=frozenset)
    cpu_ticks: int = 0


class ProcessTrees:
    """Looks at workers' process trees again and again."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._trees: dict[int, _Tree] = {}  # by rank
        self._passed_s: float | None = None
        self._children: dict[int, list[int]] = {}  # of the last full pass

    def look(self, now_s: float, pids: Mapping[int, int]) -> dict[int, dict[str, float]]:
        """Return the counters of each rank whose process lives; `pids` are the workers' by rank."""
        if pids and (self._passed_s is None or now_s - self._passed_s >= _FULL_PASS_EVERY_S):
            self._passed_s = now_s
            self._children = self._pass_over_all()
        found = ((rank, self._look_at(rank, pid, now_s)) for rank, pid in pids.items())
        return {rank: values for rank, values in found if values}

    def _look_at(self, rank: int, pid: int, now_s: float) -> dict[str, float]:
        root = self._read(pid)
        before = self._trees.get(rank)
        if root is None or (before is not None and before.started_ticks != root.started_ticks):
            return {}
        members, passed_over = {pid: root}, set()
        for child, process, forked in self._descendants(pid):
            members[child] = process
            passed_over |= set() if forked else {child}
        cpu_ticks = sum(process.cpu_ticks for process in members.values())
        values = {"worker/memory_bytes": float(self._page_bytes * sum(p.resident_pages for p in members.values()))}
        if before is not None and now_s > before.looked_s:
            # What only a full pass finds may have worked long before the last look; a child that the file of
            # children tells was born after it.
            earlier = sum(members[each].cpu_ticks for each in passed_over - before.pids)
            gained = cpu_ticks - before.cpu_ticks - earlier
            if gained >= 0:
                values["worker/cpu_cores"] = gained / self._ticks_per_s / (now_s - before.looked_s)
        self._trees[rank] = _Tree(root.started_ticks, now_s, frozenset(members), cpu_ticks)
        return values

    def _descendants(self, pid: int) -> Iterator[tuple[int, _Process, bool]]:
        """Yield each process below, and whether its parent's main thread forked it."""
        waiting, seen = [pid], {pid}
        while waiting:
            parent = waiting.pop()
            forked = self._forked_by_main_thread(parent)
            for child in (*forked, *self._children.get(parent, ())):
                process = None if child in seen else self._read(child)
                if process is not None and process.parent == parent:
                    seen.add(child)
                    waiting.append(child)
                    yield child, process, child in forked

    def _forked_by_main_thread(self, pid: int) -> Sequence[int]:
        try:
            return [int(word) for word in read_kernel_file(f"{self._proc}/{pid}/task/{pid}/children").split()]
        except (OSError, ValueError):
            return ()

    def _pass_over_all(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for name in _listed(self._proc):
            process = self._read(int(name)) if name.isdigit() else None
            if process is not None:
                children.setdefault(process.parent, []).append(int(name))
        return children

    def _read(self, pid: int) -> _Process | None:
        try:
            # The command may hold anything, spaces and parentheses too: fields count from its end.
            fields = read_kernel_file(f"{self._proc}/{pid}/stat").rpartition(")")[2].split()
            return _Process(int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])), int(fields[21]))
        except (OSError, ValueError, IndexError):
            return None


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough, and this is the fast way
    except OSError:
        return []
