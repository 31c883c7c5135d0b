"""Memory that the ranks of one host share: a file in /dev/shm whose name is gone once all have opened it.

Rank 0 makes the file, tells its path, and takes the name away when everybody has said whether they could open it: a
rank that is killed later leaves nothing behind. All ranks decide alike; where one cannot open the file (a container
with a /dev/shm of its own), nobody shares. What is told is not trusted: nothing but such a file of this user is opened.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Final

from gscalar.runtime.framework import Group
from gscalar.runtime.launch import Launch

FOLDER: Final = Path("/dev/shm")
_NAME: Final = re.compile("gscalar-[0-9a-f]{32}")


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
                memory = _open(Path(told), folder, size)
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


def _open(path: Path, folder: Path, size: int) -> mmap.mmap:
    """Return the memory of a file that `_create` made.

    Raises:
        OSError, ValueError: it is not there, or not such a file.
    """
    if path.parent != folder or _NAME.fullmatch(path.name) is None:
        raise ValueError(f"{path} is no file to share")
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink <= 1
        if not ours or status.st_size != size:
            raise ValueError(f"{path} is no file to share")
        return mmap.mmap(file, size)
    finally:
        os.close(file)
