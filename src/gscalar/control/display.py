"""What a supervisor tells people while it works, as a Protocol: the command line draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gscalar.control.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Something happened. `detail` is more lines, such as a traceback."""

    level: Literal["info", "warning", "failure"]
    text: str
    detail: str = ""


class Display(Protocol):
    """Shows a run. Never raises, and never blocks for long: the supervisor waits for it."""

    def progress(self, progress: Progress) -> None:
        """Take the newest figures; called several times a second."""

    def output(self, lines: Sequence[str]) -> None:
        """Take whole lines that rank 0 printed."""

    def notice(self, notice: Notice) -> None:
        """Take something that happened."""
