"""A file that a command was asked to write: there in full or not at all.

It is written beside its place and renamed. That replaces whatever has the name, so what is no file (a terminal,
/dev/null, a pipe) is written into instead: a rename would take the device away from the whole machine. A link stays,
and what it points to is replaced.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from gscalar.base.errors import EnvironmentProblem


def write_file(path: Path, pieces: Iterable[str], what: str) -> None:
    """Write text, piece by piece; `what` it is ("report") is for the error.

    Raises `EnvironmentProblem` report-not-writable.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as file:
                file.writelines(pieces)
        else:
            _replace(Path(os.path.realpath(path)), pieces)
    except OSError as error:
        raise EnvironmentProblem(
            code="report-not-writable",
            what=f"The {what} cannot be written: {error.strerror or error}.",
            value=str(path),
            next_step="Name a file in a folder that exists and that you may write to.",
        ) from error


def _replace(path: Path, pieces: Iterable[str]) -> None:
    draft = path.with_name(f".gscalar-{secrets.token_hex(6)}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
