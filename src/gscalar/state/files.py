"""Durable file writing: a reader sees the old bytes or the new, never a mixture."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_folder(path: Path) -> None:
    """Make the entries of a folder durable (renames, new files)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace the file's content durably by one rename; `private` lets only its owner read it.

    Raises:
        OSError: as the system says (disk full, no permission); the old file is then untouched.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)
