"""How many cores this process may really use: affinity and the limits of its control group.

A container on a 64-core host with a quota of two cores has two. `os.cpu_count()` says 64, and 64
threads on two cores are slower than two.
"""

from __future__ import annotations

import os
from pathlib import Path

from gscalar.observation.containers import read_limits

_ROOT = Path("/")


def count_cores(root: Path = _ROOT) -> int:
    """Return the number of cores this process may use, at least 1. `root` holds proc/ and sys/."""
    quota = read_limits(root / "proc", root / "sys/fs/cgroup").get("cpu_cores", float("inf"))
    cores = min(float(len(os.sched_getaffinity(0))), quota)
    return max(1, int(cores + 0.5) if cores >= 1 else 1)
