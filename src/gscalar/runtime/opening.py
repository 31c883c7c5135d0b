"""How a run is opened: who am I, what is the job, where does the record go.

Launched by `gscalar run`, the job's file says everything and its values win over the script's.
Under torchrun, srun, mpirun or JobSet all ranks derive the same run id from the launch, without
talking. Alone, a script is a world of one with a new run (or goes on with the one that
GSCALAR_RUN_ID names).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gscalar.base.canonical import json_text
from gscalar.base.errors import EnvironmentProblem
from gscalar.base.ids import new_id
from gscalar.model.events import AttemptStarted, Header, WorkerStarted
from gscalar.model.parsing import from_plain, load_environment, merge_script_arguments, to_plain
from gscalar.model.roles import num_helpers, num_processes
from gscalar.model.spec import ResolvedSpec
from gscalar.observation.environment import capture_environment
from gscalar.observation.secrets import redact_spec
from gscalar.runtime.launch import Launch, read_launch, run_id_of
from gscalar.state.files import write_atomic
from gscalar.state.home import RunFolder, locate_home, open_home
from gscalar.state.records import Frame, RecordWriter, own_header, read_record


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A run that is open for this worker."""

    run_id: str
    gang: Launch  # this process among all of the attempt
    launch: Launch  # and among those that run the loop: the chief of parameter servers is alone there
    folder: RunFolder
    resolved: ResolvedSpec
    name: str
    writer: RecordWriter
    attempt: int
    supervised: bool
    started: WorkerStarted | None = None  # as it was recorded


def open_worker(arguments: Mapping[str, Any], home_argument: str | os.PathLike[str] | None) -> Opened:
    """Return the opened run of this process. `arguments` are those of `init` that were given.

    Raises:
        EnvironmentProblem: `home-not-writable`, `launcher-unclear`.
        UserError: an argument that no spec would take.
    """
    launch = gang = _own_launch(read_launch(os.environ, script=sys.argv[0]))
    supervised = launch.launcher == "gscalar"
    home = open_home(launch.home or home_argument)
    job = _read_job(launch.job_file)
    known = ResolvedSpec(spec=from_plain(job["spec"]), origins=job["origins"]) if job else load_environment(os.environ)
    resolved = merge_script_arguments(known, arguments)
    if not supervised and launch.world != num_processes(resolved.spec):
        # What the launcher started is what a later `--resume` starts.
        num_workers = max(1, launch.world - num_helpers(resolved.spec))
        workers = dataclasses.replace(resolved.spec, workers=num_workers)
        resolved = ResolvedSpec(spec=workers, origins={**resolved.origins, "workers": "launcher"})
    if num_helpers(resolved.spec) and launch.rank == 0:
        launch = dataclasses.replace(launch, world=1, local_world=1)
    run_id, attempt = _identify(gang, home.runs)
    folder = home.run(run_id)
    folder.create()
    name = resolved.spec.name or (job["name"] if job else Path(sys.argv[0] or "python").stem)
    if job is None and launch.rank == 0 and not folder.job_file.exists():
        _write_job(folder, run_id, name, resolved)
    header = own_header(run_id, "worker", attempt=attempt, rank=gang.rank, world=gang.world)
    writer = RecordWriter(folder.worker_record(attempt, launch.rank), header)
    spec = redact_spec(to_plain(resolved.spec))
    environment = capture_environment(os.environ, Path.cwd(), sys.argv)
    if not supervised and launch.rank == 0:
        for request in ("stop.json", "cancel"):  # those of an attempt before
            (folder.control / request).unlink(missing_ok=True)
        writer.emit(AttemptStarted(attempt, time.time_ns(), gang.world, (os.getpid(),)))
    started = WorkerStarted(
        time.time_ns(),
        resolved.spec.project,
        name,
        spec,
        dict(resolved.origins),
        environment,
        declares_config=bool(arguments.get("config")),
    )
    writer.emit(started)
    return Opened(
        run_id=run_id,
        gang=gang,
        launch=launch,
        folder=folder,
        resolved=resolved,
        name=name,
        writer=writer,
        attempt=attempt,
        supervised=supervised,
        started=started,
    )


def declare(opened: Opened, name: str, values: Mapping[str, Any]) -> None:
    """Record plain values beside the config of the run: what another trainer was set to, which nobody here decides."""
    started = opened.started
    assert started is not None, "the run was opened by open_worker"
    config = dict(started.spec.get("config") or {})
    given = config.get(name)
    config[name] = {**values, **given} if isinstance(given, dict) else given if name in config else dict(values)
    origins = {f"config.{name}.{key}": "script" for key in values} | dict(started.origins)
    spec = redact_spec({**started.spec, "config": config})
    opened.writer.emit(msgspec.structs.replace(started, time_ns=time.time_ns(), spec=spec, origins=origins))


def _own_launch(launch: Launch) -> Launch:
    """Return the launch, or that of a script alone where another process is this rank already.

    A program that a worker starts inherits the worker's place, and must not write into its record.
    """
    if launch.launcher != "gscalar" or launch.run_id is None:
        return launch
    record = locate_home(launch.home).run(launch.run_id).worker_record(launch.attempt, launch.rank)
    first = next(iter(read_record(record)), None) if record.exists() else None
    if not isinstance(first, Frame) or not isinstance(first.event, Header) or first.event.pid == os.getpid():
        return launch
    return Launch(launcher="alone", identity=launch.identity, home=launch.home)


def _read_job(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    job: dict[str, Any] = json.loads(path.read_bytes())
    return job


def _identify(launch: Launch, runs: Path) -> tuple[str, int]:
    if launch.launcher == "gscalar":
        assert launch.run_id is not None
        return launch.run_id, launch.attempt
    if launch.launcher != "alone":
        run_id = launch.run_id or run_id_of(launch.identity)
        record = RunFolder(runs / run_id).worker_record(launch.attempt, launch.rank)
        if not launch.unique and record.exists():
            raise EnvironmentProblem(
                code="launcher-unclear",
                what="This launch cannot be told from an earlier one, whose record is there already.",
                value=run_id,
                next_step="Set GSCALAR_RUN_ID to a new word on all ranks, or give torchrun a --rdzv-id of its own.",
            )
        return run_id, launch.attempt
    run_id = launch.run_id or new_id(time.time_ns(), os.urandom(16))
    # A script alone that names its run goes on with it: the next attempt is the first unused one.
    attempt = launch.attempt
    while RunFolder(runs / run_id).worker_record(attempt, 0).exists():
        attempt += 1
    return run_id, attempt


def _write_job(folder: RunFolder, run_id: str, name: str, resolved: ResolvedSpec) -> None:
    spec, origins = to_plain(resolved.spec), dict(resolved.origins)
    if not spec["command"]:
        spec["command"] = [sys.executable, *sys.orig_argv[1:]]  # with -m and the interpreter's own options
        origins["command"] = "launcher"  # a value without an origin would not outlive a `--resume --set`
    job = {
        "run": run_id,
        "project": resolved.spec.project,
        "name": name,
        "created_ns": time.time_ns(),
        "folder": str(Path.cwd()),
        "spec": spec,
        "origins": origins,
    }
    # The spec's `env` may hold secrets, which a resumed run needs as they are.
    write_atomic(folder.job_file, json_text(job).encode(), private=True)
