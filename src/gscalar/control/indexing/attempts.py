"""The attempts of a run and the ways in which workers failed, from the readings of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from gscalar.control.indexing.readings import FileReading, Readings, Workers, find_start
from gscalar.model import events
from gscalar.model.status import Status
from gscalar.state.catalog.rows import AttemptRow, FailureRow

_OUTCOMES: Final = {Status.COMPLETED: "completed", Status.FAILED: "failed"}


def attempt_rows(
    readings: Readings, workers: Workers, owner: FileReading | None, status: Status
) -> tuple[AttemptRow, ...]:
    """Return the attempts in order, with an end for each that must be over."""
    launches = {each.attempt: each for reading in readings.values() for each in reading.launches}
    endings = {each.attempt: each for reading in readings.values() for each in reading.endings}
    indices = sorted({*launches, *workers})
    rows = []
    for index in indices:
        ranks = workers.get(index, {})
        ending = endings.get(index)
        if ending is None and index != indices[-1]:
            ending = _lost(index, ranks, owner)
        elif ending is None and status.ended:
            ending = _last_ending(index, ranks, owner, status)
        rows.append(_attempt(index, launches.get(index), ending, ranks, readings))
    return tuple(rows)


def failure_rows(readings: Readings) -> tuple[FailureRow, ...]:
    """Return the failures in the order of time; worker and supervisor may both tell of one."""
    told: dict[tuple[int, int, str, str], FailureRow] = {}
    for reading in readings.values():
        for attempt, each in reading.failures:
            key = (attempt, each.rank, each.kind, each.message)
            # Workers' files come first, and only they have the traceback.
            told.setdefault(
                key,
                FailureRow(
                    attempt=attempt,
                    rank=each.rank,
                    time_ns=each.time_ns,
                    step=each.step,
                    failure_class=each.failure_class,
                    kind=each.kind,
                    message=each.message,
                    traceback=each.traceback,
                    secondary=each.secondary,
                ),
            )
    return tuple(sorted(told.values(), key=lambda each: (each.time_ns, each.rank, each.kind, each.message)))


def _attempt(
    index: int,
    launch: events.AttemptStarted | None,
    ending: events.AttemptEnded | None,
    ranks: Mapping[int, FileReading],
    readings: Readings,
) -> AttemptRow:
    headers = [each.header for each in ranks.values()]
    failure = ending.failure if ending else None
    if ending is not None and failure is None and ending.outcome != "completed":
        failure = _primary_failure(index, readings)
    return AttemptRow(
        attempt=index,
        started_ns=launch.time_ns if launch else min((each.time_ns for each in headers), default=None),
        ended_ns=ending.time_ns if ending else None,
        outcome=ending.outcome if ending else None,
        failure=failure,
        world=launch.world if launch else max((each.world for each in headers), default=0),
        from_step=max(0, find_start(ranks.values()) or 0),
    )


def _last_ending(
    index: int, ranks: Mapping[int, FileReading], owner: FileReading | None, status: Status
) -> events.AttemptEnded:
    """Return the end of the last attempt where only the run's end is told, as a script alone does."""
    if owner is not None and owner.run_ended is not None:
        return events.AttemptEnded(index, owner.run_ended.time_ns, _OUTCOMES.get(status, "stopped"))
    lost = _lost(index, ranks, owner)
    return events.AttemptEnded(index, lost.time_ns, "completed") if status is Status.COMPLETED else lost


def _lost(index: int, ranks: Mapping[int, FileReading], owner: FileReading | None) -> events.AttemptEnded:
    """Return the end of an attempt whose owner died: when something was last heard of it."""
    times = [each.last_time_ns for each in ranks.values()]
    if not times and owner is not None:
        times = [each.time_ns for each in owner.launches if each.attempt == index] or [owner.last_time_ns]
    return events.AttemptEnded(index, max(times, default=0), "killed")


def _primary_failure(attempt: int, readings: Readings) -> dict[str, Any] | None:
    """Return the failure that came first and is no consequence of another one."""
    found = [each for each in failure_rows(readings) if each.attempt == attempt]
    if not found:
        return None
    fields = asdict(min(found, key=lambda each: (each.secondary, each.time_ns)))
    return {key: value for key, value in fields.items() if key not in ("attempt", "time_ns")}
