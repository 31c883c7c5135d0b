"""Where events go. Whoever measures or runs something is handed a Sink and knows nothing of files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gscalar.model.events import Event


class Sink(Protocol):
    """Takes events. Never raises into a training: what cannot be kept is counted and said later."""

    def emit(self, event: Event) -> None:
        """Keep one event. On return it is in the kernel: it survives SIGKILL of the process."""

    def log(self, step: int, time_ns: int, values: Mapping[str, float]) -> None:
        """Keep one set of named values; the fast path."""

    def sample(self, time_ns: int, rank: int, values: Mapping[str, float]) -> None:
        """Keep one look at the hardware of a host (rank -1) or of one worker's process."""

    def seal(self, reason: str) -> None:
        """Write the chained digest of all before and make the file durable (fsync)."""
