"""Each fault on a real run: it happens, it ends, and nothing is left, whatever becomes of the injector."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gscalar.base.errors import UserError
from gscalar.model import events
from gscalar.state.home import Home
from gscalar.state.records import verify_record
from gscalar.testing.faults import (
    AfterS,
    AtStep,
    Corrupt,
    Delay,
    Fault,
    FaultPlan,
    FillDisk,
    Kill,
    Slow,
    SlowLoader,
    Stop,
    effects,
    inject,
    injecting,
)
from gscalar.testing.faults.disk import free_bytes
from gscalar.testing.faults.process_table import LinuxProcesses, find_loaders
from gscalar.testing.processes import alive, wait_until

NOW = AfterS(0.0)
LIMIT_S = 60.0
FAULTS = [sys.executable, "-m", "gscalar.testing.faults"]
# A step of these is a fixed amount of work, not of time; `child` also forks a process that calls itself a loader.
WORK = """
import os, sys, time
from gscalar.testing.scripted_worker import ScriptedWorker
worker = ScriptedWorker()
worker.pace_s = 0.0
worker.do_init("")
if sys.argv[1] == "child":
    if os.fork() == 0:
        open("/proc/self/comm", "w").write("pt_data_worker")
        while True:
            sum(range(10_000))
while True:
    sum(range(100_000))
    worker.do_step("1")
"""
LOAD = """
import torch, time
from torch.utils.data import DataLoader
for batch in DataLoader(torch.zeros(100_000), num_workers=2):
    print("loaded", flush=True)
    time.sleep(60)
"""


def state(pid: int) -> str:
    """Return the state letter of a process, or nothing where it is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return text[text.rindex(")") + 2]
    return ""


def plan(*faults: Fault, seed: int = 0) -> FaultPlan:
    return FaultPlan(faults, seed)


def steps(run: Any, rank: int = 0, attempt: int = 0) -> list[events.Step]:
    found: list[events.Step] = run.events(events.Step, file=f"a{attempt:03d}-r{rank:05d}.rec")
    return found


def test_a_rank_is_killed_at_its_step_and_the_log_says_so(begin, home: Path) -> None:
    run = begin("init", "a0:forever", "a1:resume=5", "until=20", "finish", workers=2)
    (entry,) = inject(plan(Kill(target=1, when=AtStep(5))), home, run.run)
    assert run.wait() == 0, run.err
    assert (entry.did, entry.rank, entry.attempt, entry.pids) == ("killed", 1, 0, (run.pids()[1],))
    (failure,) = run.events(events.Failure)
    assert (failure.rank, failure.kind) == (1, "SIGKILL")
    last = steps(run, rank=1)[-1]
    assert 5 <= entry.step <= last.step
    assert last.time_ns <= failure.time_ns
    assert entry.time_ns <= failure.time_ns


def test_the_supervisor_is_killed_and_the_injector_goes_on_with_the_resumed_run(begin, home: Path) -> None:
    # The first attempt is slow: an injector that gets no core for a moment must not find it at step 15 already.
    first_attempt = ("a0:pace=0.3", "a0:forever")
    run = begin("init", *first_attempt, "a1:resume=5", "a1:forever", "a2:resume=8", "until=20", "finish", workers=2)
    run.wait_for_step(2)
    first = run.pids()
    faults = plan(Kill(target="supervisor", when=AtStep(3)), Kill(target=1, when=AtStep(15)))
    with injecting(faults, home, run.run) as injection:
        assert run.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(alive, first)), 10.0, "the workers end with their supervisor")
        resumed = begin(arguments=["--resume", run.run])
        injected = injection.wait(LIMIT_S)
    assert resumed.wait() == 0, resumed.err
    assert [(entry.did, entry.attempt) for entry in injected] == [("killed", 0), ("killed", 1)]
    assert injected[0].pids == (run.process.pid,)


def test_all_are_killed_and_nobody_is_left(begin, home: Path) -> None:
    run = begin("init", "forever", workers=2)
    run.wait_for_step(1, ranks=2)
    (entry,) = inject(plan(Kill(target="all", when=NOW)), home, run.run)
    assert entry.pids == (run.process.pid, *run.pids())
    assert run.wait() == -signal.SIGKILL
    wait_until(lambda: not any(map(alive, entry.pids)), 10.0, "all are gone")


