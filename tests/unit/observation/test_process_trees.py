"""CPU time and memory of process trees, read from a /proc that the test writes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gscalar.observation.process_trees import ProcessTrees

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Proc:
    """A /proc of the test's own. Times are in seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self,
        pid: int,
        parent: int,
        *,
        own_s: float = 0.0,
        waited_s: float = 0.0,
        pages: int = 10,
        started: int = 5,
        children: str | None = "",
    ) -> None:
        """Write a process; without `children` its kernel does not tell them."""
        task = self.folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        own, waited = round(own_s * TICKS_PER_S), round(waited_s * TICKS_PER_S)
        # 3 state, 4 parent, ..., 14 utime, 15 stime, 16 cutime, 17 cstime, ..., 22 starttime, 23 vsize, 24 rss
        fields = ["S", parent, *[0] * 9, own, 0, waited, 0, 20, 0, 1, 0, started, 10**9, pages, 0, 0]
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(map(str, fields))}\n")
        if children is not None:
            (task / "children").write_text(children)

    def end(self, pid: int) -> None:
        """Take a process away."""
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_first_look_has_levels_only(proc: Proc) -> None:
    proc.put(10, 1, own_s=9.0, pages=7)
    assert ProcessTrees(proc.folder).look(100.0, {0: 10}) == {0: {"worker/memory_bytes": 7 * PAGE_BYTES}}


def test_children_and_their_children_count(proc: Proc) -> None:
    proc.put(10, 1, own_s=1.0, children="11 ")
    proc.put(11, 10, own_s=2.0, children="12 ")
    proc.put(12, 11, own_s=3.0)
    proc.put(13, 1, own_s=50.0)  # somebody else's
    trees = ProcessTrees(proc.folder)
    trees.look(100.0, {0: 10})
    proc.put(10, 1, own_s=1.5, children="11 ")
    proc.put(11, 10, own_s=2.25, children="12 ")
    proc.put(12, 11, own_s=4.0)
    proc.put(13, 1, own_s=99.0)
    got = trees.look(102.0, {0: 10})[0]
    assert got == {"worker/cpu_cores": (0.5 + 0.25 + 1.0) / 2.0, "worker/memory_bytes": 30 * PAGE_BYTES}


# sentence: (what happens between two looks a second apart, cores: None is unknown)
def _a_child_ends_and_is_waited_for(proc: Proc) -> None:
    proc.end(11)
    proc.put(10, 1, own_s=1.0, waited_s=40.5)  # the child had worked half a second more


def _a_child_ends_and_nobody_waits(proc: Proc) -> None:
    proc.end(11)
    proc.put(10, 1, own_s=1.25)


def _a_child_is_born_and_works(proc: Proc) -> None:
    proc.put(10, 1, own_s=1.0, children="11 12 ")
    proc.put(12, 10, own_s=0.75, started=500)


def _a_child_is_born_and_ends(proc: Proc) -> None:
    proc.put(10, 1, own_s=1.0, waited_s=0.5, children="11 ")


def _the_worker_ends(proc: Proc) -> None:
    proc.end(10)


def _the_workers_pid_is_taken_by_another(proc: Proc) -> None:
    proc.put(10, 1, own_s=70.0, started=999)


CASES = {
    "a child that ends and was waited for leaves its time in the sum": (_a_child_ends_and_is_waited_for, 0.5),
    "a child that nobody waits for takes its time along: unknown, and not negative": (
        _a_child_ends_and_nobody_waits,
        None,
    ),
    "a new child's time counts from its birth": (_a_child_is_born_and_works, 0.75),
    "a child that was never seen counts once it was waited for": (_a_child_is_born_and_ends, 0.5),
    "a worker that has ended has no values": (_the_worker_ends, None),
    "a reused pid is not the worker": (_the_workers_pid_is_taken_by_another, None),
}


@pytest.mark.parametrize("sentence", CASES)
def test_cores(proc: Proc, sentence: str) -> None:
    change, want = CASES[sentence]
    proc.put(10, 1, own_s=1.0, children="11 ")
    proc.put(11, 10, own_s=40.0)
    trees = ProcessTrees(proc.folder)
    trees.look(100.0, {0: 10})
    change(proc)
    got = trees.look(101.0, {0: 10})
    assert got.get(0, {}).get("worker/cpu_cores") == want
    assert (0 in got) == (proc.folder.joinpath("10").exists() and "reused" not in sentence)


def test_children_of_other_threads_are_found_now_and_then_and_bring_no_burst(proc: Proc) -> None:
    proc.put(10, 1, own_s=1.0)
    trees = ProcessTrees(proc.folder)
    trees.look(100.0, {0: 10})
    proc.put(11, 10, own_s=30.0)  # in no file of children
    assert trees.look(101.0, {0: 10})[0]["worker/memory_bytes"] == 10 * PAGE_BYTES
    found = trees.look(111.0, {0: 10})[0]
    assert found == {"worker/memory_bytes": 20 * PAGE_BYTES, "worker/cpu_cores": 0.0}
    proc.put(11, 10, own_s=30.5)
    assert trees.look(112.0, {0: 10})[0]["worker/cpu_cores"] == 0.5


def test_a_child_that_was_born_counts_in_the_look_that_passes_over_all_too(proc: Proc) -> None:
    proc.put(10, 1, own_s=1.0)
    trees = ProcessTrees(proc.folder)
    trees.look(100.0, {0: 10})
    proc.put(10, 1, own_s=1.0, children="11 ")
    proc.put(11, 10, own_s=5.0)
    assert trees.look(110.0, {0: 10})[0]["worker/cpu_cores"] == 0.5


def test_a_kernel_without_files_of_children_still_shows_them(proc: Proc) -> None:
    proc.put(10, 1, children=None)
    proc.put(11, 10, children=None)
    assert ProcessTrees(proc.folder).look(0.0, {0: 10})[0]["worker/memory_bytes"] == 20 * PAGE_BYTES


def test_a_child_that_went_to_another_parent_is_not_ours(proc: Proc) -> None:
    proc.put(10, 1, children="11 ")
    proc.put(11, 1)
    assert ProcessTrees(proc.folder).look(0.0, {0: 10})[0]["worker/memory_bytes"] == 10 * PAGE_BYTES


def test_each_rank_has_its_own_tree(proc: Proc) -> None:
    proc.put(10, 1, pages=1)
    proc.put(20, 1, pages=2)
    got = ProcessTrees(proc.folder).look(0.0, {0: 10, 1: 20, 2: 30})
    assert {rank: values["worker/memory_bytes"] for rank, values in got.items()} == {0: PAGE_BYTES, 1: 2 * PAGE_BYTES}


def test_nonsense_in_a_process_is_no_process(proc: Proc) -> None:
    proc.put(10, 1)
    (proc.folder / "10/stat").write_text("10 (a) S what\n")
    assert ProcessTrees(proc.folder).look(0.0, {0: 10}) == {}
