"""The tables of the catalog: what searches and tables of runs are answered from.

Everything here is computed from record files and can be dropped (`gscalar doctor --rebuild`); only
the rows of deleted runs (`runs.deleted_ns`) hold something that no record says. The same definitions
serve SQLite and PostgreSQL.

    projects            name spaces
    runs                one row a run, with its spec, origins, environment and digests as JSON
    attempts, params, tags, run_metrics, checkpoints, failures, notes     of a run, replaced as a whole
    record_files        how far each record file is read, and what it said (`facts`)
    metric_summaries    what each record file, that is each (attempt, rank), logged
    revisions           which version of the package brought the tables to which revision

Numbers that may be NaN stand twice: exactly, as little-endian float64 in `exact`, and as a number to
compare and sort by, which is NULL for NaN (SQLite would make NaN a NULL by itself, and PostgreSQL
would sort it above everything).
"""

from __future__ import annotations

import json
from typing import Any, Final

import sqlalchemy as sa

from gscalar.state.catalog.revision import HEAD_REVISION as HEAD_REVISION


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON in a text column.

    The JSON types of the databases differ in what they take (PostgreSQL refuses NaN), so the text is ours:
    Python's JSON, with NaN and infinities as the bare words that `json` reads back.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


metadata = sa.MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created_ns", sa.BigInteger, nullable=False),
    sa.Column("started_ns", sa.BigInteger),
    sa.Column("ended_ns", sa.BigInteger),
    sa.Column("last_seen_ns", sa.BigInteger),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("total_steps", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.Double, nullable=False),
    sa.Column("samples", sa.Double, nullable=False),
    sa.Column("world", sa.Integer, nullable=False),
    sa.Column("seed", sa.BigInteger),
    sa.Column("spec", JsonText, nullable=False),
    sa.Column("origins", JsonText, nullable=False),
    sa.Column("environment", JsonText, nullable=False),
    sa.Column("facts", JsonText, nullable=False),
    sa.Column("digests", JsonText, nullable=False),
    sa.Column("throughput", JsonText, nullable=False),
    sa.Column("measured", JsonText, nullable=False, server_default="{}"),
    sa.Column("nonfinite", JsonText, nullable=False),
    sa.Column("num_dropped", sa.BigInteger, nullable=False),
    sa.Column("damage", JsonText, nullable=False),
    sa.Column("owner", JsonText),
    sa.Column("deleted_ns", sa.BigInteger),
    # The records folder's time of change when the run had ended and nothing moved any more.
    sa.Column("settled_mtime_ns", sa.BigInteger),
    sa.Index(None, "project", "created_ns"),
    sa.Index(None, "created_ns"),
    sa.Index(None, "name"),
    sa.Index(None, "status"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("started_ns", sa.BigInteger),
    sa.Column("ended_ns", sa.BigInteger),
    sa.Column("outcome", sa.String(16)),
    sa.Column("failure", JsonText),
    sa.Column("world", sa.Integer, nullable=False),
    sa.Column("from_step", sa.BigInteger, nullable=False),
)

params = sa.Table(
    "params",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("number", sa.Double),
    sa.Column("origin", sa.String(16), nullable=False),
    sa.Index(None, "key", "number"),
    sa.Index(None, "key", "value"),
)

tags = sa.Table(
    "tags",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Index(None, "key", "value"),
)


def _summary_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("num_nan", sa.BigInteger, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("last", sa.Double),
        sa.Column("min", sa.Double),
        sa.Column("max", sa.Double),
        sa.Column("exact", sa.LargeBinary, nullable=False),  # last, min, max
    )


metric_summaries = sa.Table(
    "metric_summaries",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("file", sa.String(64), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    *_summary_columns(),
)

run_metrics = sa.Table(
    "run_metrics",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    *_summary_columns(),
    sa.Index(None, "name", "last"),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("time_ns", sa.BigInteger, nullable=False),
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
)

failures = sa.Table(
    "failures",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("time_ns", sa.BigInteger, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("failure_class", sa.String(32), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("traceback", sa.Text, nullable=False),
    sa.Column("secondary", sa.Boolean(name=None), nullable=False),
)

notes = sa.Table(
    "notes",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("time_ns", sa.BigInteger, nullable=False),
    sa.Column("level", sa.String(16), nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
)

record_files = sa.Table(
    "record_files",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("file", sa.String(64), primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("writer", sa.String(16), nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),  # up to here the file is read
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("mtime_ns", sa.BigInteger, nullable=False),
    sa.Column("facts", sa.LargeBinary, nullable=False),  # the indexer's reading, metric names among it
    sa.Column("num_events", sa.BigInteger, nullable=False),
    sa.Column("num_damaged", sa.BigInteger, nullable=False),
    sa.Column("damaged_bytes", sa.BigInteger, nullable=False),
    sa.Column("num_dropped", sa.BigInteger, nullable=False),
    sa.Column("num_seals", sa.BigInteger, nullable=False),
    sa.Column("closed", sa.Boolean(name=None), nullable=False),
)

# So that an older version, which does not know a revision, can say which version does.
revisions = sa.Table(
    "revisions",
    metadata,
    sa.Column("revision", sa.String(32), primary_key=True),
    sa.Column("gscalar", sa.Text, nullable=False),
)

# What belongs to one run and goes with it.
OF_A_RUN: Final = (
    attempts,
    params,
    tags,
    metric_summaries,
    run_metrics,
    checkpoints,
    failures,
    notes,
    record_files,
)
