"""Full disks and damaged bytes.

A filler is only made on a file system that is mounted for the purpose: never on the root, and never larger than a
limit, so that a slip in a path fills no real disk.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError

_CHUNK_BYTES: Final = 1 << 24
_BLOCK_BYTES: Final = 4096


def fill_disk(path: Path, *, leave_bytes: int, most_bytes: int) -> int:
    """Make a file that leaves so many bytes free where it lies; return its size.

    Raises:
        UserError: `fault-impossible`, the folder is no mount point, or the filler would be too large.
    """
    folder = path.parent
    if not os.path.ismount(folder) or folder.resolve() == Path("/"):
        raise _impossible("The path is no mounted file system of its own, and no other is filled.", folder)
    if free_bytes(folder) - leave_bytes > most_bytes:
        raise _impossible(f"The filler would need more than {most_bytes} bytes, which is taken for a mistake.", folder)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        size = 0
        while (missing := free_bytes(folder) - leave_bytes) >= _BLOCK_BYTES:
            grown = _grow(fd, size, min(missing, _CHUNK_BYTES))
            if not grown:
                break
            size += grown
        return size
    finally:
        os.close(fd)


def free_bytes(folder: Path) -> int:
    """Return what this user may still write there."""
    stat = os.statvfs(folder)
    return stat.f_frsize * (stat.f_bfree if os.geteuid() == 0 else stat.f_bavail)


def _grow(fd: int, size: int, num_bytes: int) -> int:
    """Return by how many bytes the file could be made longer: half, a quarter, ... where not all of them fit."""
    while num_bytes >= _BLOCK_BYTES:
        try:
            os.posix_fallocate(fd, size, num_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            num_bytes //= 2
        else:
            return num_bytes
    return 0


def change_file(path: Path, how: str, num_bytes: int, rng: random.Random) -> None:
    """Damage a file in place, where the generator says.

    Raises:
        UserError: `fault-impossible`, the file is shorter than the damage.
    """
    size = path.stat().st_size
    if size < num_bytes:
        raise _impossible(f"The file has {size} bytes, fewer than the {num_bytes} that shall be damaged.", path)
    with path.open("r+b") as file:
        if how == "truncate":
            file.truncate(size - num_bytes)
        elif how == "zero":
            file.seek(rng.randrange(size - num_bytes + 1))
            file.write(bytes(num_bytes))
        else:
            for place in sorted(rng.sample(range(size), num_bytes)):
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ (1 << rng.randrange(8))]))


def _impossible(what: str, path: Path) -> UserError:
    return UserError(
        code="fault-impossible",
        what=what,
        value=str(path),
        next_step="Give the mount point of a small file system, or the name of a longer file; see docs/faults.md.",
    )
