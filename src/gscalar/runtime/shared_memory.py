"""Memory that the ranks of one host share: a file in /dev/shm whose name is gone once all have opened it.

Rank 0 makes the file, tells its path, and takes the name away when everybody has said whether they could open it: a
rank that is killed later leaves nothing behind. All ranks decide alike; where one cannot open the file (a container
with a /dev/shm of its own), nobody shares.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Final

from gscalar.runtime.framework import Group
from gscalar.runtime.launch import Launch

FOLDER: Final = Path("/dev/shm")


def share(group: Group, launch: Launch, size: int, folder: Path = FOLDER, *, willing: bool = True) -> mmap.mmap | None:
    """Return zeroed memory of `size` bytes that all ranks of the group share, or None on every one of them.

    Every rank calls it at the same place of the program; one that is not `willing` decides for all. It is one
    broadcast and one sum.
    """
    memory = None
    path = _create(folder, size) if launch.rank == 0 else None
    try:
        told = group.broadcast(str(path or "").encode()).decode()
        with contextlib.suppress(OSError, ValueError):
            if told:
                memory = _open(Path(told), size)
        unable = memory is None or not willing
        if not group.start_sum([float(unable)])()[0]:
            return memory
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
    if memory is not None:
        memory.close()
    return None


def _create(folder: Path, size: int) -> Path | None:
    """Return a new file of zeros that only its owner may open; None where there is no such place."""
    path = folder / f"gscalar-{os.urandom(16).hex()}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, size)  # a full one is met here, and not by a signal later
    except OSError:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(file)
    return path


def _open(path: Path, size: int) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, size)
    finally:
        os.close(file)
