"""What every SQLite file of ours needs around the database itself: making, replacing and judging the file."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
