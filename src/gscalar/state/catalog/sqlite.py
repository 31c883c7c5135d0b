"""What only SQLite needs: the one place that a second database would not use.

WAL lets readers and one writer work at once, so that two `gscalar` processes on one home both work:
a writer waits for the other one up to the busy timeout. `synchronous = NORMAL` may lose the last
transactions at power failure, never the file; what is lost is read again from the records. WAL needs
shared memory and therefore a local disk (`GSCALAR_INDEX`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event

from gscalar.base.errors import EnvironmentProblem, ScalarError
from gscalar.state.sqlite_files import error_name, explain_refusal
from gscalar.state.sqlite_files import exclusive as exclusive
from gscalar.state.sqlite_files import is_damage as is_damage
from gscalar.state.sqlite_files import set_aside as set_aside

WRITES: Final = "gscalar_writes"


def create_engine(path: Path, *, busy_timeout_s: float) -> sa.Engine:
    """Return an engine whose transactions are real ones, and whose writers take the lock at once."""
    url = sa.URL.create("sqlite+pysqlite", database=str(path))
    engine = sa.create_engine(url, connect_args={"timeout": busy_timeout_s})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # Python's driver would begin transactions by itself, only before some statements.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A read transaction that turns into a writing one can fail at once, without waiting.
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def create_memory_engine() -> sa.Engine:
    """Return an engine of an empty database in memory, for one thread."""
    return sa.create_engine("sqlite+pysqlite://", poolclass=sa.pool.StaticPool)


def enable_wal(engine: sa.Engine) -> None:
    """Switch the file to write-ahead logging, for good."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def back_up(path: Path, target: Path) -> None:
    """Copy a database that others may be writing."""
    source, copy = sqlite3.connect(path), sqlite3.connect(target)
    try:
        source.backup(copy)
    finally:
        copy.close()
        source.close()


def explain_damage(path: Path) -> EnvironmentProblem:
    """Return the error about a catalog that is damaged."""
    return EnvironmentProblem(
        code="catalog-damaged",
        what="The catalog is damaged. The records are not touched by this.",
        value=str(path),
        next_step="Build it again from the records: gscalar doctor --rebuild",
    )


def is_refused(error: BaseException) -> bool:
    """Tell whether SQLite has refused a statement: a table is missing, or there already, or has other columns.

    Either the statement is wrong or the file is: the error does not say which.
    """
    return error_name(error).startswith("SQLITE_ERROR")


def explain(error: BaseException, path: Path) -> ScalarError | None:
    """Return the error that a user can act on, or None where it is our mistake."""
    return explain_damage(path) if is_damage(error) else explain_refusal(error, path, "catalog")
