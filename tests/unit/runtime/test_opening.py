"""Who this worker is, which run it belongs to, and whose values count."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gscalar.base.errors import EnvironmentProblem, SpecError
from gscalar.model import events
from gscalar.model.parsing import load_spec, to_plain
from gscalar.runtime.opening import Opened, open_worker
from gscalar.state.home import Home
from gscalar.state.records import Frame, read_record

Open = Callable[..., Opened]


@pytest.fixture
def opening(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open a worker with arguments of `init`, under an environment; its record is closed after the test."""
    opened: list[Opened] = []

    def call(arguments: Mapping[str, Any] | None = None, **environment: Any) -> Opened:
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        opened.append(open_worker(arguments or {}, None))
        return opened[-1]

    yield call
    for each in opened:
        each.writer.close()


def events_of(opened: Opened) -> list[Any]:
    return [item.event for item in read_record(opened.writer.path) if isinstance(item, Frame)]


def job_file(folder: Path, text: str = "", **overrides: str) -> Path:
    """Write what `gscalar run` hands to its workers."""
    words = [f"{name}={value}" for name, value in overrides.items()]
    resolved = load_spec(f"command: [python, train.py]\n{text}".encode(), "job.yaml", words, {}, {})
    path = folder / "job.json"
    job = {"run": "r1", "project": "default", "name": "named", "created_ns": 1, "spec": to_plain(resolved.spec)}
    path.write_text(json.dumps({**job, "origins": dict(resolved.origins)}))
    return path


def supervised(path: Path, rank: int = 0, world: int = 1) -> dict[str, Any]:
    return {
        "GSCALAR_GANG": "token", "GSCALAR_RUN_ID": "r1", "GSCALAR_ATTEMPT": 2, "GSCALAR_JOB": path,
        "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1234,
    }  # fmt: skip


# ---- alone ----------------------------------------------------------------------------------------


def test_a_script_alone_is_a_new_run_of_a_world_of_one(
    opening: Open, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["some/train.py", "--fast"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "-m", "some.train", "--fast"])
    opened = opening({"project": "p", "seed": 3})
    assert (opened.launch.rank, opened.launch.world, opened.attempt, opened.supervised) == (0, 1, 0, False)
    assert opened.name == "train"
    assert opened.folder.path.parent == Home(home).runs
    job = json.loads(opened.folder.job_file.read_text())
    assert (job["run"], job["project"], job["name"]) == (opened.run_id, "p", "train")
    assert job["spec"]["command"] == [sys.executable, "-u", "-m", "some.train", "--fast"]
    assert (job["origins"]["seed"], job["spec"]["seed"]) == ("script", 3)
    assert opening().run_id != opened.run_id


def test_its_record_says_who_writes_what_was_asked_for_and_that_it_began(opening: Open) -> None:
    opened = opening({"project": "p", "config": {"lr": 0.5}})
    header, began, started = events_of(opened)
    assert (header.run, header.attempt, header.rank, header.world, header.writer) == (opened.run_id, 0, 0, 1, "worker")
    assert header.pid == os.getpid()
    assert isinstance(began, events.AttemptStarted)
    assert (began.attempt, began.world, began.pids) == (0, 1, (os.getpid(),))
    assert (started.project, started.spec["config"]) == ("p", {"lr": 0.5})
    assert started.origins["config.lr"] == "script"
    assert started.environment["python"]


def test_a_run_that_is_named_goes_on_with_its_next_attempt(opening: Open) -> None:
    opened = [opening({}, GSCALAR_RUN_ID="mine") for _ in range(3)]
    assert [(each.run_id, each.attempt) for each in opened] == [("mine", 0), ("mine", 1), ("mine", 2)]
    assert len({each.writer.path for each in opened}) == 3


def test_a_job_file_that_is_there_stays_as_it_is(opening: Open) -> None:
    first = opening({"seed": 1}, GSCALAR_RUN_ID="mine")
    before = first.folder.job_file.read_bytes()
    opening({"seed": 2})
    assert first.folder.job_file.read_bytes() == before


def test_requests_to_an_attempt_before_are_not_those_to_this_one(opening: Open) -> None:
    first = opening({}, GSCALAR_RUN_ID="mine")
    (first.folder.control / "cancel").touch()
    (first.folder.control / "stop.json").touch()
    second = opening()
    assert list(second.folder.control.iterdir()) == []


def test_the_name_given_is_the_runs_name(opening: Open) -> None:
    assert opening({"name": "mine"}).name == "mine"


# ---- launched -------------------------------------------------------------------------------------


def test_under_a_supervisor_the_job_says_everything(opening: Open, tmp_path: Path) -> None:
    opened = opening({}, **supervised(job_file(tmp_path, "seed: 9\n"), rank=1, world=2))
    assert (opened.run_id, opened.attempt, opened.name, opened.supervised) == ("r1", 2, "named", True)
    assert opened.writer.path.name == "a002-r00001.rec"
    assert opened.resolved.spec.seed == 9
    kinds = {type(event) for event in events_of(opened)}
    assert events.AttemptStarted not in kinds, "that is the supervisor's to tell"
    assert not opened.folder.job_file.exists(), "that is the supervisor's to write"


SERVERS = "workers: 2\nplan:\n  sync: {kind: parameter_servers}\n"


def test_the_chief_of_parameter_servers_is_alone_in_its_loop(opening: Open, tmp_path: Path) -> None:
    opened = opening({}, **supervised(job_file(tmp_path, SERVERS), rank=0, world=4))
    assert (opened.launch.rank, opened.launch.world, opened.gang.world) == (0, 1, 4)
    header, *_ = events_of(opened)
    assert (header.rank, header.world) == (0, 4)