def test_a_stopped_rank_is_seen_stopped_and_goes_on(begin, home: Path) -> None:
    run = begin("init", "forever")
    run.wait_for_step(3)
    (pid,) = run.pids()
    with injecting(plan(Stop(rank=0, for_s=1.5, when=NOW)), home, run.run) as injection:
        wait_until(lambda: state(pid) == "T", 5.0, "stopped")
        injected = injection.wait(LIMIT_S)
    assert state(pid) in "RS"
    assert [entry.did for entry in injected] == ["stopped", "continued"]
    assert (injected[1].time_ns - injected[0].time_ns) / 1e9 >= 1.5
    done = len(steps(run))
    wait_until(lambda: len(steps(run)) > done + 5, 20.0, "further steps")
    times_ns = [step.time_ns for step in steps(run)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times_ns)) >= 1.4e9


@pytest.mark.parametrize("how", ["the injector alone", "its whole process group"])
def test_an_injector_that_is_killed_leaves_nobody_stopped(begin, spawn, home: Path, how: str) -> None:
    run = begin("init", "forever", workers=2)
    run.wait_for_step(3, ranks=2)
    words = ["--stop", "0", "--for", "600", "--slow", "1", "--factor", "20"]
    injector = spawn([*FAULTS, run.run, *words], stdout=subprocess.PIPE)
    assert json.loads(injector.stdout.readline())["did"] == "stopped"
    wait_until(lambda: state(run.pids()[0]) == "T", 5.0, "stopped")
    if how == "the injector alone":
        injector.kill()
    else:
        os.killpg(injector.pid, signal.SIGKILL)
    wait_until(lambda: state(run.pids()[0]) != "T", 5.0, "continued")
    done = [len(steps(run, rank)) for rank in (0, 1)]
    wait_until(lambda: all(len(steps(run, rank)) > done[rank] + 5 for rank in (0, 1)), 20.0, "both go on")
    assert [state(pid) == "T" for pid in run.pids()] == [False, False]


def test_the_end_of_the_block_lets_everything_go(begin, home: Path) -> None:
    run = begin("init", "forever")
    run.wait_for_step(3)
    (pid,) = run.pids()

    def fail_meanwhile() -> None:
        with injecting(plan(Stop(rank=0, for_s=600.0, when=NOW)), home, run.run):
            wait_until(lambda: state(pid) == "T", 5.0, "stopped")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_meanwhile()
    assert state(pid) in "RS"


def test_a_slow_rank_does_half_the_work_of_the_other(begin, home: Path) -> None:
    run = begin(command=["python", "-c", WORK, "plain"], workers=2)
    run.wait_for_step(3, ranks=2)
    before = [len(steps(run, rank)) for rank in (0, 1)]
    injected = inject(plan(Slow(rank=0, factor=2.0, for_s=6.0, when=NOW)), home, run.run)
    slow, other = (len(steps(run, rank)) - before[rank] for rank in (0, 1))
    held = float(injected[-1].detail.split()[2])
    print(f"held for {held}, {other / slow:.2f} times as slow")
    # The share of a core that a process gets is up to everybody on the machine; how long it was held is not.
    assert 0.4 < held < 0.6
    assert 1.3 < other / slow < 3.5


def test_a_delayed_rank_is_late_at_every_third_step(begin, home: Path) -> None:
    run = begin("init", "pace=0.06", "forever", workers=2)
    run.wait_for_step(3, ranks=2)
    injected = inject(plan(Delay(rank=1, delay_s=0.3, every_steps=3, for_s=4.0, when=NOW)), home, run.run)
    held = [entry for entry in injected if entry.did == "held"]
    assert len(held) >= 4
    assert min(later.step - earlier.step for earlier, later in itertools.pairwise(held)) >= 2
    done = steps(run, rank=1)
    late = [
        later.step
        for earlier, later in itertools.pairwise(done)
        if injected[0].time_ns < later.time_ns < injected[-1].time_ns and later.time_ns - earlier.time_ns >= 0.29e9
    ]
    # A hold that the end cut off, or one whose step was just being written, is none of the late steps.
    assert len(late) >= len(held) - 1


