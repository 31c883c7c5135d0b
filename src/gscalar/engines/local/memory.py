"""Whether the kernel killed for lack of memory: the counters of our control group.

A process killed by the out-of-memory killer looks like any SIGKILL from outside. The kernel counts
such kills: cgroup v2 in `memory.events`, v1 in `memory.oom_control`, and for the whole machine in
/proc/vmstat, which is used only where no group tells (another container's kill would count there).
"""

from __future__ import annotations

from pathlib import Path

from gscalar.observation.containers import group_folders

_ROOT = Path("/")


def count_oom_kills(root: Path = _ROOT) -> int:
    """Return how often the kernel has killed a process of our control group (or machine) so far."""
    counts = [
        count
        for folder in group_folders("memory", root / "proc", root / "sys/fs/cgroup")
        for file in ("memory.events", "memory.oom_control")
        if (count := _read_counter(folder / file)) is not None
    ]
    if counts:
        # The counters of version 2 include the groups below, so the largest is the outermost; kills
        # of a neighbour below the same outer group would count too. Take the innermost group.
        return counts[0]
    return _read_counter(root / "proc/vmstat") or 0


def _read_counter(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return None
