"""Who am I: rank, world and run of this process, read from whatever launcher started it.

Read in this order, and nothing is written back: our own variables (GSCALAR_GANG marks them), those
of torchrun and everything that speaks like it (RANK, WORLD_SIZE), mpirun's, srun's, and those of a
Kubernetes JobSet; otherwise the process is alone. mpirun stands before srun because inside a Slurm
job it starts its daemons through srun, so that its processes carry both.

What Slurm sets: a batch script or an interactive allocation has SLURM_JOB_ID, SLURM_NTASKS and even
SLURM_PROCID=0, but no step, or one of the reserved step ids at the top of 32 bits. Only a step of
more than one task is a gang; `python train.py` anywhere else is alone. Sources: srun(1), sbatch(1),
slurm.h; torch.distributed.elastic's local agent; Open MPI's manual; the JobSet API. Kubernetes sets
JOB_COMPLETION_INDEX by itself; JOBSET_NAME, JOBSET_UID, JOBSET_RESTART_ATTEMPT and WORLD_SIZE are
for the manifest to set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.base.ids import new_id
from gscalar.runtime.hosts import expand_hosts, expand_task_counts
from gscalar.runtime.processes import launcher_process

Launcher = Literal["gscalar", "torchrun", "slurm", "mpi", "jobset", "alone"]
# (environ, names that every process of the launch carries) -> the process that launched them.
FindLauncher = Callable[[Mapping[str, str], tuple[str, ...]], str]

# Steps that are none: interactive, batch, extern and pending (slurm.h).
_FIRST_RESERVED_STEP: Final = 0xFFFFFFF0
# Ports that we choose lie below the ephemeral range, which begins at 32768 on Linux.
_FIRST_PORT, _NUM_PORTS = 20_000, 12_000
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Rank, world, local rank, local world of Open MPI, of MVAPICH2, and of MPICH's hydra (also Intel MPI).
_MPI_FAMILIES: Final = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One process's place in a gang, and what names the gang.

    `identity` is equal on all ranks, and over restarts by the same launcher. Where `unique` is
    False, two launches may share it, because the launcher sets nothing that tells them apart (such
    as torchrun over several machines without `--rdzv-id`): a second one is refused and not mixed in.
    """

    launcher: Launcher
    identity: str
    unique: bool = True
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    attempt: int = 0
    run_id: str | None = None
    home: Path | None = None
    job_file: Path | None = None
    gang: str | None = None  # the supervisor's token of this attempt
    master_addr: str | None = None  # set where world > 1
    master_port: int | None = None


class _Places(NamedTuple):
    rank: int
    world: int
    local_rank: int = 0
    local_world: int = 1


def read_launch(
    environ: Mapping[str, str], *, script: str = "", find_launcher: FindLauncher = launcher_process
) -> Launch:
    """Return this process's place, without touching the environment.

    `script` is the program's path (`sys.argv[0]`): it tells apart two programs that one step or one
    launcher runs after the other.

    Raises:
        EnvironmentProblem: `launcher-unclear`, when variables are half set or contradict one another.
        UserError: `impossible-value`, when GSCALAR_RUN_ID cannot be a run's id.
    """
    variables = _Variables(environ)
    launch = (
        _read_torchrun(variables, script, find_launcher)
        or _read_mpi(variables, script, find_launcher)
        or _read_slurm(variables, script)
        or _read_jobset(variables, script)
        or Launch(launcher="alone", identity=find_launcher(environ, ()))
    )
    _check_places(launch)
    return _with_own_variables(launch, variables)


def run_id_of(identity: str) -> str:
    """Return the id of a launch's run where nothing else names one: equal on all its ranks."""
    return new_id(0, identity.encode())


