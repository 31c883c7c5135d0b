"""The collectives of a step as one rank sees them: when its part was ready, and when it was done.

A framework says `ready` when it hands a collective over and `done` when the transport says so, which may be
on another thread; it never waits for either. When a transport took a collective up cannot be seen from
outside. A group works in order, so it was not before the collective before it was over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gscalar.model.spans import Collective, CollectiveKind

GRADIENTS = 0
HOST_SUMS = 1
# A script that exchanges gradients without ever ending a step must not fill the memory.
_MAX_OPEN: Final = 4096


class OpenCollective:
    """One collective under way. Times are of the monotonic clock, 0 where not yet known."""

    __slots__ = ("_clock_ns", "end_ns", "group", "kind", "num_bytes", "ready_ns", "sequence")

    def __init__(
        self, kind: CollectiveKind, group: int, sequence: int, num_bytes: int, clock_ns: Callable[[], int]
    ) -> None:
        self.kind = kind
        self.group = group
        self.sequence = sequence
        self.num_bytes = num_bytes
        self.end_ns = 0
        self._clock_ns = clock_ns
        self.ready_ns = clock_ns()

    def done(self) -> None:
        """Say that the collective is over."""
        self.end_ns = self._clock_ns()


class CollectiveLedger:
    """Collects the collectives of the open step, in the order in which they became ready."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._open: list[OpenCollective] = []
        self._num_ready: dict[int, int] = {}

    def ready(self, kind: CollectiveKind, group: int, num_bytes: int) -> OpenCollective:
        """Note that this rank's part of the group's next collective is ready."""
        sequence = self._num_ready.get(group, 0)
        self._num_ready[group] = sequence + 1
        collective = OpenCollective(kind, group, sequence, num_bytes, self._clock_ns)
        if len(self._open) < _MAX_OPEN:
            self._open.append(collective)
        return collective

    def exposed(self) -> tuple[int, int] | None:
        """Return when gradients were waited for with nothing left to compute (monotonic); None where never.

        The last bucket is ready when the last gradient is, so from then on the backward only waits.
        """
        gradients = [each for each in self._open if each.group == GRADIENTS and each.end_ns]
        if not gradients:
            return None
        return gradients[-1].ready_ns, max(each.end_ns for each in gradients)

    def take(self, origin_ns: int) -> list[Collective]:
        """Return the collectives that are over, counted from an origin, and forget them."""
        over = [each for each in self._open if each.end_ns]
        self._open = [each for each in self._open if not each.end_ns]
        ends: dict[int, int] = {}
        taken = []
        for each in over:
            start_ns = max(each.ready_ns, ends.get(each.group, 0))
            ends[each.group] = max(each.end_ns, ends.get(each.group, 0))
            times = (ns - origin_ns for ns in (each.ready_ns, min(start_ns, each.end_ns), each.end_ns))
            taken.append(Collective(each.kind, each.group, each.sequence, each.num_bytes, *times))
        return taken
