"""Writing and reading the rows of one run. A run's rows are replaced as a whole, in one transaction.

Two processes may index the same run. `check_unmoved` compares the offsets from which each of them has read
with those that are stored: where another process was faster, nothing is written, and the slower one reads on
from what is stored now. So every event is counted once, by (run, attempt, rank, offset).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from gscalar.state.catalog import schema
from gscalar.state.catalog.assembling import EXACT, HEAD, assemble_runs, make_metric, make_row
from gscalar.state.catalog.rows import FileRow, MetricSummary, RunState, RunSummary


class Overtaken(Exception):
    """Another process has read on from the same offset and was faster. Nothing is written."""


# ---- a run


def replace_run(connection: sa.Connection, summary: RunSummary) -> None:
    """Store a run in place of what is stored of it, but for its record files.

    Raises:
        Overtaken: another process has stored the new run in between.
    """
    fields = {name: getattr(summary, name) for name in HEAD}
    known = connection.scalar(sa.select(schema.runs.c.project).where(schema.runs.c.id == summary.id))
    if known is None:
        _insert_new(connection, schema.runs, fields)
    else:
        connection.execute(schema.runs.update().where(schema.runs.c.id == summary.id), fields)
    if known != summary.project:
        _add_project(connection, summary.project)
        _drop_empty_project(connection, known)
    _replace(connection, schema.attempts, summary.id, map(_plain, summary.attempts))
    _replace(connection, schema.params, summary.id, map(_plain, summary.params))
    tags = ({"key": key, "value": value} for key, value in summary.tags.items())
    _replace(connection, schema.tags, summary.id, tags)
    metrics = ({"name": name} | _metric_columns(each) for name, each in summary.metrics.items())
    _replace(connection, schema.run_metrics, summary.id, metrics)
    _replace(connection, schema.checkpoints, summary.id, map(_plain, summary.checkpoints))
    failures = (_plain(each) | {"position": place} for place, each in enumerate(summary.failures))
    _replace(connection, schema.failures, summary.id, failures)
    notes = (_plain(each) | {"position": place} for place, each in enumerate(summary.notes))
    _replace(connection, schema.notes, summary.id, notes)


def load_runs(connection: sa.Connection, run_ids: Iterable[str]) -> list[RunSummary]:
    """Return the runs of these ids that are known, in the order of the ids."""
    ids = list(run_ids)
    found: dict[str, RunSummary] = {}
    for start in range(0, len(ids), _CHUNK):
        found |= _load_chunk(connection, ids[start : start + _CHUNK])
    return [found[run_id] for run_id in ids if run_id in found]


# Databases limit how many values one statement may carry.
_CHUNK: Final = 500


def _load_chunk(connection: sa.Connection, ids: list[str]) -> dict[str, RunSummary]:
    def select(name: str, key: str, order: Sequence[str]) -> Iterable[sa.RowMapping]:
        table = schema.metadata.tables[name]
        query = sa.select(table).where(table.c[key].in_(ids)).order_by(*(table.c[each] for each in order))
        return connection.execute(query).mappings()

    return assemble_runs(select)


def load_states(connection: sa.Connection) -> dict[str, RunState]:
    """Return what tells for each run whether it needs another look."""
    return {row.id: _state(row) for row in connection.execute(_STATES)}


def load_state(connection: sa.Connection, run_id: str) -> RunState | None:
    """Return the same for one run; None where it is not known."""
    row = connection.execute(_STATES.where(schema.runs.c.id == run_id)).first()
    return None if row is None else _state(row)


_STATES: Final = sa.select(
    schema.runs.c.id,
    schema.runs.c.status,
    schema.runs.c.owner,
    schema.runs.c.deleted_ns,
    schema.runs.c.settled_mtime_ns,
)


def _state(row: Any) -> RunState:
    return RunState(
        status=row.status,
        owner=row.owner,
        deleted=row.deleted_ns is not None,
        settled_mtime_ns=row.settled_mtime_ns,
    )


def count_runs(connection: sa.Connection) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return how many runs there are, and the damage of those whose records have some, by id."""
    columns = schema.runs.c
    rows = connection.execute(sa.select(columns.id, columns.damage).where(columns.deleted_ns.is_(None))).all()
    return len(rows), {row.id: row.damage for row in sorted(rows, key=lambda row: row.id) if row.damage}


def mark_settled(connection: sa.Connection, run_id: str, mtime_ns: int | None) -> None:
    """Remember that an ended run has not moved; None takes it back."""
    query = schema.runs.update().where(schema.runs.c.id == run_id)
    connection.execute(query.values(settled_mtime_ns=mtime_ns))


def mark_deleted(connection: sa.Connection, run_id: str, time_ns: int) -> None:
    """Leave nothing of a run but a tombstone, so that its id is never given again."""
    for table in schema.OF_A_RUN:
        connection.execute(table.delete().where(table.c.run_id == run_id))
    query = schema.runs.update().where(schema.runs.c.id == run_id)
    empty: dict[str, Any] = {"spec": {}, "origins": {}, "environment": {}, "facts": {}, "digests": {}, "owner": None}
    connection.execute(query.values(deleted_ns=time_ns, settled_mtime_ns=None, **empty))


