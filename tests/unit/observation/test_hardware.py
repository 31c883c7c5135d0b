"""A host's counters, read from /proc and /sys trees that the test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gscalar.model.hardware import HARDWARE
from gscalar.observation.hardware import HOST, HardwareSampler

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GIB = 2**30


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


class Machine:
    """The files of one machine. Counters are set as a test needs them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("proc/meminfo", f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {20 * GIB // 1024} kB\n")
        self.put("proc/self/cgroup", "0::/job\n")
        self.cpu()
        self.network()
        self.disk()
        for device in ("net/eth0", "net/eth1"):
            self.folder(f"sys/class/{device}/device")
        for device in (
            "net/lo",
            "net/bond0/lower_eth0",
            "net/bond0/lower_eth1",
            "net/docker0/lower_veth1",
            "net/veth1",
        ):
            self.folder(f"sys/class/{device}")
        self.folder("sys/block/nvme0n1/device")
        for device in ("loop0", "dm-0", "md127", "zram0"):
            self.folder(f"sys/block/{device}")

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def folder(self, name: str) -> None:
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def cpu(self, busy_s: float = 0.0, *, other_s: float = 0.0) -> None:
        """A fifth each of the busy time goes to user, nice, system, irq and softirq."""
        busy, other = round(busy_s / 5 * TICKS_PER_S), round(other_s * TICKS_PER_S)
        # user nice system idle iowait irq softirq steal guest guest_nice
        self.put("proc/stat", f"cpu  {busy} {busy} {busy} {other} {other} {busy} {busy} {other} {busy} 0\ncpu0 1\n")

    def network(self, **received_and_sent: tuple[int, int]) -> None:
        """Interfaces that are not named stand at zero."""
        counts = dict.fromkeys(("lo", "eth0", "eth1", "bond0", "docker0", "veth1"), (0, 0)) | received_and_sent
        rows = [f"{name:>6}: {rx} 0 0 0 0 0 0 0 {tx} 0 0 0 0 0 0 0" for name, (rx, tx) in counts.items()]
        self.put("proc/net/dev", "\n".join(["Inter-| Receive | Transmit", " face |bytes |bytes", *rows, ""]))

    def disk(self, **read_and_written: tuple[int, int]) -> None:
        """Counts in sectors of 512 bytes; devices that are not named stand at zero."""
        counts = dict.fromkeys(("nvme0n1", "nvme0n1p1", "loop0", "dm-0"), (0, 0)) | read_and_written
        rows = [f" 259 0 {name} 9 9 {read} 9 9 9 {written} 9 0 9 9" for name, (read, written) in counts.items()]
        self.put("proc/diskstats", "\n".join([*rows, ""]))

    def limit(self, *, cores: int | str = "max", memory_bytes: int | str = "max") -> None:
        quota = f"{cores * 100_000} 100000\n" if isinstance(cores, int) else "max 100000\n"
        self.put("sys/fs/cgroup/job/cpu.max", quota)
        self.put("sys/fs/cgroup/job/memory.max", f"{memory_bytes}\n")

    def throttle(self, used_s: float, periods: int, throttled: int, *, group: str = "job") -> None:
        stat = f"usage_usec {round(used_s * 1e6)}\nnr_periods {periods}\nnr_throttled {throttled}\n"
        self.put(f"sys/fs/cgroup/{group}/cpu.stat", stat)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_first_look_has_levels_and_no_rates(machine: Machine) -> None:
    machine.cpu(500.0)
    machine.network(eth0=(10**9, 10**9))
    assert HardwareSampler(machine.root).look(50.0, {})[HOST] == {
        "host/cpu_limit_cores": 8.0,
        "host/memory_bytes": 12.0 * GIB,
        "host/memory_limit_bytes": 32.0 * GIB,
    }


def test_rates_are_gains_over_the_time_between_two_looks(machine: Machine) -> None:
    sampler = HardwareSampler(machine.root)
    machine.cpu(100.0, other_s=100.0)
    sampler.look(50.0, {})
    machine.cpu(107.0, other_s=300.0)
    machine.network(
        lo=(777, 777), eth0=(1000, 200), eth1=(3000, 0), bond0=(4000, 200), docker0=(55, 55), veth1=(55, 55)
    )
    machine.disk(nvme0n1=(8, 20), nvme0n1p1=(8, 20), loop0=(99, 0), **{"dm-0": (8, 20)})
    got = sampler.look(52.0, {})[HOST]
    assert {name: value for name, value in got.items() if "memory" not in name} == {
        "host/cpu_limit_cores": 8.0,
        "host/cpu_cores": 3.5,
        "host/network_received_bytes_per_s": 2000.0,
        "host/network_sent_bytes_per_s": 100.0,
        "host/loopback_bytes_per_s": 388.5,
        "host/disk_read_bytes_per_s": 2048.0,
        "host/disk_written_bytes_per_s": 5120.0,
    }
    assert set(got) <= set(HARDWARE)


def test_in_a_container_what_lies_on_no_other_interface_counts(machine: Machine) -> None:
    for name in ("eth0", "eth1"):
        (machine.root / "sys/class/net" / name / "device").rmdir()
    (machine.root / "sys/class/net/eth1").rmdir()
    sampler = HardwareSampler(machine.root)
    sampler.look(0.0, {})
    machine.network(lo=(5, 5), eth0=(100, 40), bond0=(100, 40))
    got = sampler.look(1.0, {})[HOST]
    assert (got["host/network_received_bytes_per_s"], got["host/network_sent_bytes_per_s"]) == (100.0, 40.0)


def test_a_container_with_limits_has_its_own_cores_and_memory(machine: Machine) -> None:
    machine.limit(cores=2, memory_bytes=4 * GIB)
    machine.put("sys/fs/cgroup/job/memory.current", f"{3 * GIB}\n")
    machine.put("sys/fs/cgroup/job/memory.stat", f"inactive_file {GIB}\nactive_file 0\n")
    machine.throttle(10.0, 100, 7)
    sampler = HardwareSampler(machine.root)
    sampler.look(0.0, {})
    machine.cpu(900.0)  # what the neighbours do
    machine.throttle(13.0, 120, 12)
    got = sampler.look(2.0, {})[HOST]
    assert {name: value for name, value in got.items() if "network" not in name and "disk" not in name} == {
        "host/cpu_limit_cores": 2.0,
        "host/cpu_cores": 1.5,
        "host/cpu_throttled_ratio": 0.25,
        "host/memory_bytes": 2.0 * GIB,
        "host/memory_limit_bytes": 4.0 * GIB,
        "host/loopback_bytes_per_s": 0.0,
    }


def test_the_worst_throttled_group_of_the_path_counts(machine: Machine) -> None:
    machine.put("proc/self/cgroup", "0::/pod/job\n")
    machine.put("sys/fs/cgroup/pod/cpu.max", "400000 100000\n")
    machine.put("sys/fs/cgroup/pod/job/cpu.max", "200000 100000\n")
    sampler = HardwareSampler(machine.root)
    for inner, outer in ((0, 0), (1, 8)):
        machine.throttle(1.0, 10 * (inner + 1), inner, group="pod/job")
        machine.throttle(1.0, 10 * (inner + 1), outer, group="pod")
        got = sampler.look(float(inner), {})[HOST]
    assert got["host/cpu_throttled_ratio"] == 0.8


def test_a_limit_beyond_the_machine_is_the_machines(machine: Machine) -> None:
    machine.limit(memory_bytes=64 * GIB)
    got = HardwareSampler(machine.root).look(0.0, {})[HOST]
    assert (got["host/memory_limit_bytes"], got["host/memory_bytes"]) == (32.0 * GIB, 12.0 * GIB)


# sentence: (file, its text: None is gone, counters that are unknown then)
UNKNOWN: dict[str, tuple[str, str | None, set[str]]] = {
    "no /proc/stat": ("proc/stat", None, {"host/cpu_cores"}),
    "nonsense in /proc/stat": ("proc/stat", "cpu a b c\n", {"host/cpu_cores"}),
    "no /proc/meminfo": ("proc/meminfo", None, {"host/memory_bytes", "host/memory_limit_bytes"}),
    "a kernel without MemAvailable": (
        "proc/meminfo",
        "MemTotal: 99 kB\n",
        {"host/memory_bytes", "host/memory_limit_bytes"},
    ),
    "nonsense in /proc/net/dev": (
        "proc/net/dev",
        "a\nb\n  eth0: x y z\n",
        {"host/network_received_bytes_per_s", "host/network_sent_bytes_per_s", "host/loopback_bytes_per_s"},
    ),
    "no /proc/diskstats": (
        "proc/diskstats",
        None,
        {"host/disk_read_bytes_per_s", "host/disk_written_bytes_per_s"},
    ),
    "half a line in /proc/diskstats": (
        "proc/diskstats",
        " 259 0 nvme0n1 9\n",
        {"host/disk_read_bytes_per_s", "host/disk_written_bytes_per_s"},
    ),
    "a counter that ran backwards": (
        "proc/diskstats",
        " 259 0 nvme0n1 9 9 0 9 9 9 500 9 0 9 9\n",
        {"host/disk_read_bytes_per_s"},
    ),
    "nonsense in the group's use": ("sys/fs/cgroup/job/cpu.stat", "usage_usec ?\n", {"host/cpu_cores"}),
}


@pytest.mark.parametrize("sentence", UNKNOWN)
def test_what_cannot_be_read_is_left_out_and_the_rest_stays(machine: Machine, sentence: str) -> None:
    file, text, want = UNKNOWN[sentence]
    if file.startswith("sys/fs"):
        machine.limit(cores=2)
        machine.throttle(1.0, 1, 0)
    machine.disk(nvme0n1=(100, 100))
    sampler = HardwareSampler(machine.root)
    sampler.look(0.0, {})
    whole = set(sampler.look(1.0, {})[HOST])
    if text is None:
        (machine.root / file).unlink()
    else:
        machine.put(file, text)
    assert whole - set(sampler.look(2.0, {})[HOST]) == want
    assert want <= whole


def test_a_disk_that_is_added_makes_no_burst(machine: Machine) -> None:
    machine.disk(sdb=(10**9, 10**9))
    sampler = HardwareSampler(machine.root)
    sampler.look(0.0, {})
    machine.folder("sys/block/sdb/device")
    assert "host/disk_read_bytes_per_s" not in sampler.look(60.0, {})[HOST]
    assert sampler.look(61.0, {})[HOST]["host/disk_read_bytes_per_s"] == 0.0


def test_a_machine_that_shows_nothing_still_has_its_affinity(tmp_path: Path) -> None:
    assert HardwareSampler(tmp_path).look(0.0, {0: 1}) == {HOST: {"host/cpu_limit_cores": 8.0}}
