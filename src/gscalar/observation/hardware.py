"""One look a second at a host and its workers: the counters of `gscalar.model.hardware`.

Levels, such as memory, are what they are at the look. Rates are differences of the kernel's counters
over the time between two looks, so the first look has none. A counter that cannot be read, that
ran backwards, or that holds something else is left out: it is unknown, and never zero.

Where a control group limits the cores (or the memory), the cores (or the memory) in use are those of
that group; else they are the machine's. Network bytes are counted once: physical devices where there
are any, else (in a container) every interface that does not lie on another one. Disks are those with a
device behind them, so neither partitions nor loop, dm, md and zram devices count again.

Limits: what RDMA moves past the kernel is not in the interfaces' bytes. Sources: proc(5), the kernel's
admin-guide/iostats and ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gscalar.observation.containers import Container, ContainerUse
from gscalar.observation.gpu_counters import GpuCounters
from gscalar.observation.kernel_files import read_kernel_file
from gscalar.observation.process_trees import ProcessTrees

HOST: Final = -1  # the rank of what belongs to no worker
_SECTOR_BYTES: Final = 512  # in /proc/diskstats, whatever the device's own are
_DEVICES_EVERY_S: Final = 10.0  # interfaces and disks come and go, but rarely
# What files under /proc and /sys may do to whoever reads them: be absent, or hold other than expected.
_UNREADABLE: Final = (OSError, ValueError, IndexError, KeyError, ZeroDivisionError)


class HardwareSampler:
    """Looks at one host again and again. Used by one thread."""

    def __init__(self, root: Path = Path("/"), gpus: GpuCounters | None = None) -> None:
        self._proc, self._sys = root / "proc", root / "sys"
        self._container = Container(self._proc, self._sys / "fs/cgroup")
        self._trees = ProcessTrees(self._proc)
        self._gpus = gpus
        self._rates = _Rates()
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._devices_s: float | None = None
        self._interfaces: frozenset[str] = frozenset()
        self._disks: frozenset[str] = frozenset()

    def look(self, now_s: float, pids: Mapping[int, int]) -> dict[int, dict[str, float]]:
        """Return values by rank, `HOST` for the host. `pids` are the workers' by rank; `now_s` is monotonic."""
        self._refresh_devices(now_s)
        use = self._container.look()
        host: dict[str, float] = {}
        for read in (
            lambda: self._cpu(use, now_s),
            lambda: self._throttling(use),
            lambda: self._memory(use),
            lambda: self._network(now_s),
            lambda: self._disk(now_s),
        ):
            host |= _known(read)
        workers = self._trees.look(now_s, pids)
        # Last, because a driver may take its time.
        host |= self._gpus.read() if self._gpus is not None else {}
        return {HOST: host, **workers}

    def _cpu(self, use: ContainerUse, now_s: float) -> dict[str, float]:
        limit_cores = float(len(os.sched_getaffinity(0)))
        if use.cpu_limit_cores is not None:
            limit_cores = min(limit_cores, use.cpu_limit_cores)
        used_s = use.cpu_used_s if use.cpu_limit_cores is not None else self._machine_cpu_s()
        found = {"host/cpu_limit_cores": limit_cores}
        return found | self._rates.of("host/cpu_cores", used_s, now_s)

    def _machine_cpu_s(self) -> float | None:
        try:
            fields = read_kernel_file(self._proc / "stat").partition("\n")[0].split()
            # user nice system (idle iowait) irq softirq; guests are in user, and steal is not ours.
            return sum(int(fields[at]) for at in (1, 2, 3, 6, 7)) / self._ticks_per_s
        except _UNREADABLE:
            return None

    def _throttling(self, use: ContainerUse) -> dict[str, float]:
        """The worst of the groups with a quota: a process waits for all of them."""
        gains = [
            (self._rates.gain(f"{folder} periods", num_periods), self._rates.gain(f"{folder} throttled", num_throttled))
            for folder, (num_periods, num_throttled) in use.throttling.items()
        ]
        ratios = [throttled / periods for periods, throttled in gains if periods and throttled is not None]
        return {"host/cpu_throttled_ratio": max(ratios)} if ratios else {}

    def _memory(self, use: ContainerUse) -> dict[str, float]:
        lines = read_kernel_file(self._proc / "meminfo").splitlines()
        fields = dict(line.partition(":")[::2] for line in lines)
        total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        if use.memory_limit_bytes is None or use.memory_limit_bytes >= total:
            return {"host/memory_bytes": float(total - available), "host/memory_limit_bytes": float(total)}
        found = {"host/memory_limit_bytes": float(use.memory_limit_bytes)}
        used = use.memory_used_bytes
        return found | ({"host/memory_bytes": float(used)} if used is not None else {})

    def _network(self, now_s: float) -> dict[str, float]:
        received = sent = looped = 0
        for line in read_kernel_file(self._proc / "net/dev").splitlines()[2:]:
            name, _, numbers = line.partition(":")
            fields = numbers.split()
            if name.strip() == "lo":
                looped += int(fields[8])
            elif name.strip() in self._interfaces:
                received += int(fields[0])
                sent += int(fields[8])
        found = self._rates.of("host/loopback_bytes_per_s", looped, now_s)
        if not self._interfaces:
            return found
        found |= self._rates.of("host/network_received_bytes_per_s", received, now_s)
        return found | self._rates.of("host/network_sent_bytes_per_s", sent, now_s)

    def _disk(self, now_s: float) -> dict[str, float]:
        if not self._disks:
            return {}
        rows = [line.split() for line in read_kernel_file(self._proc / "diskstats").splitlines()]
        ours = [row for row in rows if row[2] in self._disks]
        read, written = (_SECTOR_BYTES * sum(int(row[at]) for row in ours) for at in (5, 9))
        found = self._rates.of("host/disk_read_bytes_per_s", read, now_s)
        return found | self._rates.of("host/disk_written_bytes_per_s", written, now_s)

    def _refresh_devices(self, now_s: float) -> None:
        if self._devices_s is not None and now_s - self._devices_s < _DEVICES_EVERY_S:
            return
        self._devices_s = now_s
        interfaces, disks = _counted_interfaces(self._sys / "class/net"), _physical(self._sys / "block")
        # A sum over other devices is another counter: its first look gives no rate.
        if interfaces != self._interfaces:
            self._rates.forget("host/network_received_bytes_per_s", "host/network_sent_bytes_per_s")
        if disks != self._disks:
            self._rates.forget("host/disk_read_bytes_per_s", "host/disk_written_bytes_per_s")
        self._interfaces, self._disks = interfaces, disks


