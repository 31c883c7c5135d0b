from __future__ import annotations

import os
from pathlib import Path

import pytest

from gscalar.control.indexing.freshness import Need, are_current, judge_run, list_runs, mtime_of
from gscalar.control.indexing.scanning import scan_records
from gscalar.state.catalog.rows import RunState
from gscalar.state.home import Home, RunFolder

FILE = "a000-r00000.rec"
FOLDER_NS, FILE_NS = 1_000_000_000_000, 1_030_000_000_000
SETTLED_NS = FILE_NS + 60_000_000_001


@pytest.fixture
def folder(home: Path) -> RunFolder:
    """A run whose record has changed last at FILE_NS, and the folder of its records at FOLDER_NS."""
    found = Home(home).run("one")
    found.create()
    (found.records / FILE).write_bytes(b"abc")
    os.utime(found.records / FILE, ns=(FILE_NS, FILE_NS))
    os.utime(found.records, ns=(FOLDER_NS, FOLDER_NS))
    return found


def state(status: str, *, settled: int | None = None, owned: bool = True) -> RunState:
    owner = {"host": "here", "pid": 7, "pid_start": 1.0} if owned else None
    return RunState(status=status, owner=owner, deleted=False, settled_mtime_ns=settled)


STORED = {FILE: (3, FILE_NS)}
CASES = {
    "a run that is not known": (None, STORED, True, SETTLED_NS, Need.READING),
    "a record has grown": (state("running"), {FILE: (2, FILE_NS)}, True, 0, Need.READING),
    "a record was written anew": (state("running"), {FILE: (3, FILE_NS - 1)}, True, 0, Need.READING),
    "a new record": (state("completed"), {}, True, SETTLED_NS, Need.READING),
    "a record is gone": (state("completed"), STORED | {"a000-r00001.rec": (1, 1)}, True, SETTLED_NS, Need.READING),
    "nothing new of a run that goes on": (state("running"), STORED, True, SETTLED_NS, Need.NOTHING),
    "its owner has died": (state("running"), STORED, False, 0, Need.READING),
    "nobody knows its owner": (state("running", owned=False), STORED, False, 0, Need.NOTHING),
    "the owner of an ended run has gone": (state("completed"), STORED, False, 0, Need.NOTHING),
    "ended a moment ago": (state("failed"), STORED, True, SETTLED_NS - 1, Need.NOTHING),
    "ended, and nothing has moved for a while": (state("failed"), STORED, True, SETTLED_NS, Need.SETTLING),
    "settled": (state("failed", settled=FOLDER_NS), {}, True, SETTLED_NS, Need.NOTHING),
    "settled, and moved after all": (state("failed", settled=FOLDER_NS - 1), {}, True, SETTLED_NS, Need.READING),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_a_run_needs(sentence: str, folder: RunFolder) -> None:
    known, stored, alive, now_ns, want = CASES[sentence]
    mtime_ns = mtime_of(folder.records)
    got = judge_run(folder, mtime_ns, known, lambda: stored, is_alive=lambda _: alive, clock_ns=lambda: now_ns)
    assert got is want


def test_a_process_of_this_host_is_looked_for_where_nothing_else_is_said(folder: RunFolder) -> None:
    gone = RunState(
        status="running", owner={"host": os.uname().nodename, "pid": 0, "pid_start": 0.0}, deleted=False,
        settled_mtime_ns=None,
    )  # fmt: skip
    assert judge_run(folder, None, gone, lambda: STORED) is Need.READING


def test_a_store_is_current_with_files_that_have_not_changed(folder: RunFolder) -> None:
    now = scan_records(folder)
    assert are_current(folder, now)
    assert are_current(folder, now | {"a000-r00001.rec": (1, 1)}), "what was read of a file that is gone stays"
    assert not are_current(folder, {})
    assert not are_current(folder, {FILE: (2, FILE_NS)})
    assert not are_current(folder, {FILE: (3, FILE_NS - 1)})


def test_runs_are_the_folders_that_are_not_hidden(home: Path) -> None:
    place = Home(home)
    assert list_runs(place) is None
    for name in ("b", "a", ".new"):
        (place.runs / name).mkdir(parents=True)
    (place.runs / "notes.txt").touch()
    assert list_runs(place) == ["a", "b"]
