"""What came out: steps, tokens, rates, metrics, checkpoints, and what went wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gscalar.control.indexing.readings import FileReading, Readings, Workers
from gscalar.model import events
from gscalar.model.flops import mfu
from gscalar.model.roles import count_plain_roles
from gscalar.state.catalog.rows import AttemptRow, CheckpointRow, MetricSummary, NoteRow


def steps(readings: Readings) -> int:
    """Return how many optimizer steps are done, without superseded ones."""
    most = 0
    for reading in readings.values():
        if reading.is_worker:
            resumed = reading.resumed.step if reading.resumed else 0
            finished = reading.finished.step if reading.finished else 0
            most = max(most, reading.last_step, min(max(resumed, finished), reading.cut))
    return most


def consumed(workers: Workers, finished: events.Finished | None) -> tuple[float, float]:
    """Return tokens and samples of all steps that count; the worker's own counters where it has finished."""
    if finished is not None:
        return finished.tokens, finished.samples
    firsts = [next((each for each in ranks.values() if each.stepped), None) for ranks in workers.values()]
    told = [each for each in firsts if each is not None]
    return math.fsum(each.tokens for each in told), math.fsum(each.samples for each in told)


def throughput(newest: FileReading | None, spec: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates over the newest attempt's steps but the first, which warms up.

    With `mfu`, the model FLOPs utilization over all workers, where the spec says what it takes.
    """
    if newest is None or newest.timed_s <= 0:
        return {}
    found = {"steps_per_s": newest.num_timed / newest.timed_s}
    if newest.timed_samples > 0:
        found["samples_per_s"] = newest.timed_samples / newest.timed_s
    if newest.timed_tokens > 0:
        found["tokens_per_s"] = newest.timed_tokens / newest.timed_s
    utilization = mfu(spec.get("flops"), found, count_plain_roles(spec, newest.header.world)["worker"])
    return found if utilization is None else found | {"mfu": utilization}


def metrics(workers: Workers) -> dict[str, MetricSummary]:
    """Return each name's summary over all attempts, of the lowest rank that logged it."""
    lowest: dict[str, int] = {}
    for ranks in workers.values():
        for rank, reading in ranks.items():
            for name in reading.metrics:
                lowest[name] = min(rank, lowest.get(name, rank))
    found: dict[str, MetricSummary] = {}
    for name in sorted(lowest):
        summary = MetricSummary()
        for ranks in workers.values():
            worker = ranks.get(lowest[name])
            if worker is not None and name in worker.metrics:
                summary = summary.then(worker.metrics[name])
        found[name] = summary
    return found


def checkpoints(readings: Readings) -> tuple[CheckpointRow, ...]:
    """Return what is saved, not removed since, and of no step that a later attempt has superseded."""
    removed_ns: dict[str, int] = {}
    for reading in readings.values():
        for path, time_ns in reading.removed.items():
            removed_ns[path] = max(time_ns, removed_ns.get(path, 0))
    found: dict[str, CheckpointRow] = {}
    for reading in sorted(readings.values(), key=lambda each: each.attempt):
        for path, each in reading.saved.items():
            if each.step > reading.cut or each.time_ns <= removed_ns.get(path, -1):
                continue
            found[path] = CheckpointRow(
                path=path,
                step=each.step,
                attempt=reading.attempt,
                time_ns=each.time_ns,
                num_bytes=each.num_bytes,
                sha256=each.sha256,
            )
    return tuple(sorted(found.values(), key=lambda each: (each.step, each.time_ns, each.path)))


def nonfinite(readings: Readings) -> dict[str, Any]:
    """Return how often a loss or gradient was not finite, and the first time; empty where never."""
    firsts = [each.first_nonfinite for each in readings.values() if each.first_nonfinite is not None]
    if not firsts:
        return {}
    first = min(firsts, key=lambda each: (each.step, each.rank))
    return {
        "count": sum(each.num_nonfinite for each in readings.values()),
        "step": first.step,
        "rank": first.rank,
        "what": first.what,
        "parameter": first.name,
    }


def damage(files: Readings, rows: Iterable[AttemptRow]) -> dict[str, Any]:
    """Return what could not be read of the records, and what is not there of them; empty where all is well."""
    damaged = {file: each for file, each in files.items() if each.num_events and (each.num_damaged or each.num_unnamed)}
    cut_off, missing = _incomplete(files, rows)
    if not (damaged or cut_off or missing):
        return {}
    return {
        "regions": sum(each.num_damaged for each in damaged.values()),
        "bytes": sum(each.damaged_bytes for each in damaged.values()),
        "nameless_points": sum(each.num_unnamed for each in damaged.values()),
        "files": sorted(damaged),
        "unclosed": cut_off,
        "missing": missing,
    }


def _incomplete(files: Readings, rows: Iterable[AttemptRow]) -> tuple[list[str], list[str]]:
    """Return the workers' files without their last seal, and the ranks (as attempt/rank) without a file.

    Only an attempt whose end was told as completed has closed all its files; any other may have been killed in
    the middle of them. A run without any worker's file has a script that does not record: nothing is missing.
    """
    told = {each.attempt for reading in files.values() for each in reading.endings if each.outcome == "completed"}
    completed = {row.attempt: row.world for row in rows if row.attempt in told and row.outcome == "completed"}
    workers = {file: each for file, each in files.items() if each.is_worker}
    cut_off = sorted(file for file, each in workers.items() if each.attempt in completed and not each.closed)
    there = {(each.attempt, each.header.rank) for each in workers.values()}
    missing = [
        f"{attempt}/{rank}"
        for attempt, world in sorted(completed.items())
        for rank in range(world)
        if there and (attempt, rank) not in there
    ]
    return cut_off, missing


def headerless(readings: Readings) -> list[str]:
    """Return the workers' files in which no event can be read: empty, or torn in their first one."""
    return sorted(file for file, each in readings.items() if each.is_worker and not each.num_events)


def notes(readings: Readings) -> tuple[NoteRow, ...]:
    """Return the lines for people in the order of time; one that several writers have said stands once."""
    told: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    for reading in readings.values():
        for attempt, each in reading.notes:
            place = (each.time_ns, reading.header.rank, attempt)
            told.setdefault((each.level, each.code, each.text), []).append(place)
    rows = [
        NoteRow(attempt=attempt, rank=rank, time_ns=time_ns, level=level, code=code, text=text, count=len(places))
        for (level, code, text), places in told.items()
        for time_ns, rank, attempt in [min(places)]
    ]
    return tuple(sorted(rows, key=lambda each: (each.time_ns, each.rank, each.code, each.text)))