class _Rates:
    """Counters as they were at the last look."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}  # (counter, time)

    def of(self, name: str, counter: float | None, now_s: float) -> dict[str, float]:
        """Return the counter's gain a second under its name; nothing where there is no earlier look."""
        if counter is None:
            self.forget(name)
            return {}
        before, then_s = self._last.get(name, (0.0, now_s))
        self._last[name] = (counter, now_s)
        if now_s <= then_s or counter < before:
            return {}
        return {name: (counter - before) / (now_s - then_s)}

    def gain(self, name: str, counter: float) -> float | None:
        """Return what the counter has gained since the last look."""
        before, _ = self._last.get(name, (counter + 1, 0.0))
        self._last[name] = (counter, 0.0)
        return counter - before if counter >= before else None

    def forget(self, *names: str) -> None:
        """Take the next look as the first."""
        for name in names:
            self._last.pop(name, None)


def _known(read: Callable[[], dict[str, float]]) -> dict[str, float]:
    try:
        return read()
    except _UNREADABLE:
        return {}


def _counted_interfaces(folder: Path) -> frozenset[str]:
    """Return the interfaces whose bytes are the host's, each byte once.

    A bond, a VLAN or a bridge moves the bytes of the devices below it a second time.
    """
    physical = _physical(folder)
    if physical:
        return physical
    names = set(_names(folder)) - {"lo"}
    return frozenset(name for name in names if not any(below.startswith("lower_") for below in _names(folder / name)))


def _physical(folder: Path) -> frozenset[str]:
    return frozenset(name for name in _names(folder) if (folder / name / "device").exists())


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough
    except OSError:
        return []
