"""From what the files of a run say to what the run is: one pure function, `summarize`.

A run's files are those of its workers (one an attempt and rank), of its supervisors (one a `gscalar run`
or `--resume`) and of people's edits. The *owner* is the process whose end ends the run: the newest
supervisor, or, where a script runs alone, the worker that wrote AttemptStarted itself.

    status = RunEnded of the owner's file, if it is there
             running      while the owner lives (as far as can be told: see gscalar.control.liveness)
             completed    the owner is dead, and rank 0 of the newest attempt has finished
             interrupted  the owner is dead otherwise: resumable
             queued       nobody has begun
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gscalar.control.indexing import accounting, attempts, figures, lifetimes, parameters
from gscalar.control.indexing.readings import NO_CUT, FileReading, Readings, Workers, find_start
from gscalar.model import events
from gscalar.model.status import Status
from gscalar.state.catalog.rows import AttemptRow, RunSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What job.json says."""

    project: str
    name: str
    created_ns: int
    spec: dict[str, Any]
    origins: dict[str, str]


def find_cuts(readings: Readings) -> dict[str, int]:
    """Return, for each worker's file, the last step that no later attempt has superseded."""
    starts = {attempt: find_start(ranks.values()) for attempt, ranks in group_workers(readings).items()}
    return {
        file: min(
            (start for attempt, start in starts.items() if attempt > reading.attempt and start is not None),
            default=NO_CUT,
        )
        for file, reading in readings.items()
        if reading.is_worker
    }


def find_owner(readings: Readings) -> FileReading | None:
    """Return the file of the process whose end ends the run."""
    candidates = [each for each in readings.values() if each.num_events and (each.launches or each.is_supervisor)]
    return max(candidates, key=lambda each: (each.attempt, each.is_supervisor, each.header.time_ns), default=None)


def summarize(run_id: str, job: Job | None, files: Readings, *, alive: bool) -> RunSummary | None:
    """Return the run; None where neither a job nor a record says that there is one.

    `alive` tells whether the owner's process may still be there. The readings must have their cuts.
    """
    # 1. Who wrote what. Sorted, so that the order in which files were found changes nothing.
    readings = {file: files[file] for file in sorted(files) if files[file].num_events}
    if job is None and not readings:
        return None
    workers = group_workers(readings)
    owner = find_owner(readings)
    started = _find(workers, lambda each: each.job)
    newest = _find(workers, lambda each: each if each.trained else None)
    finished = newest.finished if newest else None
    # 2. What was asked for, by the job, the script and later edits.
    job = _effective_job(run_id, job, started, readings)
    edits = sort_edits(readings)
    # 3. What became of it.
    tokens, samples = figures.consumed(workers, finished)
    status = judge(owner, workers, alive=alive)
    rows = attempts.attempt_rows(readings, workers, owner, status)
    return RunSummary(
        id=run_id,
        project=job.project,
        name=_newest_name(edits, job.name),
        status=status.value,
        created_ns=job.created_ns,
        started_ns=rows[0].started_ns if rows else None,
        ended_ns=_ended_ns(status, owner, readings),
        last_seen_ns=_last_seen_ns(readings),
        steps=figures.steps(readings),
        total_steps=newest.total_steps if newest else 0,
        tokens=tokens,
        samples=samples,
        world=rows[-1].world if rows else parameters.whole(job.spec.get("workers")) or 0,
        seed=parameters.whole(job.spec.get("seed")),
        spec=job.spec,
        origins=job.origins,
        environment=started.environment if started else {},
        facts=_find(workers, lambda each: each.facts or None) or {},
        digests=parameters.digests(job.spec, finished),
        throughput=figures.throughput(newest, job.spec),
        measured=_measure(readings, workers, rows) | {"headerless": figures.headerless(files)},
        nonfinite=figures.nonfinite(readings),
        num_dropped=sum(each.num_dropped for each in readings.values()),
        damage=figures.damage(files, rows),
        owner=owner_dict(owner) if owner else None,
        deleted_ns=next((edit.time_ns for edit in edits if edit.deleted), None),
        attempts=rows,
        params=tuple(parameters.flatten_spec(job.spec, job.origins)),
        tags=parameters.tags(job.spec, edits),
        metrics=figures.metrics(workers),
        checkpoints=figures.checkpoints(readings),
        failures=attempts.failure_rows(readings),
        notes=figures.notes(readings),
    )


