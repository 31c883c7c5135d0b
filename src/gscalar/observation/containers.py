"""Control groups: which of them confine this process, what they limit, and what is used inside them.

A container on a 64-core machine with a quota of two cores has two cores, and what it uses of them is
what counts. Limits nest, and the tightest of the process's own group and of those above it holds:

    cores   cpu.max (version 2); cpu.cfs_quota_us / cpu.cfs_period_us (version 1)
    memory  memory.max (version 2); memory.limit_in_bytes (version 1)

`max`, a quota of -1 and version 1's largest number mean "no limit". Memory in use is the group's
usage without what the kernel can give back at once: clean file pages and, where version 2 tells it,
reclaimable slabs, as MemAvailable has it for the whole machine.

Limits: a group above the container's own mount is not seen from inside. A file that is missing or
holds something else counts as not being there. Source: cgroups(7), and the kernel's
admin-guide/cgroup-v2 and cgroup-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gscalar.observation.kernel_files import read_kernel_file

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
# Version 1 writes "no limit" as the largest multiple of a page below 2**63.
_NO_LIMIT_BYTES: Final = 2**62
# Of memory.stat: version 1's names for a group with all below it, then version 2's.
_CLEAN: Final = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file", "slab_reclaimable"))
_DIRTY: Final = (("total_dirty", "total_writeback"), ("file_dirty", "file_writeback"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerUse:
    """What limits this process, and what is used in the group that does. None: no limit, or not known."""

    cpu_limit_cores: float | None = None
    cpu_used_s: float | None = None  # since the group was made
    # (periods, throttled ones) since each group with a quota was made
    throttling: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None


class Container:
    """The groups of this process, found once and looked at again and again."""

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._cgroup = cgroup
        self._cpu = group_folders("cpu", proc, cgroup)
        self._memory = group_folders("memory", proc, cgroup)

    def look(self) -> ContainerUse:
        """Return limits and use as they are now."""
        quotas = {folder: cores for folder in self._cpu if (cores := read_quota_cores(folder)) is not None}
        limits = {folder: limit for folder in self._memory if (limit := read_memory_limit_bytes(folder)) is not None}
        stats = {folder: read_fields(folder / "cpu.stat") for folder in quotas}
        # Of equal limits the innermost counts: what else the outer group holds is not ours.
        cpu = min(quotas, key=quotas.__getitem__, default=None)
        memory = min(limits, key=limits.__getitem__, default=None)
        return ContainerUse(
            cpu_limit_cores=quotas[cpu] if cpu else None,
            cpu_used_s=self._cpu_used_s(cpu, stats[cpu]) if cpu else None,
            throttling={
                folder: (stat["nr_periods"], stat["nr_throttled"])
                for folder, stat in stats.items()
                if "nr_periods" in stat and "nr_throttled" in stat
            },
            memory_limit_bytes=limits[memory] if memory else None,
            memory_used_bytes=read_memory_used_bytes(memory) if memory else None,
        )

    def _cpu_used_s(self, folder: Path, stat: Mapping[str, int]) -> float | None:
        if "usage_usec" in stat:
            return stat["usage_usec"] / 1e6
        # Version 1 counts in a controller of its own, often mounted together with the quotas' one.
        beside = Path(self._cgroup, "cpuacct", *folder.relative_to(self._cgroup).parts[1:])
        used = (_read_number(group / "cpuacct.usage") for group in (folder, beside))
        used_ns = next((number for number in used if number is not None), None)
        return used_ns / 1e9 if used_ns is not None else None


def group_folders(controller: str, proc: Path = PROC, cgroup: Path = CGROUP) -> list[Path]:
    """Return this process's control-group folders for a controller, the innermost first.

    Both hierarchies are looked at. Inside a container the path in /proc/self/cgroup may not exist
    below the mount; the mount itself is then the group.
    """
    folders: list[Path] = []
    for line in _read_lines(proc / "self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mount = cgroup  # version 2
        elif controller in controllers.split(","):
            mount = next((cgroup / name for name in (controllers, controller) if (cgroup / name).is_dir()), cgroup)
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:depth])
            if folder.is_dir() and folder not in folders:
                folders.append(folder)
    return folders


def read_limits(proc: Path = PROC, cgroup: Path = CGROUP) -> dict[str, Any]:
    """Return `cpu_cores` (a fraction is possible) and `memory_bytes` as control groups limit them."""
    quotas = [read_quota_cores(folder) for folder in group_folders("cpu", proc, cgroup)]
    limits = [read_memory_limit_bytes(folder) for folder in group_folders("memory", proc, cgroup)]
    tightest = {
        "memory_bytes": min((limit for limit in limits if limit is not None), default=None),
        "cpu_cores": min((cores for cores in quotas if cores is not None), default=None),
    }
    return {name: value for name, value in tightest.items() if value is not None}


def read_quota_cores(folder: Path) -> float | None:
    """Return the cores that a group's quota allows."""
    words = _read_words(folder / "cpu.max")
    if len(words) == 2:
        return _over(words[0], words[1])
    quota, period = _read_words(folder / "cpu.cfs_quota_us"), _read_words(folder / "cpu.cfs_period_us")
    return _over(quota[0], period[0]) if quota and period else None


def read_memory_limit_bytes(folder: Path) -> int | None:
    """Return the bytes that a group may use."""
    numbers = (_read_number(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    limit = next((number for number in numbers if number is not None), None)
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def read_memory_used_bytes(folder: Path) -> int | None:
    """Return the bytes that a group uses and that cannot be given back at once."""
    numbers = (_read_number(folder / name) for name in ("memory.current", "memory.usage_in_bytes"))
    usage = next((number for number in numbers if number is not None), None)
    stat = read_fields(folder / "memory.stat")
    if usage is None or not stat:
        return None
    version = 0 if _CLEAN[0][0] in stat else 1
    file_pages = sum(stat.get(name, 0) for name in _CLEAN[version])
    dirty = sum(stat.get(name, 0) for name in _DIRTY[version])
    return max(0, usage - max(0, file_pages - dirty))


def read_fields(path: Path) -> dict[str, int]:
    """Return the `name number` lines of a file; nothing where it cannot be read."""
    pairs = (line.split() for line in _read_lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and _is_number(pair[1])}


def _over(quota: str, period: str) -> float | None:
    if _is_number(quota) and _is_number(period) and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None


def _read_number(path: Path) -> int | None:
    words = _read_words(path)
    return int(words[0]) if words and _is_number(words[0]) else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _read_words(path: Path) -> list[str]:
    lines = _read_lines(path)
    return lines[0].split() if lines else []


def _read_lines(path: Path) -> list[str]:
    try:
        return read_kernel_file(path).splitlines()
    except OSError:
        return []
