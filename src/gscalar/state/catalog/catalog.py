"""The open catalog, and how it is opened: created, migrated, refused or replaced.

Opening an up-to-date catalog costs one query. Alembic is imported only when the stored revision is
not the newest. A file that is no sound database, or lacks the tables of the revision that it says it is of, is set
aside and a new one made, since all that it holds is computed from records; a catalog of a newer gscalar is refused.
Before a migration the file is copied, and if it fails, the file is what it was.

Tables are compared only once SQLite has refused a statement, so a sound catalog does not pay for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import sqlalchemy as sa

from gscalar.base.errors import EnvironmentProblem, ScalarError
from gscalar.base.version import __version__
from gscalar.state.catalog import sqlite
from gscalar.state.catalog.schema import HEAD_REVISION, metadata, revisions
from gscalar.state.home import Home
from gscalar.state.sqlite_files import identity, make_folder


class Catalog:
    """An open catalog. `damaged_file` names the file that was set aside to open it, if there was one.

    Any number of processes may hold one open; within a process use it from one thread at a time.
    """

    def __init__(self, home: Home, path: Path, engine: sa.Engine, damaged_file: Path | None = None) -> None:
        self.home = home
        self.path = path
        self.damaged_file = damaged_file
        self._engine = engine
        self._identity = identity(path)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Give a connection that sees one state of the catalog.

        Raises:
            EnvironmentProblem: `catalog-damaged`, `home-not-writable`, `disk-full`.
            Retryable: `catalog-busy`.
        """
        with _explained(self.path), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Give a connection in a transaction that is committed at the end. Raises as `read` does."""
        with _explained(self.path), self._engine.connect() as connection:
            connection.execution_options(**{sqlite.WRITES: True})
            with connection.begin():
                yield connection

    def is_current(self) -> bool:
        """Tell whether the file is still the one that was opened (somebody may have deleted the index)."""
        return identity(self.path) == self._identity

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_catalog(home: Home, *, busy_timeout_s: float = 30.0) -> Catalog:
    """Return the home's catalog, created or migrated where needed.

    Raises:
        EnvironmentProblem: `store-newer`, `store-not-migrated`, `home-not-writable`, `disk-full`.
        Retryable: `catalog-busy`.
    """
    path = home.index
    make_folder(path, "catalog")
    damaged_file = None
    try:
        engine = _open(path, busy_timeout_s)
    except EnvironmentProblem as error:
        if error.code != "catalog-damaged":
            raise
        damaged_file = replace_damaged(path)
        engine = _open(path, busy_timeout_s)
    return Catalog(home, path, engine, damaged_file)


def empty_catalog(home: Home) -> Catalog:
    """Return a catalog of no runs, in memory: what is to be read of a home that does not exist, and is not made."""
    engine = sqlite.create_memory_engine()
    metadata.create_all(engine)
    return Catalog(home, home.index, engine)


def _open(path: Path, busy_timeout_s: float) -> sa.Engine:
    with _explained(path):
        engine = sqlite.create_engine(path, busy_timeout_s=busy_timeout_s)
        try:
            if read_revision(engine) != HEAD_REVISION:
                _migrate(engine, path)
        except BaseException:
            engine.dispose()
            raise
    return engine


def read_revision(engine: sa.Engine) -> str | None:
    """Return the revision that the catalog is of; None for a new one."""
    with engine.connect() as connection:
        try:
            revision = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
            return None if revision is None else str(revision)
        except (sa.exc.OperationalError, sa.exc.ProgrammingError):
            connection.rollback()
            if sa.inspect(connection).has_table("alembic_version"):
                raise
            return None


def replace_damaged(path: Path, *, or_older: bool = False) -> Path | None:
    """Set a damaged catalog file aside; None where another process has already replaced it.

    `or_older` is for one of an older revision that cannot be migrated: it counts as damaged too.
    """
    with _explained(path), sqlite.exclusive(path):
        engine = sqlite.create_engine(path, busy_timeout_s=30.0)
        try:
            with engine.connect() as connection:
                verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
            is_sound = verdict == "ok" and _has_its_tables(engine, or_older=or_older)
        except (sa.exc.DBAPIError, sqlite3.DatabaseError) as error:
            if not sqlite.is_damage(error):
                raise
            is_sound = False
        finally:
            engine.dispose()
        return None if is_sound else sqlite.set_aside(path)


def _has_its_tables(engine: sa.Engine, *, or_older: bool = False) -> bool:
    """Tell whether the file has the tables of the revision that it says it is of, as far as this version knows them."""
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        found = {name: {each["name"] for each in inspector.get_columns(name)} for name in inspector.get_table_names()}
    if found.get("alembic_version", {"version_num"}) != {"version_num"}:
        return False
    revision = read_revision(engine)
    if revision is None:
        return not found.keys() & metadata.tables.keys()
    if revision == HEAD_REVISION:
        return all(found.get(name, set()) >= set(table.columns.keys()) for name, table in metadata.tables.items())
    # The tables of other revisions are not known here, and a newer catalog is nothing to be put away.
    from gscalar.state.catalog.migrating import is_known

    return not (or_older and is_known(revision))


def _migrate(engine: sa.Engine, path: Path) -> None:
    # Alembic takes as long to import as the whole of a short command.
    from gscalar.state.catalog.migrating import is_known, migrate

    with sqlite.exclusive(path):
        revision = read_revision(engine)  # another process may have been faster
        if revision == HEAD_REVISION:
            return
        if revision is not None and not is_known(revision):
            raise _newer(engine, path, revision)
        if revision is None:
            sqlite.enable_wal(engine)
            migrate(engine)
            return
        copy = path.with_name(f"{path.name}.before-{HEAD_REVISION}")
        sqlite.back_up(path, copy)
        try:
            sqlite.enable_wal(engine)
            migrate(engine)
        except Exception as error:
            # A migration is one transaction, so the file is as it was, unless something is wrong with that.
            if read_revision(engine) != revision:
                sqlite.back_up(copy, path)
            raise _not_migrated(path, revision, copy, error) from error


def _newer(engine: sa.Engine, path: Path, revision: str) -> EnvironmentProblem:
    with engine.connect() as connection:
        try:
            query = sa.select(revisions.c.gscalar).where(revisions.c.revision == revision)
            version = connection.scalar(query)
        except sa.exc.DBAPIError:
            version = None  # so new that this is elsewhere
    needed = f"gscalar {version} or newer" if version else "a newer gscalar"
    return EnvironmentProblem(
        code="store-newer",
        what=f"The catalog was written by a newer version of gscalar: it needs {needed}, and this is {__version__}.",
        value=revision,
        where=str(path),
        next_step="Use that version, or name another file with GSCALAR_INDEX: it is filled from the records.",
    )


def _not_migrated(path: Path, revision: str, copy: Path, error: Exception) -> ScalarError:
    reason = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement and an address
    # A lock that was held or a full disk has a better explanation than this.
    return sqlite.explain(error, path) or EnvironmentProblem(
        code="store-not-migrated",
        what=f"The catalog could not be brought from revision {revision} to {HEAD_REVISION} and is as it was: {reason}",
        value=str(path),
        next_step=f"Build it again from the records: gscalar doctor --rebuild. A copy is {copy}.",
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sa.exc.DBAPIError, sqlite3.DatabaseError) as error:
        explained = sqlite.explain(error, path)
        if explained is None and sqlite.is_refused(error) and not _is_as_it_says(path):
            explained = sqlite.explain_damage(path)
        if explained is None:
            raise
        raise explained from error


def _is_as_it_says(path: Path) -> bool:
    engine = sqlite.create_engine(path, busy_timeout_s=1.0)
    try:
        return _has_its_tables(engine)
    except sa.exc.DBAPIError:
        return True  # not known; what went wrong first is the better word
    finally:
        engine.dispose()