def forget_run(connection: sa.Connection, run_id: str) -> None:
    """Take a run out of the catalog as if it had never been read."""
    for table in schema.OF_A_RUN:
        connection.execute(table.delete().where(table.c.run_id == run_id))
    project = connection.scalar(sa.select(schema.runs.c.project).where(schema.runs.c.id == run_id))
    connection.execute(schema.runs.delete().where(schema.runs.c.id == run_id))
    _drop_empty_project(connection, project)


def forget_all(connection: sa.Connection) -> None:
    """Take everything out of the catalog but the tombstones of deleted runs."""
    for table in schema.OF_A_RUN:
        connection.execute(table.delete())
    connection.execute(schema.runs.delete().where(schema.runs.c.deleted_ns.is_(None)))
    used = sa.select(schema.runs.c.project)
    connection.execute(schema.projects.delete().where(schema.projects.c.name.not_in(used)))


def check_unmoved(connection: sa.Connection, run_id: str, expected: Mapping[str, int]) -> bool:
    """Tell whether the run may be stored by somebody who has read on from these offsets, by file.

    False where the run has been deleted meanwhile. Other writers wait until the transaction ends.

    Raises:
        Overtaken: other offsets are stored; roll back, load, and read on from them.
    """
    # SQLite ignores the row lock: there, a writing transaction has the whole file.
    query = sa.select(schema.runs.c.deleted_ns).where(schema.runs.c.id == run_id).with_for_update()
    row = connection.execute(query).first()
    if row is not None and row.deleted_ns is not None:
        return False
    columns = schema.record_files.c
    query = sa.select(columns.file, columns.offset).where(columns.run_id == run_id)
    if {row[0]: row[1] for row in connection.execute(query)} != expected:
        raise Overtaken(run_id)
    return True


def _add_project(connection: sa.Connection, name: str) -> None:
    projects = schema.projects
    if connection.scalar(sa.select(projects.c.name).where(projects.c.name == name)) is None:
        _insert_new(connection, projects, {"name": name})


def _drop_empty_project(connection: sa.Connection, name: str | None) -> None:
    in_it = sa.exists().where(schema.runs.c.project == name)
    connection.execute(schema.projects.delete().where(schema.projects.c.name == name, ~in_it))


# ---- its record files


def load_files(connection: sa.Connection, run_id: str) -> dict[str, FileRow]:
    """Return how far the run's record files are read, by their names."""
    metrics: dict[str, dict[str, MetricSummary]] = {}
    table = schema.metric_summaries
    for row in connection.execute(sa.select(table).where(table.c.run_id == run_id)).mappings():
        metrics.setdefault(row["file"], {})[row["name"]] = make_metric(row)
    table = schema.record_files
    rows = connection.execute(sa.select(table).where(table.c.run_id == run_id)).mappings()
    return {row["file"]: make_row(FileRow, row, metrics=metrics.get(row["file"], {})) for row in rows}


def load_file_times(connection: sa.Connection, run_id: str) -> dict[str, tuple[int, int]]:
    """Return size and time of change of the run's record files when they were read."""
    columns = schema.record_files.c
    query = sa.select(columns.file, columns.size, columns.mtime_ns).where(columns.run_id == run_id)
    return {row[0]: (row[1], row[2]) for row in connection.execute(query)}


def save_files(connection: sa.Connection, run_id: str, rows: Iterable[FileRow]) -> None:
    """Store how far files are read and what they say."""
    table = schema.record_files
    for row in rows:
        fields = _plain(row) | {"run_id": run_id}
        del fields["metrics"]
        connection.execute(table.delete().where((table.c.run_id == run_id) & (table.c.file == row.file)))
        connection.execute(table.insert(), fields)
        _save_metrics(connection, run_id, row)


def _save_metrics(connection: sa.Connection, run_id: str, row: FileRow) -> None:
    table = schema.metric_summaries
    connection.execute(table.delete().where((table.c.run_id == run_id) & (table.c.file == row.file)))
    place = {"run_id": run_id, "file": row.file, "attempt": row.attempt, "rank": row.rank}
    rows = [place | {"name": name} | _metric_columns(each) for name, each in row.metrics.items()]
    if rows:
        connection.execute(table.insert(), rows)


# ---- values


def _insert_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    try:
        connection.execute(table.insert(), row)
    except sa.exc.IntegrityError as error:
        # Where writers do not wait for one another, another one had the same news.
        raise Overtaken(table.name) from error


def _replace(connection: sa.Connection, table: sa.Table, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
    connection.execute(table.delete().where(table.c.run_id == run_id))
    values = [{**row, "run_id": run_id} for row in rows]
    if values:
        connection.execute(table.insert(), values)


def _plain(row: Any) -> dict[str, Any]:
    # `dataclasses.asdict` would copy the values deeply.
    return {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}


def _metric_columns(summary: MetricSummary) -> dict[str, Any]:
    return {
        "count": summary.count,
        "num_nan": summary.num_nan,
        "last_step": summary.last_step,
        "last": _comparable(summary.last),
        "min": _comparable(summary.min),
        "max": _comparable(summary.max),
        "exact": EXACT.pack(summary.last, summary.least, summary.greatest),
    }


def _comparable(value: float) -> float | None:
    return None if math.isnan(value) else value
