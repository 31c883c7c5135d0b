"""A note of what another trainer is writing for the run alone, so that an unfinished folder can be found."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gscalar.state.files import write_atomic


class Claim:
    """One folder that is being written, or none; kept in a file. Where the disk is full, nothing is noted."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def take(self, folder: Path) -> None:
        """Note the folder."""
        with contextlib.suppress(OSError):
            write_atomic(self._file, str(folder.absolute()).encode())

    def release(self) -> None:
        """Note that it has gone where it belongs."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def unfinished(self) -> Path | None:
        """Return the folder that was taken and not released; by a process that has died, where none of this one was."""
        with contextlib.suppress(OSError):
            return Path(self._file.read_text())
        return None
