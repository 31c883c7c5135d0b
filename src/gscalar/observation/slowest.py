"""Which rank the others wait for.

In synchronous training every rank's step takes as long as the slowest one's, so the duration of a step does not
tell. The time before the last collective does: what is left of a step without its exposed communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

# Less than this is noise of the measurement.
_LEAD: Final = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowest:
    """The rank with the most to do in a step, and what it is compared with, in seconds a step."""

    rank: int
    busy_s: float
    median_s: float


def find_slowest(busy_s: Mapping[int, float]) -> Slowest | None:
    """Return the rank that leads the median by more than 5 %; None where there is none.

    `busy_s` is each rank's step without its exposed communication. Of an even number of ranks the lower of the two
    in the middle is the median, so that one of two ranks can lead it.
    """
    if len(busy_s) < 2:
        return None
    rank = max(sorted(busy_s), key=lambda each: busy_s[each])
    median_s = median_low(busy_s.values())
    if busy_s[rank] <= _LEAD * median_s:
        return None
    return Slowest(rank=rank, busy_s=busy_s[rank], median_s=median_s)
