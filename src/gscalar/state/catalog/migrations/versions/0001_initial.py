"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "projects",
    "runs",
    "attempts",
    "params",
    "tags",
    "metric_summaries",
    "run_metrics",
    "checkpoints",
    "failures",
    "notes",
    "record_files",
)


def upgrade() -> None:
    create_projects()
    create_runs()
    create_attempts()
    create_params()
    create_tags()
    create_metric_summaries()
    create_run_metrics()
    create_checkpoints()
    create_failures()
    create_notes()
    create_record_files()


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(name)


def create_projects() -> None:
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )


def create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=True),
        sa.Column("ended_ns", sa.BigInteger(), nullable=True),
        sa.Column("last_seen_ns", sa.BigInteger(), nullable=True),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("total_steps", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("samples", sa.Double(), nullable=False),
        sa.Column("world", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("origins", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("digests", sa.Text(), nullable=False),
        sa.Column("throughput", sa.Text(), nullable=False),
        sa.Column("nonfinite", sa.Text(), nullable=False),
        sa.Column("num_dropped", sa.BigInteger(), nullable=False),
        sa.Column("damage", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("deleted_ns", sa.BigInteger(), nullable=True),
        sa.Column("settled_mtime_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_created_ns"), "runs", ["created_ns"], unique=False)
    op.create_index(op.f("ix_runs_name"), "runs", ["name"], unique=False)
    op.create_index(op.f("ix_runs_project_created_ns"), "runs", ["project", "created_ns"], unique=False)
    op.create_index(op.f("ix_runs_status"), "runs", ["status"], unique=False)


def create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=True),
        sa.Column("ended_ns", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("world", sa.Integer(), nullable=False),
        sa.Column("from_step", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "attempt", name=op.f("pk_attempts")),
    )


def create_params() -> None:
    op.create_table(
        "params",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("number", sa.Double(), nullable=True),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key", name=op.f("pk_params")),
    )
    op.create_index(op.f("ix_params_key_number"), "params", ["key", "number"], unique=False)
    op.create_index(op.f("ix_params_key_value"), "params", ["key", "value"], unique=False)


def create_tags() -> None:
    op.create_table(
        "tags",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key", name=op.f("pk_tags")),
    )
    op.create_index(op.f("ix_tags_key_value"), "tags", ["key", "value"], unique=False)


def create_metric_summaries() -> None:
    op.create_table(
        "metric_summaries",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("num_nan", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double(), nullable=True),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("exact", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "file", "name", name=op.f("pk_metric_summaries")),
    )


def create_run_metrics() -> None:
    op.create_table(
        "run_metrics",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("num_nan", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double(), nullable=True),
        sa.Column("min", sa.Double(), nullable=True),
        sa.Column("max", sa.Double(), nullable=True),
        sa.Column("exact", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_run_metrics")),
    )
    op.create_index(op.f("ix_run_metrics_name_last"), "run_metrics", ["name", "last"], unique=False)


def create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_checkpoints")),
    )


def create_failures() -> None:
    op.create_table(
        "failures",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("failure_class", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("secondary", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_failures")),
    )


def create_notes() -> None:
    op.create_table(
        "notes",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_notes")),
    )


def create_record_files() -> None:
    op.create_table(
        "record_files",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=16), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.LargeBinary(), nullable=False),
        sa.Column("num_events", sa.BigInteger(), nullable=False),
        sa.Column("num_damaged", sa.BigInteger(), nullable=False),
        sa.Column("damaged_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_dropped", sa.BigInteger(), nullable=False),
        sa.Column("num_seals", sa.BigInteger(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "file", name=op.f("pk_record_files")),
    )
