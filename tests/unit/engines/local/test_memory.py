"""The kernel's count of out-of-memory kills, from both kinds of control groups and from the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gscalar.engines.local.memory import count_oom_kills

CASES = {
    "no counter": ({}, 0),
    "version 2": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "oom 5\noom_kill 3\n"}, 3),
    "version 1": (
        {
            "proc/self/cgroup": "4:memory:/x\n0::/\n",
            "sys/fs/cgroup/memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
        2,
    ),
    "the group counts and not the machine": (
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.events": "oom_kill 0\n",
            "proc/vmstat": "oom_kill 9\n",
        },
        0,
    ),
    "without a group's counter the machine's": ({"proc/vmstat": "pgfault 1\noom_kill 9\n"}, 9),
}


@pytest.mark.parametrize("sentence", CASES)
def test_counts(tmp_path: Path, sentence: str) -> None:
    files, want = CASES[sentence]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path) == want
