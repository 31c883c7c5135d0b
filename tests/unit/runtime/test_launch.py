"""Who am I, for every launcher: tables of what it sets and what is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.runtime.launch import Launch, read_launch, run_id_of

MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OURS = {
    "GSCALAR_GANG": "g1", "GSCALAR_RUN_ID": "abc123", "GSCALAR_ATTEMPT": "2", "GSCALAR_JOB": "/h/job.json",
    "GSCALAR_HOME": "/h", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **MASTER,
}  # fmt: skip
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3", **MASTER,
}  # fmt: skip
TORCHRUN_TWO_HOSTS = {**TORCHRUN, "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "exp-9"}
# A batch script's own environment, as printed by `env` in one: no step, yet a task count and a rank.
BATCH = {
    "SLURM_CLUSTER_NAME": "kaya", "SLURM_JOB_ID": "415830", "SLURM_JOBID": "415830", "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_GTIDS": "0",
    "SLURM_JOB_NODELIST": "n[046-047]", "SLURM_NODELIST": "n[046-047]", "SLURM_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
SRUN = {
    **BATCH, "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NODELIST": "n[046-047]",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_PROCID": "3", "SLURM_NODEID": "1",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-n046-77@1", "PMIX_RANK": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
JOBSET = {
    "JOBSET_NAME": "lm", "JOBSET_UID": "u-1", "POD_NAMESPACE": "ml", "REPLICATED_JOB_NAME": "workers",
    "JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "8", "JOBSET_RESTART_ATTEMPT": "2",
}  # fmt: skip


def fake_launcher(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return f"parent-of-{'+'.join(names)}" if names else "this-process"


def read(environ: Mapping[str, str], script: str = "train.py") -> Launch:
    return read_launch(MappingProxyType(dict(environ)), script=script, find_launcher=fake_launcher)


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


PLACES: dict[str, tuple[dict[str, str], str, tuple[int, int, int, int], int]] = {
    "nothing set is alone": ({}, "alone", (0, 1, 0, 1), 0),
    "gscalar run": (OURS, "gscalar", (1, 2, 1, 2), 2),
    "gscalar run with one worker": ({**OURS, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                                    "LOCAL_WORLD_SIZE": "1"}, "gscalar", (0, 1, 0, 1), 2),
    "gscalar run inside a Slurm step": ({**SRUN, **OURS}, "gscalar", (1, 2, 1, 2), 2),
    "torchrun on one machine, after a restart": (TORCHRUN, "torchrun", (1, 2, 1, 2), 1),
    "torchrun started by srun": ({**SRUN, **TORCHRUN}, "torchrun", (1, 2, 1, 2), 1),
    "torchrun of a requeued job counts on": ({**TORCHRUN_TWO_HOSTS, "SLURM_JOB_ID": "5",
                                             "SLURM_RESTART_COUNT": "2"}, "torchrun", (1, 4, 1, 2), 9),
    "torchrun with one worker": ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
                                 "LOCAL_WORLD_SIZE": "1"}, "torchrun", (0, 1, 0, 1), 1),
    "variables set by hand": ({"RANK": "0", "WORLD_SIZE": "2", **MASTER}, "torchrun", (0, 2, 0, 1), 0),
    "a world of one set by hand is alone": ({"RANK": "0", "WORLD_SIZE": "1", **MASTER}, "alone", (0, 1, 0, 1), 0),
    "an empty variable is an absent one": ({"RANK": "", "WORLD_SIZE": " "}, "alone", (0, 1, 0, 1), 0),
    "a batch script itself is alone": (BATCH, "alone", (0, 1, 0, 1), 0),
    "srun": (SRUN, "slurm", (3, 4, 0, 1), 0),
    "srun, on the host with three tasks": ({**SRUN, "SLURM_PROCID": "2", "SLURM_LOCALID": "2",
                                           "SLURM_NODEID": "0"}, "slurm", (2, 4, 2, 3), 0),
    "srun of a requeued job": ({**SRUN, "SLURM_RESTART_COUNT": "1"}, "slurm", (3, 4, 0, 1), 1),
    "srun with fewer tasks than its job": ({**SRUN, "SLURM_NTASKS": "64"}, "slurm", (3, 4, 0, 1), 0),
    "srun with one task is alone": ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "alone",
                                   (0, 1, 0, 1), 0),
    "an interactive allocation is alone": ({**SRUN, "SLURM_STEP_ID": "4294967290", "SLURM_STEPID": "4294967290"},
                                          "alone", (0, 1, 0, 1), 0),
    "srun from inside a pty shell": ({**SRUN, "SLURM_PTY_PORT": "39933"}, "slurm", (3, 4, 0, 1), 0),
    "srun with RANK and WORLD_SIZE translated": ({**SRUN, "RANK": "3", "WORLD_SIZE": "4"}, "slurm",
                                                (3, 4, 0, 1), 0),
    "ranks of one's own inside srun": ({**SRUN, **MASTER, "RANK": "0", "WORLD_SIZE": "4"}, "torchrun", (0, 4, 0, 1), 0),
    "srun with only WORLD_SIZE exported": ({**SRUN, "WORLD_SIZE": "4"}, "slurm", (3, 4, 0, 1), 0),
    "srun with pmi2": ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}, "slurm", (3, 4, 0, 1), 0),
    "mpirun of Open MPI": (OPEN_MPI, "mpi", (2, 4, 2, 4), 0),
    "mpirun inside a Slurm job, under the step of its daemons": ({**SRUN, **OPEN_MPI}, "mpi", (2, 4, 2, 4), 0),
    "mpiexec of hydra": (HYDRA, "mpi", (1, 4, 1, 4), 0),
    "mpirun with one process is alone": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "alone",
                                        (0, 1, 0, 1), 0),
    "a JobSet": (JOBSET, "jobset", (3, 8, 0, 1), 2),
    "a JobSet of several jobs": ({**JOBSET, "JOB_INDEX": "1", "PROCESSES_IN_JOB": "4"}, "jobset", (7, 8, 0, 1), 2),
    "torchrun in the pods of a JobSet": ({**JOBSET, **TORCHRUN}, "torchrun", (1, 2, 1, 2), 1),
    "an indexed Job without a JobSet is alone": ({"JOB_COMPLETION_INDEX": "3"}, "alone", (0, 1, 0, 1), 0),
    "GSCALAR_ATTEMPT wins over a launcher's count": ({**TORCHRUN, "GSCALAR_ATTEMPT": "7"}, "torchrun",
                                                    (1, 2, 1, 2), 7),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_the_place_of_a_process(case: str) -> None:
    environ, launcher, places, attempt = PLACES[case]
    got = read(environ)
    assert (got.launcher, (got.rank, got.world, got.local_rank, got.local_world)) == (launcher, places)
    assert got.attempt == attempt


def test_our_own_variables_are_returned_under_every_launcher() -> None:
    got = read(OURS)
    assert (got.run_id, got.gang, got.home, got.job_file) == ("abc123", "g1", Path("/h"), Path("/h/job.json"))
    named = read({**TORCHRUN, "GSCALAR_RUN_ID": "abc123", "GSCALAR_HOME": "/h"})
    assert (named.run_id, named.gang, named.home) == ("abc123", None, Path("/h"))
    assert read({"GSCALAR_RUN_ID": "abc123"}).run_id == "abc123"


UNCLEAR: dict[str, tuple[dict[str, str], str]] = {
    "a rank without a world size": ({"RANK": "0"}, "no WORLD_SIZE"),
    "a world size without a rank": ({"WORLD_SIZE": "2"}, "no RANK"),
    "a rank outside the world": ({**TORCHRUN, "RANK": "2"}, "rank 2 of 2"),
    "a local rank outside the host": ({**TORCHRUN, "LOCAL_RANK": "2"}, "local rank 2 of 2"),
    "more processes here than everywhere": ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, "of 3"),
    "a world of nothing": ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "0"}, "of 0"),
    "a rank that is no number": ({**TORCHRUN, "RANK": "one"}, "RANK=one"),
    "a negative rank": ({**TORCHRUN, "RANK": "-1"}, "RANK=-1"),
    "nobody to meet": (without(TORCHRUN, "MASTER_ADDR"), "no MASTER_ADDR"),
    "no port to meet at": (without(TORCHRUN, "MASTER_PORT"), "no MASTER_PORT"),
    "our gang without ranks": ({"GSCALAR_GANG": "g1", "GSCALAR_RUN_ID": "abc123"}, "no RANK"),
    "a step without a rank": (without(SRUN, "SLURM_PROCID"), "no SLURM_PROCID"),
    "a step without a job": (without(SRUN, "SLURM_JOB_ID", "SLURM_JOBID"), "no SLURM_JOB_ID"),
    "WORLD_SIZE against srun's": ({**SRUN, "WORLD_SIZE": "8"}, "no RANK"),
    "half of mpirun's variables": ({"OMPI_COMM_WORLD_RANK": "1"}, "no OMPI_COMM_WORLD_SIZE"),
    "mpirun over hosts that nobody names": ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "no MASTER_ADDR"),
    "a JobSet without an index": (without(JOBSET, "JOB_COMPLETION_INDEX", "WORLD_SIZE"), "no JOB_COMPLETION_INDEX"),
    "a JobSet whose first pod has no name": (without(JOBSET, "REPLICATED_JOB_NAME"), "no MASTER_ADDR"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNCLEAR)
def test_half_set_and_contradicting_variables_are_refused_by_name(case: str) -> None:
    environ, named = UNCLEAR[case]
    with pytest.raises(EnvironmentProblem) as caught:
        read(environ)
    assert caught.value.code == "launcher-unclear"
    assert named in str(caught.value.value)


def test_a_process_that_lightning_has_started_by_itself_is_told_how_to_start_all() -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        read({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0", **MASTER})
    assert caught.value.code == "launcher-unclear"
    assert "gscalar run --workers" in caught.value.next_step


@pytest.mark.parametrize("run_id", ["../x", "a b", "-x", "x" * 65])
def test_a_run_id_that_cannot_be_a_folder_is_refused(run_id: str) -> None:
    with pytest.raises(UserError) as caught:
        read({"GSCALAR_RUN_ID": run_id})
    assert caught.value.code == "impossible-value"


# ---- where rank 0 is ---------------------------------------------------------------------------------


def test_what_the_environment_says_of_rank_0_wins() -> None:
    for environ in (TORCHRUN, {**SRUN, **MASTER}, {**OPEN_MPI, **MASTER}, {**JOBSET, **MASTER}):
        got = read(environ)
        assert (got.master_addr, got.master_port) == ("10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        (SRUN, "n046"),
        (OPEN_MPI, "127.0.0.1"),
        ({**OPEN_MPI, **BATCH, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "n046"),
        (JOBSET, "lm-workers-0-0.lm"),
        ({**JOBSET, "JOBSET_SUBDOMAIN": "net"}, "lm-workers-0-0.net"),
    ],
    ids=["srun", "mpirun on one host", "mpirun in a Slurm job", "JobSet", "JobSet with a subdomain"],
)
def test_rank_0_is_found_where_the_launcher_does_not_say(environ: dict[str, str], host: str) -> None:
    got = read(environ)
    assert got.master_addr == host
    assert got.master_port is not None
    assert 20_000 <= got.master_port < 32_000


def test_a_derived_port_differs_by_job_step_and_attempt_and_not_by_rank() -> None:
    changes: list[dict[str, str]] = [
        {}, {"SLURM_JOB_ID": "415831"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"},
    ]  # fmt: skip
    ports = [read({**SRUN, **change}).master_port for change in changes]
    assert len(set(ports)) == len(changes)
    assert read({**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}).master_port == ports[0]


def test_alone_has_nobody_to_meet() -> None:
    assert read({}).master_addr is None


# ---- which launch -----------------------------------------------------------------------------------

OTHER_RANK: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "gscalar": (OURS, {"RANK": "0", "LOCAL_RANK": "0"}),
    "torchrun": (TORCHRUN, {"RANK": "0", "LOCAL_RANK": "0"}),
    "torchrun on two hosts": (TORCHRUN_TWO_HOSTS, {"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1"}),
    "by hand": ({"RANK": "1", "WORLD_SIZE": "2", **MASTER}, {"RANK": "0"}),
    "srun": (SRUN, {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}),
    "mpirun": (OPEN_MPI, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_RANK": "0"}),
    "hydra": (HYDRA, {"PMI_RANK": "0", "MPI_LOCALRANKID": "0"}),
    "JobSet": (JOBSET, {"JOB_COMPLETION_INDEX": "0"}),
}
RESTARTED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "gscalar": (OURS, {"GSCALAR_ATTEMPT": "3", "GSCALAR_GANG": "g2", "MASTER_PORT": "29501"}),
    "torchrun": (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "2", "MASTER_PORT": "29501"}),
    "torchrun on two hosts": (TORCHRUN_TWO_HOSTS, {"TORCHELASTIC_RESTART_COUNT": "2", "MASTER_PORT": "29501"}),
    "srun": (SRUN, {"SLURM_RESTART_COUNT": "1", "SLURM_STEP_NODELIST": "n[048-049]"}),
    "JobSet": (JOBSET, {"JOBSET_RESTART_ATTEMPT": "3"}),
}
ANOTHER: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "gscalar": (OURS, {"GSCALAR_RUN_ID": "def456"}),
    "torchrun on two hosts": (TORCHRUN_TWO_HOSTS, {"TORCHELASTIC_RUN_ID": "exp-10"}),
    "a job's next step": (SRUN, {"SLURM_STEP_ID": "1"}),
    "another job": (SRUN, {"SLURM_JOB_ID": "415831"}),
    "another cluster": (SRUN, {"SLURM_CLUSTER_NAME": "pawsey"}),
    "another mpirun": ({**OPEN_MPI, **MASTER, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, {"PMIX_NAMESPACE": "n046-78@1"}),
    "a JobSet made again": (JOBSET, {"JOBSET_UID": "u-2"}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_RANK)
def test_all_ranks_of_a_launch_name_the_same_run(case: str) -> None:
    environ, change = OTHER_RANK[case]
    first, second = read(environ), read({**environ, **change})
    assert first.rank != second.rank
    assert run_id_of(first.identity) == run_id_of(second.identity)


@pytest.mark.parametrize("case", RESTARTED)
def test_a_restart_by_the_same_launcher_is_the_same_run_and_a_later_attempt(case: str) -> None:
    environ, change = RESTARTED[case]
    first, second = read(environ), read({**environ, **change})
    assert first.identity == second.identity
    assert first.attempt < second.attempt


@pytest.mark.parametrize("case", ANOTHER)
def test_another_launch_is_another_run(case: str) -> None:
    environ, change = ANOTHER[case]
    assert run_id_of(read(environ).identity) != run_id_of(read({**environ, **change}).identity)


@pytest.mark.parametrize("environ", [TORCHRUN, TORCHRUN_TWO_HOSTS, SRUN, OPEN_MPI, JOBSET])
def test_a_second_program_of_the_same_launch_is_another_run(environ: dict[str, str]) -> None:
    assert read(environ, "train.py").identity != read(environ, "evaluate.py").identity


@pytest.mark.parametrize(
    ("environ", "unique"),
    [
        ({}, True),
        (OURS, True),
        (TORCHRUN, True),
        (TORCHRUN_TWO_HOSTS, False),
        ({**TORCHRUN_TWO_HOSTS, "SLURM_JOB_ID": "5"}, True),
        ({**TORCHRUN, "WORLD_SIZE": "4", "SLURM_JOB_ID": "5"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", **MASTER}, False),
        (SRUN, True),
        (OPEN_MPI, True),
        ({**without(OPEN_MPI, "PMIX_NAMESPACE"), **MASTER, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, False),
        (JOBSET, True),
        (without(JOBSET, "JOBSET_UID"), False),
    ],
)
def test_it_is_known_whether_two_launches_could_look_the_same(environ: dict[str, Any], unique: bool) -> None:
    assert read(environ).unique is unique


def test_a_run_id_is_twelve_plain_characters() -> None:
    got = run_id_of("slurm:kaya:415830:0:train.py")
    assert len(got) == 12
    assert got.isalnum()


def test_alone_each_process_is_its_own_launch() -> None:
    assert read({}).identity == "this-process"
    assert read_launch({}).identity != read({}).identity