class _Variables:
    """The environment with its numbers read. An empty variable is an absent one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def text(self, *names: str) -> str | None:
        """Return the first of these variables that is set."""
        return next((value for name in names if (value := self.environ.get(name, "").strip())), None)

    def path(self, name: str) -> Path | None:
        """Return the variable as a path, as it stands."""
        value = self.text(name)
        return Path(value) if value is not None else None

    def number(self, *names: str) -> int | None:
        """Return the first of these variables that is set, as a number from 0 on."""
        name = next((name for name in names if self.text(name)), None)
        if name is None:
            return None
        value = self.text(name) or ""
        if not (value.isascii() and value.isdigit()):
            raise _unclear(f"{name} is not a whole number from 0 on.", self.shown(name))
        return int(value)

    def shown(self, *names: str) -> str:
        """Return the variables as a shell would show them."""
        return ", ".join(f"{name}={self.environ[name]}" if name in self.environ else f"no {name}" for name in names)


def _read_torchrun(variables: _Variables, script: str, find_launcher: FindLauncher) -> Launch | None:
    """Our own supervisor and torchrun share these variables, and people set them by hand."""
    rank, world = variables.number("RANK"), variables.number("WORLD_SIZE")
    gang, rendezvous = variables.text("GSCALAR_GANG"), variables.text("TORCHELASTIC_RUN_ID")
    if rank is None and world is None and gang is None:
        return None
    if gang is None and rendezvous is None and ((rank, world) == (0, 1) or _translated(variables, rank, world)):
        return None
    if rank is None and variables.text("LOCAL_RANK") and variables.text("NODE_RANK"):
        raise EnvironmentProblem(
            code="launcher-unclear",
            what="This process was started by another one, probably of Lightning, that was itself started alone.",
            value=variables.shown("WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"),
            next_step="Start the workers with gscalar run --workers N (or torchrun), with Trainer(devices=N).",
        )
    if rank is None or world is None:
        raise _unclear("The environment does not give both rank and world size.", variables.shown("RANK", "WORLD_SIZE"))
    local_rank = variables.number("LOCAL_RANK") or 0
    local_world = variables.number("LOCAL_WORLD_SIZE")
    restarts = variables.number("TORCHELASTIC_RESTART_COUNT") or 0
    if gang is not None:
        identity, unique = f"gscalar:{variables.text('GSCALAR_RUN_ID') or gang}", True
    elif rendezvous is not None and local_world == world:
        # One machine: every rank finds the agent, which outlives its restarts, among its ancestors.
        agent = find_launcher(variables.environ, ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK"))
        identity, unique = f"torchrun:{agent}:{script}", True
    else:
        identity, unique = _torchrun_identity(variables, script)
        # Slurm starts a requeued job's agents anew, and their own count with them.
        requeues = variables.number("SLURM_RESTART_COUNT") or 0
        restarts += requeues * ((variables.number("TORCHELASTIC_MAX_RESTARTS") or 0) + 1)
    launch = Launch(
        launcher="torchrun" if gang is None else "gscalar",
        identity=identity,
        unique=unique,
        rank=rank,
        world=world,
        local_rank=local_rank,
        local_world=local_rank + 1 if local_world is None else local_world,
        attempt=restarts,
    )
    return _with_master(launch, variables)


def _torchrun_identity(variables: _Variables, script: str) -> tuple[str, bool]:
    """Return what the agents of several machines have in common, and whether no other launch has it."""
    job = variables.text("SLURM_JOB_ID")
    rendezvous = variables.text("TORCHELASTIC_RUN_ID")
    if rendezvous in (None, "none"):
        rendezvous = f"{variables.text('MASTER_ADDR')}:{variables.text('MASTER_PORT')}"
        return f"torchrun:{rendezvous}:{job}:{script}", False
    # The port is left out: a c10d rendezvous takes another one after each restart.
    return f"torchrun:{rendezvous}:{job}:{script}", job is not None


def _translated(variables: _Variables, rank: int | None, world: int | None) -> bool:
    """Whether a RANK or WORLD_SIZE set by hand only repeats another launcher, which is then read."""
    try:
        places = _mpi_places(variables) or _slurm_places(variables) or _jobset_places(variables)
    except EnvironmentProblem:
        return False
    return places is not None and rank in (None, places.rank) and world in (None, places.world)


def _mpi_places(variables: _Variables) -> _Places | None:
    for rank_name, world_name, local_rank_name, local_world_name in _MPI_FAMILIES:
        rank, world = variables.number(rank_name), variables.number(world_name)
        if rank is None and world is None:
            continue
        local_rank = variables.number(local_rank_name)
        if rank_name == "PMI_RANK" and local_rank is None and variables.text("SLURM_STEP_ID"):
            continue  # srun --mpi=pmi2 sets these too; hydra always adds the local ones
        if rank is None or world is None:
            raise _unclear("mpirun's variables are half set.", variables.shown(rank_name, world_name))
        if world > 1:
            local_world = variables.number(local_world_name) or 0
            return _Places(rank, world, local_rank or 0, max(local_world, (local_rank or 0) + 1))
    return None


def _read_mpi(variables: _Variables, script: str, find_launcher: FindLauncher) -> Launch | None:
    places = _mpi_places(variables)
    if places is None:
        return None
    if places.local_world == places.world:
        names = next(family[:1] for family in _MPI_FAMILIES if variables.text(family[0]))
        identity, unique = find_launcher(variables.environ, names), True
        host: str | None = "127.0.0.1"
    else:
        namespace = variables.text("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
        job = variables.text("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
        identity, unique = f"{namespace}:{job}", namespace is not None
        host = _first_host(variables)
    launch = Launch(
        launcher="mpi",
        identity=f"mpi:{identity}:{script}",
        unique=unique,
        attempt=variables.number("SLURM_RESTART_COUNT") or 0,
        **places._asdict(),
    )
    return _with_master(launch, variables, host)


def _slurm_places(variables: _Variables) -> _Places | None:
    step = variables.number("SLURM_STEP_ID", "SLURM_STEPID")
    if step is None or step >= _FIRST_RESERVED_STEP:
        return None
    rank, local_rank = variables.number("SLURM_PROCID"), variables.number("SLURM_LOCALID")
    world = variables.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    if world is not None and world <= 1:
        return None
    if rank is None or world is None or local_rank is None or not variables.text("SLURM_JOB_ID"):
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
        raise _unclear("The variables of a Slurm step are half set.", variables.shown(*names))
    counts = variables.text("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    node = variables.number("SLURM_NODEID") or 0
    per_node = expand_task_counts(counts) if counts else []
    local_world = per_node[node] if node < len(per_node) else 0
    return _Places(rank, world, local_rank, max(local_world, local_rank + 1))


def _read_slurm(variables: _Variables, script: str) -> Launch | None:
    places = _slurm_places(variables)
    if places is None:
        return None
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    launch = Launch(
        launcher="slurm",
        identity=":".join(["slurm", *(variables.text(name) or "" for name in names), script]),
        attempt=variables.number("SLURM_RESTART_COUNT") or 0,
        **places._asdict(),
    )
    return _with_master(launch, variables, _first_host(variables))


def _jobset_places(variables: _Variables) -> _Places | None:
    """An indexed Job without the name of a JobSet is no gang: its pods work on parts of a list."""
    if not variables.text("JOBSET_NAME"):
        return None
    names = ("JOBSET_NAME", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "NUM_PROCESSES", "NNODES")
    index, world = variables.number(names[1]), variables.number(*names[2:])
    if index is None or world is None:
        raise _unclear("The variables of a JobSet are half set.", variables.shown(*names))
    pods_per_job, job = variables.number("PROCESSES_IN_JOB") or 0, variables.number("JOB_INDEX") or 0
    return _Places(job * pods_per_job + index, world)


def _read_jobset(variables: _Variables, script: str) -> Launch | None:
    places = _jobset_places(variables)
    if places is None:
        return None
    name, uid = variables.text("JOBSET_NAME"), variables.text("JOBSET_UID")
    launch = Launch(
        launcher="jobset",
        identity=f"jobset:{variables.text('POD_NAMESPACE')}:{name}:{uid}:{script}",
        unique=uid is not None,
        attempt=variables.number("JOBSET_RESTART_ATTEMPT") or 0,
        **places._asdict(),
    )
    replicated = variables.text("REPLICATED_JOB_NAME")
    # The name that the controller gives the first pod of the first job in the JobSet's own subdomain.
    host = f"{name}-{replicated}-0-0.{variables.text('JOBSET_SUBDOMAIN') or name}" if replicated else None
    return _with_master(launch, variables, host)


def _first_host(variables: _Variables) -> str | None:
    hosts = variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    return expand_hosts(hosts)[0] if hosts else None


def _with_master(launch: Launch, variables: _Variables, derived_host: str | None = None) -> Launch:
    """Add where rank 0 listens: as the environment says, else the derived host and a port of the identity.

    A derived port moves with the attempt, so that an attempt never meets the socket of the one before.
    """
    if launch.world <= 1:
        return launch
    host, port = variables.text("MASTER_ADDR") or derived_host, variables.number("MASTER_PORT")
    if port is None and derived_host is not None:
        spread = int.from_bytes(sha256(launch.identity.encode()).digest()[:8], "big")
        port = _FIRST_PORT + (spread + 503 * launch.attempt) % _NUM_PORTS
    if host is None or port is None:
        raise _unclear("The environment does not say where rank 0 is.", variables.shown("MASTER_ADDR", "MASTER_PORT"))
    return replace(launch, master_addr=host, master_port=port)


def _check_places(launch: Launch) -> None:
    if not (launch.rank < launch.world and launch.local_rank < launch.local_world <= launch.world):
        numbers = f"rank {launch.rank} of {launch.world}, local rank {launch.local_rank} of {launch.local_world}"
        raise _unclear(f"The variables of {launch.launcher} contradict one another.", numbers)


def _with_own_variables(launch: Launch, variables: _Variables) -> Launch:
    run_id = variables.text("GSCALAR_RUN_ID")
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise UserError(
            code="impossible-value",
            what="GSCALAR_RUN_ID cannot be the id of a run.",
            value=run_id,
            next_step="Take an id that `gscalar runs` lists, or unset the variable.",
        )
    attempt = variables.number("GSCALAR_ATTEMPT")
    return replace(
        launch,
        run_id=run_id,
        attempt=launch.attempt if attempt is None else attempt,
        home=variables.path("GSCALAR_HOME"),
        job_file=variables.path("GSCALAR_JOB"),
        gang=variables.text("GSCALAR_GANG"),
    )


def _unclear(what: str, value: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        code="launcher-unclear",
        what=what,
        value=value,
        next_step="Start every process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (as `gscalar run`, "
        "torchrun and srun do), or unset them to train alone.",
    )
