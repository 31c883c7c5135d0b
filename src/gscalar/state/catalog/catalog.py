"""The open catalog, and how it is opened: created, migrated, refused or replaced.

Opening an up-to-date catalog costs one query. Alembic is imported only when the stored revision is
not the newest. A file that is no sound database is set aside and a new one made, since all that it
holds is computed from records; a catalog of a newer gscalar is refused. Before a migration the file is
copied, and if it fails, the file is what it was.
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
from gscalar.state.catalog.schema import HEAD_REVISION, revisions
from gscalar.state.home import Home


class Catalog:
    """An open catalog. `damaged_file` names the file that was set aside to open it, if there was one.

    Any number of processes may hold one open; within a process use it from one thread at a time.
    """

    def __init__(self, home: Home, path: Path, engine: sa.Engine, damaged_file: Path | None = None) -> None:
        self.home = home
        self.path = path
        self.damaged_file = damaged_file
        self._engine = engine
        self._identity = _identity(path)

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
        return _identity(self.path) == self._identity

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
    with _explained(path):
        _make_folder(path)
        damaged_file = None
        engine = sqlite.create_engine(path, busy_timeout_s=busy_timeout_s)
        try:
            revision = read_revision(engine)
        except (sa.exc.DBAPIError, sqlite3.DatabaseError) as error:
            engine.dispose()
            if not sqlite.is_damage(error):
                raise
            damaged_file = replace_damaged(path)
            engine = sqlite.create_engine(path, busy_timeout_s=busy_timeout_s)
            revision = read_revision(engine)
        try:
            if revision != HEAD_REVISION:
                _migrate(engine, path)
        except BaseException:
            engine.dispose()
            raise
    return Catalog(home, path, engine, damaged_file)


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


def replace_damaged(path: Path) -> Path | None:
    """Set a damaged catalog file aside; None where another process has already replaced it."""
    with sqlite.exclusive(path):
        engine = sqlite.create_engine(path, busy_timeout_s=30.0)
        try:
            with engine.connect() as connection:
                verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        except (sa.exc.DBAPIError, sqlite3.DatabaseError) as error:
            if not sqlite.is_damage(error):
                raise
            verdict = "damaged"
        finally:
            engine.dispose()
        return None if verdict == "ok" else sqlite.set_aside(path)


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
    # A lock that was held or a full disk has a better explanation than this.
    return sqlite.explain(error, path) or EnvironmentProblem(
        code="store-not-migrated",
        what=f"The catalog could not be brought from revision {revision} to {HEAD_REVISION}, and is as it was: {error}",
        value=str(path),
        next_step=f"Move it away: a new one is filled from the records. A copy is {copy}.",
    )


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            code="home-not-writable",
            what=f"The catalog's folder cannot be created: {error.strerror}.",
            value=str(path.parent),
            next_step="Give a writable folder with --home, or a file on a local disk with GSCALAR_INDEX.",
        ) from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sa.exc.DBAPIError, sqlite3.DatabaseError) as error:
        explained = sqlite.explain(error, path)
        if explained is None:
            raise
        raise explained from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
