"""Which process launched us, on a /proc made for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gscalar.runtime import processes
from gscalar.runtime.processes import launcher_process, process_name

AGENT, SHELL, WORKER = 40, 50, 60
WORKER_ENVIRON = {"RANK": "1", "LOCAL_RANK": "1"}


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A worker (60) that a shell (50) started, which an agent (40) started; only the agent has no RANK."""
    boot = tmp_path / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot-1\n")
    add_process(tmp_path, 1, parent=0, started=1, environ=b"")
    add_process(tmp_path, AGENT, parent=1, started=400, environ=b"HOME=/root\0RANKING=3\0")
    add_process(tmp_path, SHELL, parent=AGENT, started=500, environ=b"HOME=/root\0RANK=1\0LOCAL_RANK=1\0")
    add_process(tmp_path, WORKER, parent=SHELL, started=600, environ=b"RANK=1\0LOCAL_RANK=1\0")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: WORKER)
    monkeypatch.setattr(os, "getppid", lambda: SHELL)
    return tmp_path


def add_process(proc: Path, pid: int, *, parent: int, started: int, environ: bytes) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    (folder / "stat").write_text(f"{pid} (a name) with (parentheses)) {' '.join(fields)}")
    (folder / "environ").write_bytes(environ)


def test_the_launcher_is_the_nearest_ancestor_without_its_variables(proc: Path) -> None:
    assert launcher_process(WORKER_ENVIRON, ("RANK", "LOCAL_RANK")) == f"boot-1:{AGENT}:400"


def test_a_name_that_the_worker_itself_lacks_is_not_looked_for(proc: Path) -> None:
    assert launcher_process(WORKER_ENVIRON, ("TORCHELASTIC_RUN_ID", "RANK")) == f"boot-1:{AGENT}:400"


def test_without_names_it_is_this_process(proc: Path) -> None:
    assert launcher_process(WORKER_ENVIRON, ()) == f"boot-1:{WORKER}:600"


def test_an_ancestor_that_cannot_be_read_is_taken_as_the_launcher(proc: Path) -> None:
    (proc / str(SHELL) / "environ").unlink()
    assert launcher_process(WORKER_ENVIRON, ("RANK",)) == f"boot-1:{SHELL}:500"


def test_without_proc_host_and_pid_are_left(proc: Path) -> None:
    (proc / "sys/kernel/random/boot_id").unlink()
    assert process_name(WORKER) == f"{os.uname().nodename}:{WORKER}"
