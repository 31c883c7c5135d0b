"""The one form in which a run is shown: stable keys, times in ISO 8601, paths absolute.

`gscalar show --json`, `gscalar runs --json` and later the server's API give exactly these keys; new ones
may come, none goes or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gscalar.model.roles import count_plain_roles
from gscalar.state.catalog.rows import AttemptRow, CheckpointRow, FailureRow, NoteRow, RunSummary
from gscalar.state.home import Home, RunFolder


def describe_run(home: Home, run: RunSummary) -> dict[str, Any]:
    """Return everything about a run as JSON values; numbers may be NaN or infinite."""
    folder = home.run(run.id)
    return {
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "status": run.status,
        "spec": run.spec,
        "plan": run.spec.get("plan", {}),
        "seed": run.seed,
        "tags": run.tags,
        "steps": run.steps,
        "tokens": whole(run.tokens),
        "attempts": [_attempt(each, run.spec) for each in run.attempts],
        "metrics": {
            name: {"last": each.last, "min": each.min, "max": each.max, "count": each.count}
            for name, each in run.metrics.items()
        },
        "digests": {"weights": None, "data": None, "spec": None} | run.digests,
        "checkpoints": [_checkpoint(folder, each) for each in run.checkpoints],
        "environment": run.environment,
        "origins": run.origins,
        "world": run.world,
        "samples": whole(run.samples),
        "total_steps": run.total_steps,
        "created": iso_time(run.created_ns),
        "started": iso_time(run.started_ns),
        "ended": iso_time(run.ended_ns),
        "last_seen": iso_time(run.last_seen_ns),
        "throughput": {"mfu": None} | run.throughput,
        "accounts": run.measured.get("accounts"),
        "slowest": run.measured.get("slowest"),
        "goodput": run.measured.get("goodput"),
        "hardware": run.measured.get("hardware"),
        "clocks": _clocks(run.measured.get("clocks") or {}),
        "facts": run.facts,
        "failures": [_failure(each) for each in run.failures],
        "notes": [_note(each) for each in run.notes],
        "nonfinite": run.nonfinite or None,
        "dropped": run.num_dropped,
        "damage": run.damage or None,
        "headerless": run.measured.get("headerless") or [],
        "folder": str(folder.path),
    }


def iso_time(time_ns: int | None) -> str | None:
    """Return a time in UTC with microseconds, such as `2026-01-02T03:04:05.000000Z`."""
    if time_ns is None:
        return None
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns // 1000:06d}Z"


def whole(number: float) -> int | float:
    """Return a count as an integer; tokens and samples are weights and may be fractions."""
    return int(number) if number.is_integer() else number


def _clocks(told: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        rank: {"offset_s": each["offset_s"], "drift": each["drift"], "bound_s": each["bound_s"]}
        for rank, each in told.items()
    }


def _attempt(row: AttemptRow, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": row.attempt,
        "started": iso_time(row.started_ns),
        "ended": iso_time(row.ended_ns),
        "outcome": row.outcome,
        "failure": row.failure,
        "world": row.world,
        "roles": count_plain_roles(spec, row.world),
        "from_step": row.from_step,
    }


def _checkpoint(folder: RunFolder, row: CheckpointRow) -> dict[str, Any]:
    return {
        "step": row.step,
        "path": str(folder.path / row.path),
        "bytes": row.num_bytes,
        "sha256": row.sha256,
    }


def _failure(row: FailureRow) -> dict[str, Any]:
    return {
        "time": iso_time(row.time_ns),
        "attempt": row.attempt,
        "rank": row.rank,
        "step": row.step,
        "failure_class": row.failure_class,
        "kind": row.kind,
        "message": row.message,
        "traceback": row.traceback,
        "secondary": row.secondary,
    }


def _note(row: NoteRow) -> dict[str, Any]:
    return {
        "time": iso_time(row.time_ns),
        "attempt": row.attempt,
        "rank": row.rank,
        "level": row.level,
        "code": row.code,
        "text": row.text,
        "count": row.count,
    }
