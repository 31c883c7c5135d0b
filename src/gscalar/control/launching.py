"""Beginning a run and going on with one: everything is checked before anything is created.

A run's folder gets job.json (the resolved spec, where each value came from, the working folder) and
a lock. Going on uses the newest job file; values that are given anew are written to a job file of
the attempt's own, so that the record shows what each attempt was told.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gscalar.base.canonical import json_text
from gscalar.base.errors import Damaged, EnvironmentProblem, Retryable, UserError
from gscalar.base.ids import new_id
from gscalar.control.attempt import Job
from gscalar.control.background_index import BackgroundIndex
from gscalar.control.cancelling import find_living
from gscalar.control.commands import resolve_command
from gscalar.control.declared_config import check_new_keys
from gscalar.control.display import Display
from gscalar.control.engine import Engine
from gscalar.control.locking import RunLock, run_active
from gscalar.control.requests import StopDesk
from gscalar.control.signals import StopSignals
from gscalar.control.stopping import GRACE_S
from gscalar.control.supervisor import Outcome, supervise
from gscalar.model.parsing import from_plain, to_plain
from gscalar.model.roles import num_processes
from gscalar.model.spec import JobSpec, ResolvedSpec
from gscalar.state.catalog import open_catalog
from gscalar.state.files import write_atomic
from gscalar.state.home import Home, RunFolder, open_home
from gscalar.state.records import RecordWriter, own_header

# A killed supervisor's workers hold the lock for the moment that they outlive it.
_LOCK_WAIT_S: Final = 3.0
_ATTEMPT_IN_NAME: Final = re.compile(r"(?:supervisor-|job-)?a(\d{3,})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredJob:
    """What a job file says."""

    resolved: ResolvedSpec
    project: str
    name: str
    created_ns: int
    working_folder: Path


def start_run(
    home: Home, resolved: ResolvedSpec, *, folder: Path, name: str, engine: Engine, display: Display
) -> Outcome:
    """Create a run and supervise it to its end. `folder` is where the command runs.

    Raises:
        UserError: `command-not-found`, `bad-encoding`; nothing was created, the home neither.
        EnvironmentProblem: `home-not-writable`, `store-newer`.
    """
    spec = resolved.spec
    _check_text(folder)
    command = resolve_command(spec.command, folder, _environment(spec))
    _check_home(home)
    run_id = new_id(time.time_ns(), os.urandom(16))
    run_folder = home.run(run_id)
    stored = StoredJob(
        resolved=resolved,
        project=spec.project,
        name=spec.name or name,
        created_ns=time.time_ns(),
        working_folder=folder,
    )
    with _disk_errors(home):
        run_folder.create()
        _write_job(run_folder.job_file, run_id, stored)
    with RunLock(run_folder, run_id) as lock:
        job = Job(
            run=run_id,
            home=home,
            folder=run_folder,
            spec=spec,
            command=command,
            working_folder=folder,
            job_file=run_folder.job_file,
            lock_fd=lock.fd,
        )
        return _supervise(job, 0, engine, display)


def resume_run(
    home: Home,
    run_id: str,
    *,
    engine: Engine,
    display: Display,
    override: Callable[[ResolvedSpec], ResolvedSpec] | None = None,
) -> Outcome:
    """Go on with a run that has ended, from its last good checkpoint. `override` changes its spec.

    Raises:
        UserError: `run-active`, `fixed-key`, `unknown-key`, `command-not-found`, or what `override` raises.
    """
    run_folder = home.run(run_id)
    run_folder.create()
    with RunLock(run_folder, run_id, wait_s=_LOCK_WAIT_S) as lock:
        if find_living(run_folder):  # a script that runs without a supervisor
            raise run_active(run_id)
        index = next_attempt(run_folder)
        job_file, stored = read_job(run_folder)
        if override is not None:
            resolved = override(stored.resolved)
            _check_fixed(stored.resolved, resolved)
            check_new_keys(run_folder, stored.resolved.spec.config, resolved.spec.config)
            if resolved != stored.resolved:
                stored = replace(stored, resolved=resolved)
                job_file = run_folder.path / f"job-a{index:03d}.json"
        spec = stored.resolved.spec
        command = resolve_command(spec.command, stored.working_folder, _environment(spec))
        with _disk_errors(home):
            if not job_file.exists():
                _write_job(job_file, run_id, stored)
            for request in ("stop.json", "cancel"):
                (run_folder.control / request).unlink(missing_ok=True)
        job = Job(
            run=run_id,
            home=home,
            folder=run_folder,
            spec=spec,
            command=command,
            working_folder=stored.working_folder,
            job_file=job_file,
            lock_fd=lock.fd,
        )
        return _supervise(job, index, engine, display)


def _check_fixed(before: ResolvedSpec, now: ResolvedSpec) -> None:
    """Refuse what a run in progress cannot take: its samples would be others than those that are left."""
    if now.spec.seed != before.spec.seed:
        raise UserError(
            code="fixed-key",
            what="A run keeps the seed that it began with: the order of its samples follows from it.",
            value=now.spec.seed,
            where="seed",
            next_step="Resume without --set seed, or start a new run.",
        )


def _supervise(job: Job, index: int, engine: Engine, display: Display) -> Outcome:
    header = own_header(job.run, "supervisor", attempt=index, world=num_processes(job.spec))
    with _disk_errors(job.home):
        writer = RecordWriter(job.folder.supervisor_record(index), header)
    # The index outlives the record's last event, so that it ends with the run.
    with StopSignals() as signals, BackgroundIndex(job.home, job.run):
        try:
            desk = StopDesk(job.folder, signals, display, grace_s=read_grace_s(os.environ))
            return supervise(job, first_attempt=index, engine=engine, sink=writer, display=display, desk=desk)
        finally:
            writer.close()


def next_attempt(folder: RunFolder) -> int:
    """Return the first attempt index that no record, log or job file has used."""
    names = [entry.name for part in (folder.records, folder.logs, folder.path) for entry in part.iterdir()]
    used = [int(match[1]) for name in names if (match := _ATTEMPT_IN_NAME.match(name))]
    return max(used, default=-1) + 1


def read_job(folder: RunFolder) -> tuple[Path, StoredJob]:
    """Return the newest job file and what it says.

    Raises:
        Damaged: `record-damaged`, there is no job file that can be read.
    """
    newest = max(folder.path.glob("job-a*.json"), default=folder.job_file)
    try:
        job: dict[str, Any] = json.loads(newest.read_bytes())
        resolved = ResolvedSpec(spec=from_plain(job["spec"], where=str(newest)), origins=job["origins"])
        return newest, StoredJob(
            resolved=resolved,
            project=job["project"],
            name=job["name"],
            created_ns=job["created_ns"],
            # A script that ran alone has written no folder: it goes on from where it is resumed.
            working_folder=Path(job.get("folder") or Path.cwd()),
        )
    except (OSError, ValueError, KeyError) as error:
        raise Damaged(
            code="record-damaged",
            what="The run's job file cannot be read, so it cannot be started again.",
            value=str(error),
            where=str(newest),
            next_step="Start its command again as a new run; `gscalar show` has what it was.",
        ) from error


def read_grace_s(environment: Mapping[str, str]) -> float:
    """Return the seconds that workers have for their last checkpoint: GSCALAR_GRACE_S, or 60."""
    try:
        grace_s = float(environment.get("GSCALAR_GRACE_S", GRACE_S))
    except ValueError:
        return GRACE_S
    return grace_s if grace_s >= 0 else GRACE_S


def _check_home(home: Home) -> None:
    """Refuse a home in which a run would be recorded and could not be looked at."""
    open_home(home.path)
    try:
        open_catalog(home).close()
    except EnvironmentProblem as error:
        if error.code == "store-newer":
            raise
    except Retryable:
        pass  # another process is at it, and the record does not need the catalog


def _check_text(folder: Path) -> None:
    """Refuse a folder whose name is no UTF-8: the job file could not say where the command runs."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UserError(
            code="bad-encoding",
            what="The path of the job's folder is not UTF-8 text.",
            value=str(folder),
            next_step="Rename the folder, or run from another one.",
        ) from None


def _environment(spec: JobSpec) -> dict[str, str]:
    return {**os.environ, **spec.env}


def _write_job(path: Path, run_id: str, stored: StoredJob) -> None:
    job = {
        "run": run_id,
        "project": stored.project,
        "name": stored.name,
        "created_ns": stored.created_ns,
        "folder": str(stored.working_folder),
        "spec": to_plain(stored.resolved.spec),
        "origins": dict(stored.resolved.origins),
    }
    # The spec's `env` may hold secrets, which a resumed run needs as they are.
    write_atomic(path, json_text(job).encode(), private=True)


@contextmanager
def _disk_errors(home: Home) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            code="home-not-writable",
            what=f"The run's folder cannot be written: {error.strerror}.",
            value=str(home.path),
            next_step="Give a writable folder with --home or GSCALAR_HOME, or free some disk.",
        ) from error
