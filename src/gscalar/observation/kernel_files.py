"""Reading small files of /proc and /sys often and cheaply.

A look at the hardware reads some dozens of them each second. Path, buffering and decoding layers cost
more than the kernel does; plain descriptors are about three times as cheap.
"""

from __future__ import annotations

import os
from typing import Final

_CHUNK_BYTES: Final = 1 << 16


def read_kernel_file(path: str | os.PathLike[str]) -> str:
    """Return a file's text.

    Raises:
        OSError: it is not there, must not be read, or the process that it tells of has ended.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # The kernel gives less than was asked for in the middle of some files; only nothing is the end.
        parts = []
        while part := os.read(file, _CHUNK_BYTES):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts).decode(errors="replace")
