"""Cores by affinity and by both kinds of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gscalar.engines.local.cores import count_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/7\n0::/\n"}
# sentence: (files, cores)
CASES = {
    "without control groups: affinity": ({}, 8),
    "version 2 without a quota": (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
    "version 2 with a quota": (V2 | {"sys/fs/cgroup/a/b/cpu.max": "200000 100000\n"}, 2),
    "the smallest of the groups above counts": (
        V2 | {"sys/fs/cgroup/a/b/cpu.max": "400000 100000\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"},
        3,
    ),
    "half a core is one": (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
    "a quota above the affinity changes nothing": (V2 | {"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 8),
    "a path that a container does not see: the mount": (V2 | {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
    "version 1 with a quota": (
        V1
        | {
            "sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    "version 1 without a quota": (
        V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
        8,
    ),
    "nonsense is no quota": (V2 | {"sys/fs/cgroup/cpu.max": "lots\n"}, 8),
}


@pytest.mark.parametrize("sentence", CASES)
def test_cores(tmp_path: Path, sentence: str) -> None:
    files, want = CASES[sentence]
    assert count_cores(tree(tmp_path, files)) == want
