"""What every SQLite file of ours needs around the database itself: making, replacing and judging the file."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gscalar.base.errors import EnvironmentProblem, Retryable, ScalarError

SIDE_FILES: Final = ("-wal", "-shm")
_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock beside the file, for what a transaction cannot protect: making and replacing it."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_aside(path: Path) -> Path:
    """Rename a damaged database, so that a new one can be made; return where it is now."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    path.rename(aside)
    # A log of the old file replayed into a new one would damage that too.
    for suffix in SIDE_FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return aside


def remove_database(path: Path) -> None:
    """Remove a database of a folder of its kind, if there is one. Whoever has it open goes on with what nobody sees.

    The folder's lock is held: databases in it must be made and replaced under that one.

    Raises:
        OSError: as the system says.
    """
    if not path.parent.is_dir():
        return
    with exclusive(path.parent):
        for suffix in ("", *SIDE_FILES):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def is_damage(error: BaseException) -> bool:
    """Tell whether a database error says that the file is damaged."""
    return error_name(error).startswith(_DAMAGED)


def error_name(error: BaseException) -> str:
    """Return SQLite's name of an error, of the driver's or of what SQLAlchemy made of it; empty where it has none."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.DatabaseError):
        # Errors that the driver itself raises carry no name.
        return getattr(cause, "sqlite_errorname", "") or ""
    return ""


def explain_refusal(error: BaseException, path: Path, what: str) -> ScalarError | None:
    """Return the error that a user can act on where the file is busy, full or shut; None for all else.

    `what` is the database's name in a sentence.
    """
    name = error_name(error)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Retryable(
            code="catalog-busy",
            what=f"Another process was writing the {what} all the time.",
            value=str(path),
            next_step="Try again; what is recorded is safe.",
        )
    if name.startswith("SQLITE_FULL"):
        return EnvironmentProblem(
            code="disk-full",
            what=f"The {what} cannot be written: the disk is full.",
            value=str(path),
            next_step="Free some disk; `gscalar delete` removes runs.",
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_IOERR")):
        return EnvironmentProblem(
            code="home-not-writable",
            what=f"The {what} cannot be opened or written ({name}).",
            value=str(path),
            next_step="Make it writable, or name a file on a local disk with GSCALAR_INDEX.",
        )
    return None


def make_folder(path: Path, what: str) -> None:
    """Make the folder of a database; `what` is the database's name in a sentence.

    Raises:
        EnvironmentProblem: `home-not-writable`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            code="home-not-writable",
            what=f"The folder of the {what} cannot be created: {error.strerror}.",
            value=str(path.parent),
            next_step="Give a writable folder with --home, or a file on a local disk with GSCALAR_INDEX.",
        ) from error


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
