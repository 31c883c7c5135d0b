"""The sampler on this machine: real processes that burn and end, and what a look costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from gscalar.model.hardware import HARDWARE
from gscalar.observation.hardware import HOST, HardwareSampler
from gscalar.testing.processes import wait_until

# A worker whose child burns; on a line of input the child ends, and another one is made.
PARENT = """
import subprocess, sys
burn = [sys.executable, "-c", "while True: pass"]
child = subprocess.Popen(burn)
print("burning", flush=True)
for line in sys.stdin:
    child.kill()
    child.wait()
    child = subprocess.Popen(burn)
    print("again", flush=True)
child.kill()
child.wait()
"""
LIMIT_S = 60.0


@pytest.fixture
def parent(spawn: Callable[..., subprocess.Popen[Any]]) -> subprocess.Popen[str]:
    process = spawn([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "burning\n"
    return process


def test_a_childs_work_is_its_workers_and_the_hosts_and_its_end_takes_nothing_back(
    parent: subprocess.Popen[str],
) -> None:
    assert parent.stdin is not None
    assert parent.stdout is not None
    sampler = HardwareSampler()
    sampler.look(time.monotonic(), {0: parent.pid})
    worked: list[float] = []

    def look() -> dict[int, dict[str, float]]:
        found = sampler.look(time.monotonic(), {0: parent.pid})
        worked.append(found[0].get("worker/cpu_cores", -1.0))
        return found

    def busy() -> bool:
        time.sleep(0.2)
        found = look()
        return found[0]["worker/cpu_cores"] > 0.05 and found[HOST]["host/cpu_cores"] > 0.05

    wait_until(busy, LIMIT_S, "work that is seen")
    for _ in range(3):
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "again\n"
        look()
    assert min(worked) >= 0.0
    assert look()[0]["worker/memory_bytes"] > 2**20
    parent.stdin.close()
    parent.wait(LIMIT_S)
    assert 0 not in sampler.look(time.monotonic(), {0: parent.pid})


def test_every_counter_of_this_machine_is_in_the_table_and_possible() -> None:
    sampler = HardwareSampler()
    sampler.look(time.monotonic(), {0: os.getpid()})
    time.sleep(0.1)
    found = sampler.look(time.monotonic(), {0: os.getpid()})
    for values in found.values():
        assert set(values) <= set(HARDWARE)
        assert all(value >= 0 for value in values.values())
    host = found[HOST]
    assert {"host/cpu_cores", "host/memory_bytes", "host/loopback_bytes_per_s"} <= set(host)
    assert host["host/memory_bytes"] <= host["host/memory_limit_bytes"]
    assert set(found[0]) == {"worker/cpu_cores", "worker/memory_bytes"}


def test_a_look_costs_under_a_hundredth_of_a_core_at_one_a_second() -> None:
    sampler, num_looks = HardwareSampler(), 30
    before_s = time.thread_time()
    for second in range(num_looks):  # as many full passes over /proc as half a minute has
        sampler.look(float(second), {0: os.getpid()})
    assert (time.thread_time() - before_s) / num_looks < 0.010
