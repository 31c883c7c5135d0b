"""Plain scripts under `gscalar run`, and what is refused before anything is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from gscalar.model import events

GLOO = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(total)
print("total", int(total), "of", dist.get_world_size(), "threads", torch.get_num_threads(), flush=True)
if os.environ["GSCALAR_ATTEMPT"] == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_a_plain_torch_distributed_script_runs_unchanged_and_recovers(begin, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(GLOO)
    run = begin(command=["python", "plain.py"], workers=2)
    assert run.wait() == 0, run.err
    assert [line for line in run.out.splitlines() if line.startswith("total")] == ["total 3 of 2 threads 1"] * 2
    assert (run.failure()["rank"], run.failure()["failure_class"]) == (1, "killed")


def test_a_spec_runs_in_its_own_folder_with_its_environment(begin, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import os; print(os.getcwd(), os.environ['COLOUR'], os.environ['OMP_NUM_THREADS'])"
    )
    (folder / "job.yaml").write_text(
        "command: python train.py\nworkers: 2\nenv: {COLOUR: blue}\nresources: {cpus_per_worker: 7}\n"
    )
    run = begin(arguments=["job"])
    assert run.wait() == 0, run.err
    assert run.out == f"{folder} blue 7\n"
    assert "(job) completed" in run.err


REFUSED = {
    "no path": ([], 2, "Give a job spec"),
    "a path that is nothing": (["absent"], 2, "[spec-not-found]"),
    "a folder without a job": (["empty"], 2, "[spec-not-found]"),
    "a script instead of a spec": (["script.py"], 2, "gscalar run -- python script.py"),
    "a path and a command": (["job.yaml", "--", "true"], 2, "exclude each other"),
    "nothing after the dashes": (["--"], 2, "command is missing"),
    "a command that does not exist": (["--", "no-such-program"], 2, "[command-not-found]"),
    "a script that does not exist": (["--", "python", "tain.py"], 2, "[command-not-found]"),
    "a typing error in a key": (["typo.yaml"], 2, "typo.yaml:2:1"),
    "a negative number of workers": (["job.yaml", "--workers", "-1"], 2, "--workers"),
    "YAML that does not parse": (["broken.yaml"], 2, "[bad-yaml]"),
    "another encoding": (["latin.yaml"], 2, "[bad-encoding]"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_is_refused_and_nothing_is_created(gscalar, home: Path, tmp_path: Path, sentence: str) -> None:
    words, code, wanted = REFUSED[sentence]
    (tmp_path / "empty").mkdir()
    (tmp_path / "script.py").touch()
    (tmp_path / "job.yaml").write_text("command: 'true'\n")
    (tmp_path / "typo.yaml").write_text("command: 'true'\nwrokers: 2\n")
    (tmp_path / "broken.yaml").write_text("command: [\n")
    (tmp_path / "latin.yaml").write_bytes("command: 'true'\nname: gr\xfc\xdfe\n".encode("latin-1"))
    done = gscalar("run", *words)
    assert done.returncode == code, done.stderr
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.exists()


def test_an_unknown_run_is_refused(gscalar) -> None:
    for words in (("run", "--resume", "nothing"), ("cancel", "nothing")):
        done = gscalar(*words)
        assert done.returncode == 2
        assert "[run-not-found]" in done.stderr


def test_a_home_that_cannot_be_written_is_a_problem_of_the_machine(gscalar) -> None:
    done = gscalar("run", "--home", "/proc/nowhere", "--", "true")
    assert done.returncode == 3
    assert "[home-not-writable]" in done.stderr


def test_the_schema_is_printed(gscalar) -> None:
    done = gscalar("run", "--schema")
    assert done.returncode == 0
    assert '"hang_after_s"' in done.stdout


def test_a_record_file_tells_all(begin) -> None:
    run = begin("init", "step=1", "finish")
    assert run.wait() == 0
    # How often the hardware was looked at meanwhile is a matter of time.
    sampled = ("Names", "Hardware")
    kinds = [name for name in (type(event).__name__ for event in run.events(events.Event)) if name not in sampled]
    assert kinds == ["Header", "AttemptStarted", "AttemptEnded", "RunEnded", "Seal"]
