"""Control groups of both versions, as file trees: what they limit, and what is used in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gscalar.observation.containers import Container, ContainerUse, read_limits

GIB = 2**30


def make_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


LIMITS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "v2, the group's own": (
        "0::/job\n",
        {"cgroup.controllers": "cpu memory", "job/memory.max": "1048576\n", "job/cpu.max": "150000 100000\n"},
        {"memory_bytes": 1048576, "cpu_cores": 1.5}),
    "v2, the parent's is tighter": (
        "0::/pod/job\n",
        {"cgroup.controllers": "cpu", "pod/memory.max": "4096\n", "pod/job/memory.max": "8192\n",
         "pod/cpu.max": "max 100000"},
        {"memory_bytes": 4096}),
    "v2, in a container whose path is not below its mount": (
        "0::/../../kubepods/pod1\n",
        {"cgroup.controllers": "memory", "memory.max": "4096\n", "cpu.max": "200000 100000\n"},
        {"memory_bytes": 4096, "cpu_cores": 2.0}),
    "v2, no limit": ("0::/\n", {"cgroup.controllers": "", "memory.max": "max\n", "cpu.max": "max 100000\n"}, {}),
    "v1": (
        "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n",
        {"memory/job/memory.limit_in_bytes": "1048576\n", "cpu/job/cpu.cfs_quota_us": "50000\n",
         "cpu/job/cpu.cfs_period_us": "100000\n"},
        {"memory_bytes": 1048576, "cpu_cores": 0.5}),
    "v1, no limit": (
        "5:memory:/\n4:cpu,cpuacct:/\n",
        {"memory/memory.limit_in_bytes": "9223372036854771712\n", "cpu/cpu.cfs_quota_us": "-1\n",
         "cpu/cpu.cfs_period_us": "100000\n"},
        {}),
    "nonsense is no limit": (
        "what is this\n0::/job\n",
        {"job/memory.max": "lots\n", "job/cpu.max": "200000\n", "job/cpu.cfs_quota_us": "5\n",
         "job/cpu.cfs_period_us": "0\n"},
        {}),
    "without control groups there is no limit": ("", {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS)
def test_the_limits_of_control_groups(case: str, tmp_path: Path) -> None:
    groups, files, want = LIMITS[case]
    make_files(tmp_path / "proc/self", {"cgroup": groups})
    make_files(tmp_path / "cgroup", files)
    assert read_limits(tmp_path / "proc", tmp_path / "cgroup") == want


# A pod of Kubernetes on version 2: the pod has 8 cores and 16 GiB, this container of it 4 and 12 GiB.
POD_V2 = {
    "cgroup.controllers": "cpu memory\n",
    "kubepods/cpu.max": "max 100000\n",
    "kubepods/memory.max": "max\n",
    "kubepods/pod7/cpu.max": "800000 100000\n",
    "kubepods/pod7/cpu.stat": "usage_usec 900000000\nnr_periods 500\nnr_throttled 1\nthrottled_usec 77\n",
    "kubepods/pod7/memory.max": f"{16 * GIB}\n",
    "kubepods/pod7/memory.current": f"{9 * GIB}\n",
    "kubepods/pod7/c1/cpu.max": "400000 100000\n",
    "kubepods/pod7/c1/cpu.stat": (
        "usage_usec 12500000\nuser_usec 12000000\nsystem_usec 500000\nnr_periods 400\nnr_throttled 30\n"
    ),
    "kubepods/pod7/c1/memory.max": f"{12 * GIB}\n",
    "kubepods/pod7/c1/memory.current": f"{8 * GIB}\n",
    "kubepods/pod7/c1/memory.stat": (
        f"anon {3 * GIB}\nfile {5 * GIB}\nshmem {GIB}\ninactive_file {2 * GIB}\nactive_file {2 * GIB}\n"
        f"file_dirty {GIB // 2}\nfile_writeback {GIB // 4}\nslab_reclaimable {GIB // 4}\n"
    ),
}  # fmt: skip

# Docker on version 1, seen from the host: cpu and cpuacct mounted apart.
DOCKER_V1 = {
    "cpu/docker/a/cpu.cfs_quota_us": "150000\n",
    "cpu/docker/a/cpu.cfs_period_us": "100000\n",
    "cpu/docker/a/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 99\n",
    "cpu/cpu.cfs_quota_us": "-1\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "cpuacct/docker/a/cpuacct.usage": "2500000000\n",
    "cpuacct/cpuacct.usage": "990000000000\n",
    "memory/docker/a/memory.limit_in_bytes": f"{4 * GIB}\n",
    "memory/docker/a/memory.usage_in_bytes": f"{3 * GIB}\n",
    "memory/docker/a/memory.stat": (
        f"cache {GIB}\ninactive_file 1\nactive_file 1\ndirty 1\ntotal_inactive_file {GIB}\n"
        f"total_active_file {GIB // 2}\ntotal_dirty {GIB // 2}\ntotal_writeback 0\n"
    ),
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
}
GROUPS_V2 = "0::/kubepods/pod7/c1\n"
GROUPS_V1 = "12:memory:/docker/a\n4:cpuacct:/docker/a\n3:cpu:/docker/a\n0::/docker/a\n"


def without(files: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in files.items() if not name.endswith(names)}


# sentence: (the process's groups, files, use but for throttling)
USES: dict[str, tuple[str, dict[str, str], ContainerUse]] = {
    "version 2: the tightest group's own use, without clean file pages and slabs": (
        GROUPS_V2,
        POD_V2,
        # 8 GiB less 2 + 2 + 1/4 that can be given back, of which 1/2 + 1/4 cannot be at once.
        ContainerUse(
            cpu_limit_cores=4.0,
            cpu_used_s=12.5,
            memory_limit_bytes=12 * GIB,
            memory_used_bytes=8 * GIB - 4 * GIB - GIB // 4 + GIB // 2 + GIB // 4,
        ),
    ),
    "version 2: where the pod is tighter than the container, its use counts": (
        GROUPS_V2,
        POD_V2
        | {
            "kubepods/pod7/c1/cpu.max": "max 100000\n",
            "kubepods/pod7/c1/memory.max": "max\n",
            "kubepods/pod7/memory.stat": "inactive_file 0\n",
        },
        ContainerUse(cpu_limit_cores=8.0, cpu_used_s=900.0, memory_limit_bytes=16 * GIB, memory_used_bytes=9 * GIB),
    ),
    "version 1: the controllers are folders of their own": (
        GROUPS_V1,
        DOCKER_V1,
        # 3 GiB less 1 + 1/2 of file pages, of which 1/2 are dirty.
        ContainerUse(cpu_limit_cores=1.5, cpu_used_s=2.5, memory_limit_bytes=4 * GIB, memory_used_bytes=2 * GIB),
    ),
    "version 1: cpu and cpuacct mounted together": (
        "4:cpu,cpuacct:/docker/a\n",
        {
            "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "200000\n",
            "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/docker/a/cpuacct.usage": "7000000000\n",
        },
        ContainerUse(cpu_limit_cores=2.0, cpu_used_s=7.0),
    ),
    "a use that cannot be read is not known, and no zero": (
        GROUPS_V2,
        without(POD_V2, "c1/cpu.stat", "c1/memory.stat"),
        ContainerUse(cpu_limit_cores=4.0, memory_limit_bytes=12 * GIB),
    ),
    "nonsense in a use is not known": (
        GROUPS_V2,
        POD_V2 | {"kubepods/pod7/c1/cpu.stat": "usage_usec -\nxyz\n", "kubepods/pod7/c1/memory.current": "\n"},
        ContainerUse(cpu_limit_cores=4.0, memory_limit_bytes=12 * GIB),
    ),
    "no control groups": ("", {}, ContainerUse()),
}


@pytest.mark.parametrize("sentence", USES)
def test_use(tmp_path: Path, sentence: str) -> None:
    groups, files, want = USES[sentence]
    make_files(tmp_path / "proc/self", {"cgroup": groups})
    make_files(tmp_path / "cgroup", files)
    got = Container(tmp_path / "proc", tmp_path / "cgroup").look()
    assert (got.cpu_limit_cores, got.cpu_used_s) == (want.cpu_limit_cores, want.cpu_used_s)
    assert (got.memory_limit_bytes, got.memory_used_bytes) == (want.memory_limit_bytes, want.memory_used_bytes)


def test_throttling_is_told_of_every_group_with_a_quota(tmp_path: Path) -> None:
    make_files(tmp_path / "proc/self", {"cgroup": GROUPS_V2})
    make_files(tmp_path / "cgroup", POD_V2)
    got = Container(tmp_path / "proc", tmp_path / "cgroup").look().throttling
    pod = tmp_path / "cgroup/kubepods/pod7"
    assert got == {pod / "c1": (400, 30), pod: (500, 1)}