def test_who_serves_the_chief_keeps_its_rank(opening: Open, tmp_path: Path) -> None:
    opened = opening({}, **supervised(job_file(tmp_path, SERVERS), rank=3, world=4))
    assert (opened.launch.rank, opened.gang.rank) == (3, 3)
    assert opened.writer.path.name == "a002-r00003.rec"


def test_another_launchers_processes_are_counted_as_chief_workers_and_servers(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchrun = {"RANK": 0, "WORLD_SIZE": 5, "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    opened = opening({"plan": {"sync": {"kind": "parameter_servers"}}}, **torchrun)
    assert opened.resolved.spec.workers == 3
    (began,) = (event for event in events_of(opened) if isinstance(event, events.AttemptStarted))
    assert began.world == 5


VALUES: dict[str, tuple[str, dict[str, str], dict[str, Any], Any, str]] = {
    "the script's own, where the job says nothing": ("", {}, {"seed": 5}, 5, "script"),
    "the job's over the script's": ("seed: 9\n", {}, {"seed": 5}, 9, "spec"),
    "a flag's over the job's": ("seed: 9\n", {"seed": "11"}, {"seed": 5}, 11, "flag"),
    "the default, where nobody says anything": ("", {}, {}, 0, "default"),
}


@pytest.mark.parametrize("case", VALUES)
def test_the_value_that_counts_is(case: str, opening: Open, tmp_path: Path) -> None:
    text, overrides, arguments, want, origin = VALUES[case]
    opened = opening(arguments, **supervised(job_file(tmp_path, text, **overrides)))
    assert opened.resolved.spec.seed == want
    assert opened.resolved.origins.get("seed", "default") == origin


def test_the_jobs_hyperparameters_count_over_the_scripts_key_by_key(opening: Open, tmp_path: Path) -> None:
    path = job_file(tmp_path, "config: {lr: 0.5}\nplan: {accumulate: 4}\n")
    arguments = {"config": {"lr": 0.1, "layers": 2}, "plan": {"accumulate": 2, "clip_norm": 1.0}}
    opened = opening(arguments, **supervised(path))
    assert opened.resolved.spec.config == {"lr": 0.5, "layers": 2}
    assert (opened.resolved.spec.plan.accumulate, opened.resolved.spec.plan.clip_norm) == (4, 1.0)


def test_the_environment_counts_over_the_script_without_a_job(opening: Open) -> None:
    opened = opening({"seed": 5, "plan": {"accumulate": 2}}, GSCALAR_SET="seed=6 plan.accumulate=3")
    assert (opened.resolved.spec.seed, opened.resolved.spec.plan.accumulate) == (6, 3)
    assert opened.resolved.origins["seed"] == "environment"


def test_a_typing_error_in_the_jobs_config_is_refused_with_the_nearest_name(opening: Open, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="layer") as caught:
        opening({"config": {"lr": 0.1, "layers": 2}}, **supervised(job_file(tmp_path, "config: {layer: 3}\n")))
    assert caught.value.code == "unknown-key"
    assert "layers" in caught.value.next_step


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a key that no spec has": ({"projekt": "x"}, "unknown-key"),
    "a key of the plan that no plan has": ({"plan": {"accumulat": 2}}, "unknown-key"),
    "another type": ({"seed": "three"}, "wrong-type"),
    "a value that can never work": ({"plan": {"accumulate": 0}}, "impossible-value"),
    "what is decided before the script runs": ({"workers": 2}, "unknown-key"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_init_refuses(case: str, opening: Open, home: Path) -> None:
    arguments, code = BAD_ARGUMENTS[case]
    with pytest.raises(SpecError) as caught:
        opening(arguments)
    assert caught.value.code == code
    assert list(Home(home).runs.glob("*")) == [], "nothing is created"


# ---- other launchers ------------------------------------------------------------------------------


def torchrun(rank: int, attempt: int = 0) -> dict[str, Any]:
    return {
        "TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_RESTART_COUNT": attempt, "SLURM_JOB_ID": 5,
        "RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "node0", "MASTER_PORT": 29500,
    }  # fmt: skip


def test_all_ranks_and_restarts_of_torchrun_find_the_same_run(opening: Open) -> None:
    opened = [opening({}, **torchrun(rank, attempt)) for rank, attempt in ((0, 0), (3, 0), (0, 1))]
    assert len({each.run_id for each in opened}) == 1
    assert [each.writer.path.name for each in opened] == ["a000-r00000.rec", "a000-r00003.rec", "a001-r00000.rec"]
    assert not any(each.supervised for each in opened)
    assert [isinstance(events_of(each)[1], events.AttemptStarted) for each in opened] == [True, False, True]


def test_two_programs_of_one_launch_are_two_runs(opening: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set()
    for script in ("pretrain.py", "finetune.py"):
        monkeypatch.setattr(sys, "argv", [script])
        ids.add(opening({}, **torchrun(0)).run_id)
    assert len(ids) == 2


def test_a_home_that_cannot_be_written_is_a_problem_of_the_machine(tmp_path: Path, opening: Open) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem) as caught:
        opening({}, GSCALAR_HOME=tmp_path / "file" / "home")
    assert caught.value.code == "home-not-writable"


def test_a_program_that_a_worker_starts_has_a_run_of_its_own(
    opening: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = opening(**supervised(job_file(tmp_path)))
    before = len(events_of(worker))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    started = opening(**supervised(job_file(tmp_path)))
    assert started.run_id != worker.run_id
    assert started.launch.world == 1
    assert len(events_of(worker)) == before
