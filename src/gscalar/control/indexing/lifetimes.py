"""When the attempts of a run began, trained and ended, for `gscalar.observation.goodput`.

The *owner* of an attempt is whoever told that it began: the supervisor, or a script alone. Its file says when the
attempt began and ended and how the clock jumped meanwhile; the failures say when work ended; rank 0's file (or the
lowest rank's that stepped) what its steps took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gscalar.control.indexing.attempts import failure_rows
from gscalar.control.indexing.readings import FileReading, Readings, Workers
from gscalar.control.indexing.sums import add_accounts
from gscalar.model.accounts import ACCOUNTS
from gscalar.model.status import FailureClass
from gscalar.observation.goodput import AttemptTimes, Goodput, Jump, measure_goodput
from gscalar.state.catalog.rows import AttemptRow, FailureRow

_PLACES = {name: place for place, name in enumerate(ACCOUNTS)}


def goodput(readings: Readings, workers: Workers, rows: Sequence[AttemptRow]) -> dict[str, Any] | None:
    """Return the run's goodput as `gscalar show` gives it; None before the first step."""
    found = measure_goodput(list(attempt_times(readings, workers, rows)))
    return None if found is None or found.total_s <= 0 else _told(found)


def attempt_times(readings: Readings, workers: Workers, rows: Sequence[AttemptRow]) -> Iterable[AttemptTimes]:
    """Yield the times of the attempts that began, in order."""
    failures = failure_rows(readings)
    owners = {launch.attempt: each for each in readings.values() for launch in each.launches}
    for row in rows:
        if row.started_ns is None:
            continue
        ranks, owner = workers.get(row.attempt, {}), owners.get(row.attempt)
        ended_ns = max(row.started_ns, _end_ns(row, ranks, owner))
        failure = _failure(row, owner, [each for each in failures if each.attempt == row.attempt])
        stepped = next((each for each in ranks.values() if each.stepped), None)
        yield AttemptTimes(
            started_ns=row.started_ns,
            ended_ns=ended_ns,
            jumps=_jumps(row.attempt, ranks, owner, after_end=False),
            failed_ns=failure[0] if failure else None,
            silent_since_ns=_silent_since_ns(failure[1] if failure else None, ranks),
            after_s=_after_s(row.attempt, ended_ns, ranks, owner),
            **(_steps(stepped) if stepped else {}),
        )


def _steps(reading: FileReading) -> dict[str, Any]:
    """Return what the steps of rank 0 took."""
    waits: dict[str, Any] = {}
    if reading.num_accounted or reading.first_accounts:
        sums_s = add_accounts(reading.accounts_s, [reading.first_accounts])
        waits = {"data_wait_s": sums_s[_PLACES["data_wait"]], "checkpoint_s": sums_s[_PLACES["checkpoint"]]}
    return {
        "first_step_ns": reading.first_step_ns,
        "counted_s": reading.first_s + reading.timed_s,
        "superseded_s": reading.superseded_s,
        **waits,
    }


def _end_ns(row: AttemptRow, ranks: Mapping[int, FileReading], owner: FileReading | None) -> int:
    """Return the attempt's end, or the newest that is known of it while it goes on."""
    if row.ended_ns is not None:
        return row.ended_ns
    files = [*ranks.values(), *([owner] if owner else [])]
    return max((each.last_time_ns for each in files), default=0)


def _failure(
    row: AttemptRow, owner: FileReading | None, failures: Sequence[FailureRow]
) -> tuple[int, FailureRow | None] | None:
    """Return when an attempt failed and the failure that came first; None where it did not fail.

    One that was stopped on purpose has not failed, whatever its workers said on the way out. One that has ended
    without a word has: its owner died.
    """
    told = owner is not None and any(each.attempt == row.attempt for each in owner.endings)
    died = row.outcome == "killed" and not told
    if row.ended_ns is None or not (row.outcome == "failed" or died):
        return None
    first = min(failures, key=lambda each: (each.secondary, each.time_ns), default=None)
    hung = next((each for each in failures if each.failure_class == FailureClass.HUNG), None)
    root = hung or first
    return (root.time_ns if root and not died else row.ended_ns), root


def _silent_since_ns(failure: FailureRow | None, ranks: Mapping[int, FileReading]) -> int | None:
    if failure is None or failure.failure_class != FailureClass.HUNG or failure.rank not in ranks:
        return None
    return ranks[failure.rank].alive_ns


def _after_s(attempt: int, ended_ns: int, ranks: Mapping[int, FileReading], owner: FileReading | None) -> float:
    """Return how long the owner went on after an attempt: to its next one, or to its end."""
    if owner is None:
        return 0.0
    launches = [each.time_ns for each in owner.launches if each.attempt > attempt]
    until_ns = min(launches, default=owner.run_ended.time_ns if owner.run_ended else owner.last_time_ns)
    jumped_s = sum(each.by_s for each in _jumps(attempt, ranks, owner, after_end=True))
    return max(0.0, (until_ns - ended_ns) / 1e9 - jumped_s)


def _jumps(
    attempt: int, ranks: Mapping[int, FileReading], owner: FileReading | None, *, after_end: bool
) -> tuple[Jump, ...]:
    """Return how the clock jumped, by the owner's word; where it has none, by rank 0's."""
    told = owner.jumps if owner and owner.jumps else ranks[0].jumps if 0 in ranks else []
    return tuple(
        Jump(time_ns=each.time_ns, by_s=each.by_s)
        for each in told
        if each.attempt == attempt and each.after_end == after_end
    )


def _told(found: Goodput) -> dict[str, Any]:
    fields = asdict(found)
    productive_s = fields.pop("productive_s")
    return {
        "productive_s": productive_s,
        "total_s": found.total_s,
        "ratio": found.ratio,
        "lost": {name.removesuffix("_s"): seconds for name, seconds in fields.items()},
    }
