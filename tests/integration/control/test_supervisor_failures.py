"""Exits, signals and hangs are told apart, and what follows from each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from gscalar.control.engine import GangRequest
from gscalar.engines.local.engine import LocalEngine
from gscalar.model import events
from gscalar.testing.processes import alive


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def outcomes(run) -> list[str]:
    return [ended.outcome for ended in run.events(events.AttemptEnded)]


def test_a_run_that_goes_well(begin) -> None:
    run = begin("init", "print=one line", "until=20", "finish", workers=2)
    assert run.wait() == 0, run.err
    assert run.out.splitlines()[0] == "one line"
    assert outcomes(run) == ["completed"]
    assert [ended.status for ended in run.events(events.RunEnded)] == ["completed"]
    assert len(set(run.pids())) == 2
    for wanted in ("completed", "2 workers, 1 attempt", "gscalar show", str(run.folder.path)):
        assert wanted in run.err


def test_a_killed_worker_is_recorded_within_a_second_and_the_run_goes_on(begin) -> None:
    run = begin("init", "a0:forever", "a1:resume=5", "until=20", "finish", workers=2)
    run.wait_for_step(3, ranks=2)
    killed_ns = time.time_ns()
    os.kill(run.pids()[1], signal.SIGKILL)
    assert run.wait() == 0, run.err
    (failure,) = run.events(events.Failure)
    assert (failure.rank, failure.failure_class, failure.kind) == (1, "killed", "SIGKILL")
    assert 0 <= (failure.time_ns - killed_ns) / 1e9 < 1.0
    first = run.events(events.Step, file="a001-r00000.rec")[0]
    seen_ms, next_s = (failure.time_ns - killed_ns) / 1e6, (first.time_ns - killed_ns) / 1e9
    print(f"failure after {seen_ms:.0f} ms, next step after {next_s:.2f} s")
    assert (first.time_ns - killed_ns) / 1e9 < 15
    assert outcomes(run) == ["failed", "completed"]
    assert "rank 1 was killed" in run.err


def test_what_a_kill_does_to_the_other_ranks_is_not_its_cause(begin) -> None:
    run = begin("init", "step=3", "a0:r1:silent=0.3", "a0:r1:signal=9", "a0:r0:peerloss", "finish", workers=2)
    assert run.wait() == 0, run.err
    failure = run.failure()
    assert (failure["rank"], failure["failure_class"]) == (1, "killed")
    assert "Connection closed by peer" not in run.err + run.out


def test_the_same_error_at_the_same_step_is_not_retried_twice_and_shown_once_for_four_ranks(begin) -> None:
    run = begin("init", "step=4", "raise=bad batch", workers=4)
    assert run.wait() == 1
    assert outcomes(run) == ["failed", "failed"]
    assert run.failure()["failure_class"] == "user_error"
    assert run.failure()["step"] == 4
    assert (run.err + run.out).count("Traceback (most recent call last)") == 1
    assert "not restarted: the same error came twice at step 4" in run.err
    assert [ended.status for ended in run.events(events.RunEnded)] == ["failed"]


def test_the_budget_and_the_back_off(begin) -> None:
    run = begin("init", "step=2", "signal=11", options=("--set", "retries=2"))
    assert run.wait() == 1
    assert outcomes(run) == ["failed"] * 3
    assert run.failure(2)["kind"] == "SIGSEGV"
    assert "all 2 restarts are used" in run.err
    ends = [ended.time_ns / 1e9 for ended in run.events(events.AttemptEnded)]
    starts = [started.time_ns / 1e9 for started in run.events(events.AttemptStarted)]
    assert 0.5 <= starts[1] - ends[0] < 0.95
    assert 1.0 <= starts[2] - ends[1] < 1.95


def test_every_attempt_has_a_fresh_rendezvous(begin) -> None:
    code = "import os; print(os.environ['MASTER_PORT'], flush=True); os.kill(os.getpid(), 9)"
    run = begin(command=["python", "-c", code], options=("--set", "retries=2"))
    assert run.wait() == 1
    ports = [line for line in run.out.splitlines() if line.isdigit()]
    assert len(ports) == len(set(ports)) == 3


def test_a_worker_that_is_stopped_is_named_as_hung_within_the_limit(begin) -> None:
    run = begin(
        "init", "a0:forever", "step=2", "finish", workers=3, options=("--set", "hang_after_s=2", "--set", "retries=1")
    )
    run.wait_for_step(3, ranks=3)
    stopped_ns = time.time_ns()
    os.kill(run.pids()[1], signal.SIGSTOP)
    assert run.wait() == 0, run.err
    (failure,) = run.events(events.Failure)
    assert (failure.rank, failure.failure_class) == (1, "hung")
    assert "its process is stopped" in failure.message
    assert (failure.time_ns - stopped_ns) / 1e9 < 3.0
    assert "rank 1 gave no heartbeat" in run.err


def test_of_silent_ranks_the_one_behind_is_hung_and_the_others_wait(begin) -> None:
    run = begin(
        "init",
        "meet=start",
        "step=5",
        "r0:step=1",
        "a0:silent=60",
        "finish",
        workers=2,
        options=("--set", "hang_after_s=1.5"),
    )
    assert run.wait() == 0, run.err
    failure = run.failure()
    assert (failure["rank"], failure["step"], failure["failure_class"]) == (1, 5, "hung")
    assert "rank 0 was waiting for it" in failure["message"]


def test_collectives_that_time_out_because_a_rank_is_stopped_do_not_hide_the_hang(begin) -> None:
    culprit, victim = ("a0:r1:signal=19", "a0:r1:silent=60"), ("a0:r0:silent=1.8", "a0:r0:peerloss")
    actions = ("init", "meet=start", "step=3", *victim, *culprit, "finish")
    run = begin(*actions, workers=2, options=("--set", "hang_after_s=2"))
    assert run.wait() == 0, run.err
    assert (run.failure()["rank"], run.failure()["failure_class"]) == (1, "hung")


def test_a_script_that_never_calls_init_is_never_called_hung(begin) -> None:
    run = begin("silent=3", options=("--set", "hang_after_s=0.5"))
    assert run.wait() == 0, run.err


def test_long_silence_before_the_first_heartbeat_is_no_hang(begin) -> None:
    run = begin("init", "silent=2", "step=2", "finish", options=("--set", "hang_after_s=0.5"))
    assert run.wait() == 0, run.err


def test_heartbeats_keep_a_rank_alive_and_those_that_wait_for_it(begin) -> None:
    beats = ("beat=evaluation", "silent=0.5") * 5
    run = begin(
        "init", "step=2", *(f"r0:{beat}" for beat in beats), "r1:silent=2.5", "finish",
        workers=2, options=("--set", "hang_after_s=1.2"),
    )  # fmt: skip
    assert run.wait() == 0, run.err


def test_a_script_that_fails_before_init_is_a_recorded_failed_run_without_a_retry(begin, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    run = begin(command=["python", "broken.py"], workers=2)
    assert run.wait() == 1
    assert outcomes(run) == ["failed"]
    assert (run.failure()["kind"], run.failure()["failure_class"]) == ("ModuleNotFoundError", "user_error")
    assert (run.err + run.out).count("Traceback") == 1
    assert "before it calls `gscalar.init`" in run.err


def test_a_syntax_error_is_found(begin, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    run = begin(command=["python", "broken.py"])
    assert run.wait() == 1
    assert run.failure()["kind"] == "SyntaxError"


def test_a_script_that_exits_with_a_code_shows_what_it_said_last(begin) -> None:
    run = begin("print=usage: train.py --lr LR", "exit=3", workers=2)
    assert run.wait() == 1
    assert (run.failure()["kind"], run.failure()["failure_class"]) == ("exit", "user_error")
    assert "exit code 3" in run.err


def test_a_shell_that_reports_a_kill_reports_a_kill(begin) -> None:
    run = begin(
        command=["bash", "-c", "python3 -c 'import os; os.kill(os.getpid(), 9)'; exit $?"],
        options=("--set", "retries=0"),
    )
    assert run.wait() == 1
    assert (run.failure()["kind"], run.failure()["failure_class"]) == ("SIGKILL", "killed")


def test_one_rank_may_be_done_early(begin) -> None:
    run = begin("init", "step=1", "r1:silent=1.5", "r1:step=3", "finish", workers=2)
    assert run.wait() == 0, run.err
    assert outcomes(run) == ["completed"]


def test_a_lost_keeper_is_a_lost_attempt_that_leaves_nobody_behind(begin, mark: str) -> None:
    run = begin("init", f"daemon={mark}", "a0:forever", "step=1", "finish", workers=2)
    run.wait_for_step(3, ranks=2)
    (keeper,) = psutil.Process(run.process.pid).children()
    assert "keeper.py" in " ".join(keeper.cmdline())
    first_pids = run.pids()
    keeper.kill()
    assert run.wait() == 0, run.err
    assert run.failure()["failure_class"] == "lost"
    # Whoever adopted them may never collect them: in many containers process 1 does not.
    assert not any(alive(pid) for pid in first_pids)


def test_a_disk_that_is_full_drops_output_and_counts_it(tmp_path: Path) -> None:
    # /dev/full says ENOSPC to every write.
    log = tmp_path / "rank.log"
    log.symlink_to("/dev/full")
    code = "for i in range(1000): print('x' * 99)"
    request = GangRequest(
        run="r", attempt=0, token="t" * 32, command=("python3", "-c", code), folder=tmp_path, workers=1, logs=(log,)
    )
    gang = LocalEngine().launch(request)
    try:
        exits = gang.poll(20)
    finally:
        gang.close()
    assert [(each.code, each.dropped_bytes) for each in exits] == [(0, 100_000)]


def test_a_home_whose_disk_fills_does_not_end_the_training(begin, home: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        home.symlink_to(small / "home")
        (small / "home").mkdir()
        run = begin("init", "step=3", "silent=2", "until=300", "print=still here", "finish", workers=2)
        run.wait_for_step(3, ranks=2)
        fill(small / "filler")
        code = run.wait()
        assert code == 0, run.err
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_two_runs_at_once_in_one_home(begin, show) -> None:
    first = begin("init", "until=100", "finish", workers=2)
    first_run = first.run
    second = begin("init", "until=100", "finish", workers=2)
    assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    assert second.run != first_run
    assert {show(run)["status"] for run in (first_run, second.run)} == {"completed"}


def test_a_failure_names_the_next_commands(begin) -> None:
    run = begin("init", "step=1", "r1:raise=x", "silent=9", workers=2, options=("--set", "retries=0"))
    assert run.wait() == 1
    assert re.search(r"gscalar logs \w+ --rank 1", run.err)
    assert f"gscalar run --resume {run.run}" in run.err
