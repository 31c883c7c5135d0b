"""A file that only grows by whole pieces: one `os.write` a piece, and what was cut short is taken back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from gscalar.state.files import fsync_folder

_CHUNK_BYTES = 1 << 20


class AppendFile:
    """Owns the descriptor of one file. The caller sees to it that one piece is written at a time.

    Raises:
        OSError: from every method, as the system says.
    """

    def __init__(self, path: Path) -> None:
        # O_APPEND, so that even a second writer would not overwrite what the first one wrote.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._folder: Path | None = path.parent  # until its entry of the file is durable

    def append(self, piece: bytes) -> None:
        """Put the piece at the end; if that fails, the file is as long as before."""
        written = os.write(self._fd, piece)
        if written != len(piece):
            self._append_rest(piece, written)

    def _append_rest(self, piece: bytes, written: int) -> None:
        """Write what a short write left; the system says why it was short on the next one."""
        try:
            while written < len(piece):
                more = os.write(self._fd, piece[written:])
                if more == 0:
                    raise OSError(errno.EIO, "nothing could be written")
                written += more
        except BaseException:
            try:
                os.ftruncate(self._fd, self.size() - written)
            except OSError:
                pass  # a reader will report these bytes as damage and go on behind them
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def cut(self, num_bytes: int) -> None:
        """Keep the first `num_bytes` only."""
        os.ftruncate(self._fd, num_bytes)

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [start, end) in parts."""
        while start < end:
            part = os.pread(self._fd, min(_CHUNK_BYTES, end - start), start)
            if not part:
                raise OSError(f"the file ends at {start} and not at {end}")
            start += len(part)
            yield part

    def sync(self) -> None:
        """Make what was appended durable, the first time also the file's name."""
        os.fsync(self._fd)
        if self._folder is not None:
            fsync_folder(self._folder)
            self._folder = None

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing, and later calls of others fail."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
