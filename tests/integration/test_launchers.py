"""One script alone, under `gscalar run` and under torchrun, and the ways in which each can end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.model.events import CheckpointFailed
from gscalar.state.checkpoints import read_latest, verify_checkpoint
from gscalar.state.home import Home
from gscalar.state.records import Frame, read_record
from gscalar.testing.processes import wait_until

GSCALAR = [sys.executable, "-m", "gscalar"]
TOY = Path(__file__).parent / "scripts" / "toy_train.py"
MATRIX = Path(__file__).parents[2] / "benchmarks" / "_resume_script.py"
LIMIT_S = 240.0


class Started:
    """A process with its output in files."""

    def __init__(self, process: subprocess.Popen[Any], out: Path, err: Path) -> None:
        self.process = process
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def wait_for(self, line: str) -> None:
        wait_until(lambda: line in self.out or self.process.poll() is not None, LIMIT_S, line)
        assert line in self.out, self.err


Start = Callable[..., Started]
Show = Callable[..., dict[str, Any]]


@pytest.fixture
def start(
    spawn: Callable[..., subprocess.Popen[Any]], script_environment: dict[str, str], home: Path, tmp_path: Path
) -> Start:
    """Start a command with what TOY shall tell the script."""
    count = 0

    def call(command: list[Any], toy: dict[str, Any] | None = None, **environment: str) -> Started:
        nonlocal count
        count += 1
        out, err = tmp_path / f"out{count}", tmp_path / f"err{count}"
        variables = {**script_environment, "GSCALAR_HOME": str(home), "TOY": json.dumps(toy or {}), **environment}
        with out.open("w") as out_file, err.open("w") as err_file:
            options = {"stdin": subprocess.DEVNULL, "cwd": tmp_path, "env": variables}
            return Started(spawn(command, stdout=out_file, stderr=err_file, **options), out, err)

    return call


@pytest.fixture
def show(home: Path) -> Show:
    """Return what `gscalar show` says, of the only run or of one by name."""

    def call(run: str | None = None) -> dict[str, Any]:
        name = run or next(iter((home / "runs").iterdir())).name
        done = subprocess.run([*GSCALAR, "show", name, "--json"], check=True, capture_output=True, timeout=60)
        return dict(json.loads(done.stdout))

    return call


def supervised(world: int, *options: str) -> list[Any]:
    return [*GSCALAR, "run", "--workers", str(world), *options, "--", "python", str(TOY)]


def outcomes(run: dict[str, Any]) -> list[str]:
    return [attempt["outcome"] for attempt in run["attempts"]]


# ---- the same script everywhere -------------------------------------------------------------------


def test_alone_and_under_gscalar_run_it_is_the_same_training(start: Start, show: Show) -> None:
    for command, name in (([sys.executable, TOY], "alone"), (supervised(1), "launched")):
        started = start(command, {"init": {"name": name}})
        assert started.wait() == 0, started.err
    alone, launched = show("alone"), show("launched")
    assert alone["digests"]["weights"] == launched["digests"]["weights"]
    for run in (alone, launched):
        assert (run["status"], run["project"], run["steps"], run["tokens"]) == ("completed", "toys", 10, 30)
        assert outcomes(run) == ["completed"]
        assert [checkpoint["step"] for checkpoint in run["checkpoints"]][-1] == 10


@pytest.mark.torch
@pytest.mark.slow
def test_torchruns_second_attempt_goes_on_after_a_rank_was_killed(
    start: Start, show: Show, gang: Callable[..., None], tmp_path: Path
) -> None:
    told = {"MATRIX_PLANS": "plain", "MATRIX_FOLDER": str(tmp_path)}
    gang(MATRIX, 2, GSCALAR_RUN_ID="undisturbed", **told)
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    started = start([sys.executable, *agent, MATRIX], MATRIX_KILL="worker:5", **told)
    assert started.wait() == 0, started.err
    (name,) = (path.name for path in Home(tmp_path / "home").runs.iterdir() if path.name != "undisturbed")
    run = show(name)
    assert run["status"] == "completed"
    assert outcomes(run) == ["failed", "completed"]
    assert run["attempts"][1]["from_step"] == 3
    assert run["digests"]["weights"] == show("undisturbed")["digests"]["weights"]


# ---- stopped --------------------------------------------------------------------------------------


def test_alone_sigterm_saves_and_exits_resumable_and_the_run_goes_on_by_its_id(start: Start, show: Show) -> None:
    told = {"steps": 400, "pace_s": 0.01, "init": {"checkpoint": {"every_s": 1e6}}}
    started = start([sys.executable, TOY], told, GSCALAR_RUN_ID="mine")
    started.wait_for("step 5")
    started.process.send_signal(signal.SIGTERM)
    assert started.wait() == 75, started.err
    run = show("mine")
    assert (run["status"], outcomes(run)) == ("interrupted", ["stopped"])
    (checkpoint,) = run["checkpoints"]
    assert checkpoint["step"] == run["steps"] >= 5
    again = start([sys.executable, TOY], {**told, "pace_s": 0.0}, GSCALAR_RUN_ID="mine")
    assert again.wait() == 0, again.err
    run = show("mine")
    assert (run["status"], run["steps"]) == ("completed", 400)
    assert run["attempts"][1]["from_step"] == checkpoint["step"]


def test_alone_a_run_that_is_cancelled_is_cancelled(start: Start, show: Show, home: Path) -> None:
    started = start([sys.executable, TOY], {"steps": 4000, "pace_s": 0.01}, GSCALAR_RUN_ID="mine")
    started.wait_for("step 5")
    done = subprocess.run([*GSCALAR, "cancel", "mine"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert started.wait() == 75
    assert show("mine")["status"] == "cancelled"


def test_alone_sigterm_before_the_loop_ends_it_at_once_and_that_is_no_completion(start: Start, show: Show) -> None:
    started = start([sys.executable, TOY], {"wait": True})
    started.wait_for("waiting")
    started.process.send_signal(signal.SIGTERM)
    assert started.wait() == 128 + signal.SIGTERM
    run = show()
    assert (run["status"], outcomes(run), run["steps"]) == ("interrupted", ["stopped"], 0)


ENDS: dict[str, tuple[dict[str, Any], int, str]] = {
    "an exception after the loop": ({"error": "no such file"}, 1, "no such file"),
    "an exit code": ({"exit_code": 3}, 3, "exit code 3"),
}


@pytest.mark.parametrize("case", ENDS)
def test_alone_a_bad_end_is_a_failed_run(case: str, start: Start, show: Show) -> None:
    told, code, words = ENDS[case]
    started = start([sys.executable, TOY], told)
    assert started.wait() == code
    run = show()
    assert (run["status"], outcomes(run), run["steps"]) == ("failed", ["failed"], 10)
    assert words in run["attempts"][0]["failure"]["message"]


# ---- bad data, bad numbers, a full disk -----------------------------------------------------------


def test_data_smaller_than_the_world_is_a_failed_run_that_is_not_tried_again(start: Start, show: Show) -> None:
    started = start(supervised(3), {"size": 2})
    assert started.wait() == 1
    run = show()
    assert (run["status"], outcomes(run)) == ("failed", ["failed"])
    assert "data-too-small" in run["attempts"][0]["failure"]["message"]
    assert "data-too-small" in started.err
    assert "workers: 2" in started.err


def test_a_loss_that_is_not_finite_is_told_and_training_goes_on(start: Start, show: Show) -> None:
    started = start(supervised(2), {"nan_at": 3})
    assert started.wait() == 0, started.err
    run = show()
    assert (run["status"], run["steps"]) == ("completed", 10)
    assert (run["nonfinite"]["step"], run["nonfinite"]["rank"], run["nonfinite"]["count"]) == (3, 1, 1)
    assert "not finite" in started.err


def test_a_loss_that_is_not_finite_stops_where_it_is_told_to(start: Start, show: Show) -> None:
    started = start(supervised(2, "--set", "on_nonfinite=stop"), {"nan_at": 3})
    assert started.wait() == 1
    run = show()
    assert (run["status"], outcomes(run), run["steps"]) == ("failed", ["failed"], 2)
    failure = run["attempts"][0]["failure"]
    assert "step 3 on rank 1" in failure["message"]
    assert (run["nonfinite"]["step"], run["nonfinite"]["rank"]) == (3, 1)
    assert "step 3 on rank 1" in started.err


def test_a_disk_that_fills_while_a_checkpoint_is_written_costs_only_that_checkpoint(
    start: Start, show: Show, home: Path
) -> None:
    # 200,000 features are 1.6 MB an array, and a file may have 1 MB after step 5.
    started = start([sys.executable, TOY], {"features": 200_000, "size": 8, "limit_after": 5}, GSCALAR_RUN_ID="mine")
    assert started.wait() == 0, started.err
    run = show("mine")
    assert (run["status"], run["steps"]) == ("completed", 10)
    steps = [checkpoint["step"] for checkpoint in run["checkpoints"]]
    assert steps
    assert max(steps) <= 4
    latest = read_latest(Home(home).run("mine").checkpoints)
    assert latest is not None
    verify_checkpoint(latest)
    assert latest.name.endswith(str(max(steps)))
    again = start([sys.executable, TOY], {"features": 200_000, "size": 8, "steps": 12}, GSCALAR_RUN_ID="mine")
    assert again.wait() == 0, again.err
    assert show("mine")["attempts"][1]["from_step"] == max(steps)


def test_all_ranks_agree_to_try_the_last_checkpoint_again_where_it_failed(start: Start, show: Show, home: Path) -> None:
    # The checkpoint of step 10 fails, and the end of the loop wants one of the same step.
    started = start(supervised(2), {"features": 200_000, "size": 8, "limit_after": 9})
    assert started.wait() == 0, started.err
    run = show()
    assert (run["status"], outcomes(run), run["steps"]) == ("completed", ["completed"], 10)
    assert [checkpoint["step"] for checkpoint in run["checkpoints"]][-1] == 8
    record = Home(home).run(run["id"]).worker_record(0, 0)
    told = [item.event for item in read_record(record) if isinstance(item, Frame)]
    assert [event.step for event in told if isinstance(event, CheckpointFailed)] == [10, 10]
