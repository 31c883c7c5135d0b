"""Rank 0's output on its way from the log file to the display.

Whole lines pass at once. A traceback is held back: when the worker fails, the supervisor shows it
once, with its rank and class, and rank 0's own copy (or its broken collective, while rank 2 is to
blame) would say it twice. If the worker lives on (somebody logged an exception), it passes after
`HOLD_S`.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final

HOLD_S: Final = 2.0
_TRACEBACK: Final = re.compile(r"(\[rank\d+\]: )?(  \+ Exception Group )?Traceback \(most recent call last\):")
_MOST_BYTES: Final = 1 << 20  # a poll; the rest comes with the next
TAIL_BYTES: Final = 1 << 16


class OutputHold:
    """Takes lines and gives back those that may be shown."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._since_s = 0.0

    def feed(self, lines: list[str], now_s: float, *, failing: bool = False) -> list[str]:
        """Return the lines that may be shown now. `failing`: the worker is known to have failed."""
        shown: list[str] = []
        for line in lines:
            if not self._held and not _TRACEBACK.match(line):
                shown.append(line)
                continue
            if not self._held:
                self._since_s = now_s
            self._held.append(line)
        if self._held and not failing and now_s - self._since_s >= HOLD_S:
            shown += self.end(failed=False)
        return shown

    def end(self, *, failed: bool) -> list[str]:
        """Return what was held back; nothing where the failure is shown by the supervisor."""
        held, self._held = self._held, []
        return [] if failed else held


class OutputTail:
    """Follows one log file by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""

    def poll(self) -> list[str]:
        """Return the lines that have become whole."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(_MOST_BYTES)
        except OSError:
            return []
        self._offset += len(chunk)
        *lines, self._partial = (self._partial + self._decoder.decode(chunk)).split("\n")
        return [_visible(line) for line in lines]

    def rest(self) -> list[str]:
        """Return all that is left, the last line too where no newline ends it."""
        lines: list[str] = []
        read_to = -1
        while self._offset != read_to:  # a poll inside a very long line gives none, and is not the end
            read_to = self._offset
            lines += self.poll()
        if self._partial:
            lines.append(_visible(self._partial))
            self._partial = ""
        return lines


def read_log_tail(path: Path) -> str:
    """Return the end of a log as text; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _visible(line: str) -> str:
    """Return what a terminal would show of a line in which a progress bar went back to its start."""
    return line.rstrip("\r").rpartition("\r")[2]