def test_only_the_loader_of_a_rank_is_slowed(begin, home: Path) -> None:
    run = begin(command=["python", "-c", WORK, "child"])
    run.wait_for_step(3)
    (pid,) = run.pids()
    (loader,) = find_loaders(LinuxProcesses().descendants(pid))
    seen: dict[int, set[str]] = {pid: set(), loader.pid: set()}
    with injecting(plan(SlowLoader(rank=0, factor=4.0, for_s=2.0, when=NOW)), home, run.run) as injection:
        ends_s = time.monotonic() + 1.5
        while time.monotonic() < ends_s:
            for each, letters in seen.items():
                letters.add(state(each))
        injected = injection.wait(LIMIT_S)
    assert "T" in seen[loader.pid]
    assert "T" not in seen[pid]
    assert {entry.pids for entry in injected} == {(loader.pid,)}
    assert state(loader.pid) == "R"


def test_a_loader_without_processes_is_an_error(begin, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "_LOADER_WAIT_S", 0.5)
    run = begin("init", "forever")
    run.wait_for_step(1)
    with pytest.raises(UserError, match="num_workers=0"):
        inject(plan(SlowLoader(rank=0, factor=2.0, when=NOW)), home, run.run)


@pytest.mark.torch
def test_the_processes_of_a_real_loader_are_found(spawn) -> None:
    trainer = spawn([sys.executable, "-c", LOAD], stdout=subprocess.PIPE)
    assert trainer.stdout.readline() == b"loaded\n"
    found = find_loaders(LinuxProcesses().descendants(trainer.pid))
    assert [each.parent for each in found] == [trainer.pid] * 2


def test_damage_to_a_record_is_named_by_its_readers(begin, home: Path, show: Callable[[str], dict[str, Any]]) -> None:
    run = begin("init", "until=150", "silent=3", "until=160", "finish")
    run.wait_for_step(150)
    file = "records/a000-r00000.rec"
    inject(plan(Corrupt(file=file, how="zero", num_bytes=64, when=NOW), seed=4), home, run.run)
    assert run.wait() == 0, run.err
    assert not verify_record(run.folder.path / file).sound
    # What the index had read before the damage it does not read again: built anew, it tells.
    Home(home).index.unlink()
    assert show(run.run)["damage"]["files"] == ["a000-r00000.rec"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted; as root, with CAP_SYS_ADMIN: sudo make test")
    yield folder
    # Who has just removed a file there may hold it open for a moment longer.
    wait_until(lambda: subprocess.run(["umount", folder], check=False, capture_output=True).returncode == 0, 30)


def test_a_disk_is_full_for_a_while(begin, home: Path, small_disk: Path) -> None:
    run = begin("init", "forever")
    run.wait_for_step(1)
    before = free_bytes(small_disk)
    faults = plan(FillDisk(path=small_disk, leave_bytes=100_000, for_s=2.0, when=NOW))
    with injecting(faults, home, run.run) as injection:
        wait_until(lambda: free_bytes(small_disk) < 110_000, 5.0, "filled")
        assert free_bytes(small_disk) >= 96_000
        with pytest.raises(OSError, match="No space"):
            (small_disk / "more").write_bytes(bytes(200_000))
        (small_disk / "more").unlink()
        injected = injection.wait(LIMIT_S)
    assert [entry.did for entry in injected] == ["filled", "removed"]
    assert free_bytes(small_disk) == before


def test_an_injector_that_is_killed_leaves_no_filler(begin, spawn, small_disk: Path) -> None:
    run = begin("init", "forever")
    run.wait_for_step(1)
    injector = spawn([*FAULTS, run.run, "--fill-disk", small_disk], stdout=subprocess.PIPE)
    assert json.loads(injector.stdout.readline())["did"] == "filled"
    assert free_bytes(small_disk) < 4096
    injector.kill()
    wait_until(lambda: not list(small_disk.iterdir()), 5.0, "the filler is removed")


def test_the_command_refuses_runs_that_are_not_there_or_have_ended(begin, home: Path) -> None:
    run = begin("init", "step=3", "finish")
    assert run.wait() == 0, run.err

    def call(name: str) -> tuple[int, str]:
        done = subprocess.run(
            [*FAULTS, name, "--kill", "0"], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return done.returncode, done.stderr

    for name, code in ((run.run, "run-not-active"), ("nothing", "run-not-found")):
        exit_code, err = call(name)
        assert exit_code == 2
        assert f"[{code}]" in err
        assert "Traceback" not in err
