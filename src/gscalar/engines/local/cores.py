"""How many cores this process may really use: affinity and the limits of its control group.

A container on a 64-core host with a quota of two cores has two. `os.cpu_count()` says 64, and 64
threads on two cores are slower than two. The quota is quota / period of every group from ours up
to the root, the smallest counting (cgroup v2: `cpu.max`; v1: `cpu.cfs_quota_us`, `cpu.cfs_period_us`).
"""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/")


def count_cores(root: Path = _ROOT) -> int:
    """Return the number of cores this process may use, at least 1. `root` holds proc/ and sys/."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in group_folders("cpu", root):
        quota = _read_quota(folder)
        if quota is not None:
            cores = min(cores, quota)
    return max(1, int(cores + 0.5) if cores >= 1 else 1)


def group_folders(controller: str, root: Path = _ROOT) -> list[Path]:
    """Return this process's control-group folders for a controller, the innermost first.

    Both hierarchies are looked at. Inside a container the path in /proc/self/cgroup may not exist
    below the mount; the mount itself is then the group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / "sys/fs/cgroup"
        if controllers == "":
            mount = base  # version 2
        elif controller in controllers.split(","):
            mount = next((base / name for name in (controllers, controller) if (base / name).is_dir()), base)
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:depth])
            if folder.is_dir():
                folders.append(folder)
    return folders


def _read_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None