def _measure(readings: Readings, workers: Workers, rows: tuple[AttemptRow, ...]) -> dict[str, Any]:
    """Return where the time went and what the hardware did; None for what nobody has measured."""
    ranks = accounting.newest_accounted(workers)
    return {
        "accounts": accounting.accounts(ranks),
        "slowest": accounting.slowest(ranks),
        "goodput": lifetimes.goodput(readings, workers, rows),
        "hardware": accounting.hardware(readings),
        "clocks": accounting.clocks(ranks),
        "attempt": next((each.attempt for each in ranks.values()), None),
    }


def group_workers(readings: Readings) -> Workers:
    """Return the workers' files by attempt and rank, both ascending."""
    found: Workers = {}
    for reading in readings.values():
        if reading.is_worker:
            found.setdefault(reading.attempt, {})[reading.header.rank] = reading
    return {attempt: dict(sorted(found[attempt].items())) for attempt in sorted(found)}


def judge(owner: FileReading | None, workers: Workers, *, alive: bool) -> Status:
    """Return the run's status (see the top of this module)."""
    if owner is None:
        return Status.QUEUED
    if owner.run_ended is not None:
        word = owner.run_ended.status
        return Status(word) if word in set(Status) else Status.FAILED
    if alive:
        return Status.RUNNING
    newest = next(reversed(workers.values()), {})
    first = next(iter(newest.values()), None)
    if first is None or first.attempt != owner.attempt or first.finished is None or first.stop_acknowledged:
        return Status.INTERRUPTED
    return Status.COMPLETED


def sort_edits(readings: Readings) -> list[events.Edited]:
    """Return the edits of all files in the order in which they were made."""
    told = [(each.time_ns, file, each) for file, reading in readings.items() for each in reading.edits]
    return [each for _, _, each in sorted(told, key=lambda item: item[:2])]


def _find(workers: Workers, get: Any) -> Any:
    """Return what the lowest rank of the newest attempt that has it says."""
    for attempt in reversed(workers):
        for reading in workers[attempt].values():
            value = get(reading)
            if value is not None:
                return value
    return None


def _effective_job(run_id: str, job: Job | None, started: events.WorkerStarted | None, readings: Readings) -> Job:
    """Return the job with what the script added: the worker knows better than the launcher."""
    if job is None:
        times = [each.header.time_ns for each in readings.values() if each.header.time_ns]
        job = Job(project="default", name=run_id, created_ns=min(times, default=0), spec={}, origins={})
    if started is None:
        return job
    return Job(
        project=started.project or job.project,
        name=started.name or job.name,
        created_ns=job.created_ns,
        spec=started.spec or job.spec,
        origins=started.origins or job.origins,
    )


def _newest_name(edits: Iterable[events.Edited], name: str) -> str:
    for edit in edits:
        name = name if edit.name is None else edit.name
    return name


def _last_seen_ns(readings: Readings) -> int | None:
    processes = (each for each in readings.values() if each.is_worker or each.is_supervisor)
    return max((each.last_time_ns for each in processes), default=None)


def _ended_ns(status: Status, owner: FileReading | None, readings: Readings) -> int | None:
    if not status.ended:
        return None
    return owner.run_ended.time_ns if owner and owner.run_ended else _last_seen_ns(readings)


def owner_dict(owner: FileReading) -> dict[str, Any]:
    """Return who the owner is, as `gscalar.control.liveness` asks for it."""
    return {"host": owner.header.host, "pid": owner.header.pid, "pid_start": owner.header.pid_start}
