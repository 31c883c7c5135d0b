"""Who is of a run: a pid alone is not enough."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gscalar.testing.faults.process_table import LinuxProcesses, Process, Writer, find_loaders, find_writer

RUN = "7k2m9qx4tz0a"


def process(pid: int, *, parent: int = 1, started_s: float = 100.0, state: str = "S", name: str = "python") -> Process:
    ticks = round(started_s * 100)
    return Process(pid=pid, parent=parent, start_ticks=ticks, started_s=started_s, state=state, name=name)


class Table:
    """A process table of the test's own."""

    def __init__(self, *processes: Process, runs: dict[int, str] | None = None) -> None:
        self.processes = {each.pid: each for each in processes}
        self.runs = runs or {}

    def find(self, pid: int) -> Process | None:
        return self.processes.get(pid)

    def descendants(self, pid: int) -> list[Process]:
        return []

    def run_of(self, pid: int) -> str | None:
        return self.runs.get(pid)

    def send(self, process: Process, signum: int) -> bool:
        raise AssertionError("nothing is sent by looking")


WRITERS = {
    "nobody is known": (None, False),
    "the header's process": (Writer(pid=7, started_s=100.0), True),
    "a boot time that was corrected by a second": (Writer(pid=7, started_s=101.0), True),
    "a pid that was used again ten seconds later": (Writer(pid=7, started_s=90.0), False),
    "a pid that nobody has": (Writer(pid=8, started_s=100.0), False),
    "a zombie": (Writer(pid=9, started_s=100.0), False),
    "a worker that has not called init, by its environment": (Writer(pid=10), True),
    "a pid of another run": (Writer(pid=11), False),
    "a pid without a run": (Writer(pid=7), False),
    "rank that could not be started": (Writer(pid=0), False),
    "the init process": (Writer(pid=1, started_s=0.0), False),
}


@pytest.mark.parametrize("sentence", WRITERS)
def test_is_taken_for_a_process_of_the_run(sentence: str) -> None:
    writer, want = WRITERS[sentence]
    table = Table(
        process(1, started_s=0.0),
        process(7),
        process(9, state="Z"),
        process(10),
        process(11),
        process(0),
        runs={10: RUN, 11: "another", 0: RUN},
    )
    got = find_writer(table, writer, RUN)
    assert (got is not None) is want
    assert got is None or (writer is not None and got.pid == writer.pid)


def entry(proc: Path, pid: int, parent: int, *, name: str = "python", state: str = "S", environ: bytes = b"") -> None:
    """Write what the kernel would show of a process that began 50 s after boot."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {rest} 5000 0 0\n")
    (folder / "environ").write_bytes(environ)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A worker (20) with a DataLoader process, a shell with a child, a zombie; and a stranger."""
    entry(tmp_path, 20, 10, environ=b"HOME=/x\0GSCALAR_RUN_ID=7k2m9qx4tz0a\0A=1\0")
    entry(tmp_path, 21, 20, name="pt_data_worker")
    entry(tmp_path, 22, 20, name="sh (odd) name")
    entry(tmp_path, 23, 22)
    entry(tmp_path, 24, 20, state="Z")
    entry(tmp_path, 30, 10, environ=b"XGSCALAR_RUN_ID=no\0")
    (tmp_path / "meminfo").write_text("")
    return tmp_path


def test_all_living_processes_below_a_worker_are_found(proc: Path) -> None:
    found = LinuxProcesses(proc).descendants(20)
    assert sorted(each.pid for each in found) == [21, 22, 23]
    assert [each.pid for each in find_loaders(found)] == [21]


def test_what_the_table_says_of_a_process(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "boot_time", lambda: 1_000.0)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    table = LinuxProcesses(proc)
    got = table.find(22)
    assert got == Process(pid=22, parent=20, start_ticks=5000, started_s=1050.0, state="S", name="sh (odd) name")
    assert table.find(99) is None


def test_the_run_of_a_process_is_that_of_its_environment(proc: Path) -> None:
    table = LinuxProcesses(proc)
    assert table.run_of(20) == RUN
    assert table.run_of(30) is None
    assert table.run_of(99) is None
