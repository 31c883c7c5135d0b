"""The SQLite file of one run's series: how it is opened, and what is in it.

    files     how far each record file is read, and from which step on it is superseded
    series    kind, name, rank
    groups    the rows of one record file, attempt and source; their columns share one axis
    key_sets  which series a row has values of, in their order; `members` says it the other way round
    tails     rows that no chunk holds yet, in the order of their ids, as they were committed
    chunks    4096 rows: their axis, and which key sets they have where that is not one only
    columns   of one series in a chunk: blocks of 64 points, and the values; the id is chunk * 2^20 + place
    pieces    the same by series, with blocks of 512 points
    writer    the version of gscalar that has made the file

The plain driver, since an SQL layer costs more than the work itself on the path from a training's record to here.
WAL lets readers and one writer work at once; `synchronous = NORMAL` may lose the last commits at power
failure, never the file, and what is lost is read again from the records.

Making and replacing a file holds the lock of the folder, which is the same for all runs: both are rare.

The file is only an index. So one of an older version is emptied and filled again and not migrated: that cannot fail
in a way of its own, costs seconds, and is the same code as any other filling. One of a newer version is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from gscalar.base.errors import EnvironmentProblem, ScalarError
from gscalar.base.version import __version__
from gscalar.state.home import Home
from gscalar.state.sqlite_files import exclusive, explain_refusal, is_damage, make_folder, set_aside

SCHEMA_VERSION: Final = 1
MAX_COLUMNS: Final = 1 << 20  # of a chunk

_TABLES: Final = """
CREATE TABLE writer (gscalar TEXT NOT NULL);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, offset INTEGER NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, cut INTEGER NOT NULL, facts BLOB NOT NULL);
CREATE TABLE series (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, rank INTEGER NOT NULL, UNIQUE (kind, name, rank));
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, file_id INTEGER NOT NULL, attempt INTEGER NOT NULL, source INTEGER NOT NULL,
    UNIQUE (file_id, attempt, source));
CREATE TABLE key_sets (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, members BLOB NOT NULL, UNIQUE (group_id, members));
CREATE TABLE members (
    series_id INTEGER NOT NULL, group_id INTEGER NOT NULL, PRIMARY KEY (series_id, group_id)) WITHOUT ROWID;
CREATE TABLE tails (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, num_rows INTEGER NOT NULL, content BLOB NOT NULL);
CREATE INDEX tails_by_group ON tails (group_id, num_rows);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, num_rows INTEGER NOT NULL, axis BLOB NOT NULL,
    sets BLOB NOT NULL);
CREATE INDEX chunks_by_group ON chunks (group_id);
CREATE TABLE columns (id INTEGER PRIMARY KEY, fine BLOB NOT NULL, content BLOB NOT NULL);
CREATE TABLE pieces (
    series_id INTEGER NOT NULL, chunk_id INTEGER NOT NULL, group_id INTEGER NOT NULL, place INTEGER NOT NULL,
    coarse BLOB NOT NULL, PRIMARY KEY (series_id, chunk_id)) WITHOUT ROWID;
"""


def create(home: Home, run_id: str, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Return a connection to the run's file, which is made, emptied or replaced where it has to be.

    Raises:
        EnvironmentProblem: `store-newer`, `home-not-writable`, `disk-full`.
        Retryable: `catalog-busy`.
    """
    path = home.series(run_id)
    with explained(path):
        make_folder(path, "runs' series")
        try:
            return _prepare(path, busy_timeout_s)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        _replace_damaged(path)
        return _prepare(path, busy_timeout_s)


def connect(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Return a connection to a file that exists, or to an empty store in memory where it does not.

    Raises:
        EnvironmentProblem: `store-newer`.
    """
    if not path.exists():
        return _empty()
    connection = _open(path, busy_timeout_s)
    try:
        version = _read_version(connection)
        _refuse_newer(connection, version, path)
    except BaseException:
        connection.close()
        raise
    if version == SCHEMA_VERSION:
        return connection
    connection.close()
    return _empty()


def reset_damaged(home: Home, run_id: str) -> Path | None:
    """Set the run's damaged file aside; None where it is sound, or another process has already replaced it."""
    path = home.series(run_id)
    with explained(path):
        return _replace_damaged(path)


def _replace_damaged(path: Path) -> Path | None:
    with exclusive(path.parent):
        if not path.exists():
            return None
        try:
            with closing(_open(path, busy_timeout_s=30.0)) as connection:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            verdict = "damaged"
        return None if verdict == "ok" else set_aside(path)


@contextmanager
def transaction(connection: sqlite3.Connection, *, writes: bool) -> Iterator[None]:
    """Make what is done inside one transaction, committed at the end."""
    # A read transaction that turns into a writing one can fail at once, without waiting.
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn database errors into those that a user can act on."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        found = _explain(error, path)
        if found is None:
            raise
        raise found from error


def _prepare(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = _open(path, busy_timeout_s)
    try:
        if _read_version(connection) != SCHEMA_VERSION:
            with exclusive(path.parent):
                _make_tables(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    version = _read_version(connection)
    if version == SCHEMA_VERSION:
        return  # another process was faster
    _refuse_newer(connection, version, path)
    connection.execute("PRAGMA journal_mode = WAL")
    with transaction(connection, writes=True):
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (name,) in names:
            connection.execute(f'DROP TABLE "{name}"')
        _execute_all(connection, _TABLES)
        connection.execute("INSERT INTO writer (gscalar) VALUES (?)", (__version__,))
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _execute_all(connection, _TABLES)
    return connection


def _execute_all(connection: sqlite3.Connection, statements: str) -> None:
    # `executescript` would commit first.
    for statement in statements.split(";"):
        connection.execute(statement)


def _open(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    # Transactions are begun by hand: the driver would begin them only before some statements.
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _read_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _refuse_newer(connection: sqlite3.Connection, version: int, path: Path) -> None:
    if version <= SCHEMA_VERSION:
        return
    try:
        (writer,) = connection.execute("SELECT gscalar FROM writer").fetchone()
    except (sqlite3.DatabaseError, TypeError):
        writer = None  # so new that this is elsewhere
    needed = f"gscalar {writer} or newer" if writer else "a newer gscalar"
    raise EnvironmentProblem(
        code="store-newer",
        what=f"The run's series were written by a newer version of gscalar: reading them needs {needed},"
        f" and this is {__version__}.",
        value=version,
        where=str(path),
        next_step="Use that version, or remove the file: it is filled from the records.",
    )


def _explain(error: sqlite3.DatabaseError, path: Path) -> ScalarError | None:
    if is_damage(error):
        return EnvironmentProblem(
            code="series-damaged",
            what="The file of the run's series is damaged. The records are not touched by this.",
            value=str(path),
            next_step="Build it again from the records: gscalar doctor --rebuild",
        )
    return explain_refusal(error, path, "run's series")
