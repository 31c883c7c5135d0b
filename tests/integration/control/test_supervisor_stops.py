"""Ctrl-C, SIGTERM, `gscalar cancel`: how a run is stopped, and what is said about it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from gscalar.model import events
from gscalar.state.records import RecordWriter
from gscalar.testing.processes import marked, wait_until


def ends(run) -> tuple[list[str], list[str]]:
    outcomes = [ended.outcome for ended in run.events(events.AttemptEnded)]
    return outcomes, [ended.status for ended in run.events(events.RunEnded)]


def test_sigterm_stops_at_a_step_border_and_exits_75(begin) -> None:
    run = begin("init", "forever", workers=2, environment={"GSCALAR_GRACE_S": "30"})
    run.wait_for_step(3, ranks=2)
    asked_ns = time.time_ns()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert ends(run) == (["stopped"], ["interrupted"])
    (request,) = run.events(events.StopRequested)
    assert request.reason == "preempted"
    assert 29 < (request.deadline_ns - asked_ns) / 1e9 < 31
    stop = json.loads((run.folder.control / "stop.json").read_text())
    assert stop == {"reason": "preempted", "deadline_ns": request.deadline_ns}
    for rank in range(2):
        assert run.events(events.StopAcknowledged, file=f"a000-r{rank:05d}.rec")
    assert f"gscalar run --resume {run.run}" in run.err


def test_ctrl_c_once_stops_the_same_way_with_a_summary_and_exits_130(begin) -> None:
    run = begin("init", "forever", workers=2)
    run.wait_for_step(3, ranks=2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.err
    assert ends(run) == (["stopped"], ["interrupted"])
    assert "press Ctrl-C again to kill now" in run.err
    assert "interrupted after" in run.err


def test_ctrl_c_twice_kills_now(begin) -> None:
    run = begin("init", "deaf", "forever", workers=2)
    run.wait_for_step(3, ranks=2)
    run.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C again" in run.err, 10)
    started = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.err
    assert time.monotonic() - started < 5
    assert ends(run) == (["killed"], ["interrupted"])


def test_workers_that_do_not_stop_in_time_are_killed_and_the_exit_says_that_work_was_lost(begin) -> None:
    run = begin("init", "deaf", "forever", workers=2, environment={"GSCALAR_GRACE_S": "1"})
    run.wait_for_step(3, ranks=2)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1
    assert ends(run) == (["killed"], ["interrupted"])
    assert "did not stop in time" in run.err


def test_a_stop_before_the_first_step_loses_nothing(begin) -> None:
    run = begin("init", "beat=load", "silent=1", "forever")
    wait_until(lambda: run.events(events.WorkerStarted, file="a000-r00000.rec"), 30)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err


def test_a_plain_script_is_stopped_by_the_signal_itself(begin) -> None:
    run = begin(command=["python", "-c", "import time; print('up', flush=True); time.sleep(600)"], workers=2)
    wait_until(lambda: "up" in run.out, 30)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1
    assert ends(run) == (["killed"], ["interrupted"])
    assert run.events(events.AttemptEnded)[0].failure is None


def test_the_python_below_a_shell_is_asked_and_not_the_shell(begin, mark: str) -> None:
    script = f"{sys.executable} -m gscalar.testing.scripted_worker init forever print={mark}; exit $?"
    command = ["bash", "-c", script]
    run = begin(command=command)
    run.wait_for_step(3)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert ends(run) == (["stopped"], ["interrupted"])


def test_a_worker_that_is_told_to_stop_by_somebody_else_stops_all(begin) -> None:
    run = begin("init", "forever", workers=2)
    run.wait_for_step(3, ranks=2)
    os.kill(run.pids()[1], signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert ends(run) == (["stopped"], ["interrupted"])


def test_a_stop_between_attempts_ends_the_run(begin) -> None:
    run = begin("init", "step=1", "signal=9", options=("--set", "retries=50"))
    wait_until(lambda: "next attempt in 4.00 s" in run.err, 60)
    started = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert time.monotonic() - started < 3
    assert ends(run)[1] == ["interrupted"]


def test_training_that_ends_while_it_is_asked_to_stop_is_completed(begin) -> None:
    run = begin("init", "deaf", "step=5", "silent=1", "finish")
    run.wait_for_step(5)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.err
    assert ends(run) == (["completed"], ["completed"])


def test_cancel_ends_a_run_and_refuses_an_ended_one(begin, gscalar, show) -> None:
    run = begin("init", "forever", workers=2)
    run.wait_for_step(3, ranks=2)
    done = gscalar("cancel", run.run[:6])
    assert (done.returncode, done.stdout) == (0, f"{run.run} cancelled\n"), done.stderr
    assert run.wait() == 75
    assert ends(run) == (["stopped"], ["cancelled"])
    assert show(run.run)["status"] == "cancelled"
    again = gscalar("cancel", run.run)
    assert again.returncode == 2
    assert "[run-not-active]" in again.stderr


def test_cancel_by_file_alone_reaches_a_supervisor(begin) -> None:
    run = begin("init", "forever")
    run.wait_for_step(2)
    (run.folder.control / "cancel").touch()
    assert run.wait() == 75
    assert ends(run)[1] == ["cancelled"]


def test_a_supervisor_that_is_killed_leaves_nobody_and_the_run_can_go_on(begin, mark: str, show) -> None:
    run = begin(
        "init", f"a0:daemon={mark}", f"a0:child={mark}", "a0:forever", "resume=3", "until=9", "finish", workers=2
    )
    run.wait_for_step(3, ranks=2)
    assert len([pid for pid in marked(mark) if pid != run.process.pid]) >= 6
    run.process.kill()
    gone_s = wait_until(lambda: not [pid for pid in marked(mark) if pid != run.process.pid], 10)
    print(f"all were gone {gone_s * 1000:.0f} ms after the supervisor")
    assert gone_s < 2.0
    run.process.wait()
    resumed = begin(arguments=["--resume", run.run])
    assert resumed.wait() == 0, resumed.err
    shown = show(run.run)
    assert shown["status"] == "completed"
    assert [(attempt["index"], attempt["outcome"]) for attempt in shown["attempts"]] == [
        (0, "killed"),
        (1, "completed"),
    ]


def test_a_killed_process_group_of_the_supervisor_leaves_nobody(begin, mark: str) -> None:
    run = begin("init", f"daemon={mark}", "forever", workers=2)
    run.wait_for_step(2, ranks=2)
    os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert wait_until(lambda: not marked(mark), 10) < 2.0


def test_supervisor_keeper_and_workers_killed_at_once_leave_no_worker(begin, mark: str) -> None:
    run = begin("init", "forever", workers=2)
    run.wait_for_step(2, ranks=2)
    keeper = psutil.Process(run.process.pid).children()[0]
    run.process.kill()
    keeper.kill()
    run.process.wait()
    assert wait_until(lambda: not marked(mark), 10) < 2.0


def test_a_run_that_goes_on_is_not_resumed_a_second_time(begin, gscalar) -> None:
    run = begin("init", "forever")
    run.wait_for_step(2)
    refused = gscalar("run", "--resume", run.run)
    assert refused.returncode == 2
    assert "[run-active]" in refused.stderr
    assert sorted(path.name for path in run.folder.records.iterdir()) == ["a000-r00000.rec", "supervisor-a000.rec"]
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


def test_a_script_that_runs_alone_is_not_joined_by_a_supervisor(begin, gscalar) -> None:
    run = begin("init", "step=1", "finish")
    assert run.wait() == 0
    # This process, as if it were a script that goes on with the run by itself.
    start = psutil.Process().create_time()
    header = events.Header(1, run.run, 1, 0, 1, "worker", socket.gethostname(), os.getpid(), start, 0, "0")
    writer = RecordWriter(run.folder.worker_record(1, 0), header)
    refused = gscalar("run", "--resume", run.run, "--set", "config.more=1")
    assert (refused.returncode, "[run-active]" in refused.stderr) == (2, True), refused.stderr
    writer.emit(events.RunEnded(1, "completed"))
    writer.close()
    assert gscalar("run", "--resume", run.run, "--set", "config.more=1").returncode == 0


def test_a_completed_run_goes_on_only_where_something_new_is_asked_of_it(begin, gscalar, show) -> None:
    run = begin("init", "step=1", "finish")
    assert run.wait() == 0
    refused = gscalar("run", "--resume", run.run)
    assert (refused.returncode, "[run-completed]" in refused.stderr) == (2, True), refused.stderr
    assert len(show(run.run)["attempts"]) == 1


def test_resuming_takes_new_values_and_records_them_for_the_attempt(begin, show) -> None:
    run = begin("init", "step=2", "a0:exit=9", "finish", options=("--set", "retries=0"))
    assert run.wait() == 1
    resumed = begin(arguments=["--resume", run.run, "--workers", "2", "--set", "config.lr=3e-4"])
    assert resumed.wait() == 0, resumed.err
    job = json.loads((run.folder.path / "job-a001.json").read_text())
    assert (job["spec"]["workers"], job["spec"]["config"], job["origins"]["config.lr"]) == (2, {"lr": 3e-4}, "flag")
    assert json.loads(run.folder.job_file.read_text())["spec"]["workers"] == 1
    assert show(run.run)["attempts"][1]["world"] == 2
    third = begin(arguments=["--resume", run.run, "--set", "config.lr=1e-3"])
    assert third.wait() == 0
    assert show(run.run)["attempts"][2]["world"] == 2


def test_output_without_a_reader_does_not_end_the_training(begin, spawn, home: Path, mark: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gscalar", "run", "--", "python", "-m", "gscalar.testing.scripted_worker"]
    process = spawn(
        [*words, "init", *["print=line", "step=1"] * 20, "until=100", "finish", f"print={mark}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    process.stdout.close()
    process.stderr.close()
    assert process.wait(60) == 0
