"""How clocks stand to one another: this process's to rank 0's, and a wall clock to itself.

A timeline over hosts needs one clock. Each process asks rank 0 for the time and keeps four stamps,
as NTP does: own time when it asked (t0), rank 0's when the question arrived (t1) and when it was
answered (t2), own time when the answer came (t3).

    offset = ((t1 - t0) + (t2 - t3)) / 2        rank 0's clock minus the own one
    round trip = (t3 - t0) - (t2 - t1)

However unequal the two ways are, the true offset lies within half the round trip of that (Cristian).
Of a burst only the shortest round trip is kept. Two estimates compete, and the tighter one holds:

- one ping alone: its half round trip, and 1 ms more for each second of its age;
- a line through all pings of the last ten minutes, weighted by their squared half round trips. A fitted value is a sum
  of the measured offsets with fixed factors, so it is wrong by at most the sum of |factor| * half round
  trip; where pings lie off the line by more than their own half round trip, the clocks do not drift
  evenly, and that excess is added. The line's slope is the drift, once its own bound is small.

Two pings that contradict each other (their intervals are apart by more than any drift explains) prove
that one of the clocks was set; the estimate starts anew.

Limits: clocks are taken to run apart by less than 1 ms a second; chrony can correct faster after a start. Sources:
RFC 5905 (Network Time Protocol 4), section 8 and the clock filter of section 10; F. Cristian, "Probabilistic
clock synchronization", Distributed Computing 3 (1989).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gscalar.model.events import Clock

# NTP slews a clock by at most 500 ppm, and both clocks may be slewed.
_MAX_DRIFT: Final = 1e-3
_READING_S: Final = 1e-6  # a stamp is taken a little beside the moment that it names
_WINDOW_NS: Final = 600 * 10**9
# A drift that may be wrong by more says less than none: clocks are apart by some 10 ppm.
_DRIFT_WORTH: Final = 20e-6
_REPORT_EVERY_NS: Final = 60 * 10**9
# Less is what slewing and a busy machine do between two readings.
_JUMP_S: Final = 0.01
_SURE_NS: Final = 1_000_000
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Ping:
    """One question to rank 0 that was answered: stamps in nanoseconds of the own and of rank 0's wall clock."""

    asked_ns: int
    arrived_ns: int  # rank 0's
    answered_ns: int  # rank 0's
    received_ns: int

    @property
    def middle_ns(self) -> int:
        """The own time that the offset belongs to."""
        return (self.asked_ns + self.received_ns) // 2

    @property
    def offset_ns(self) -> int:
        """Rank 0's clock minus the own one."""
        return (self.arrived_ns - self.asked_ns + self.answered_ns - self.received_ns) // 2

    @property
    def round_trip_ns(self) -> int:
        """Time on the way, without that at rank 0."""
        return (self.received_ns - self.asked_ns) - (self.answered_ns - self.arrived_ns)

    @property
    def half_s(self) -> float:
        """The offset is wrong by at most this: the clocks drift apart all the while, at rank 0 too."""
        return self.round_trip_ns / 2e9 + _MAX_DRIFT * (self.received_ns - self.asked_ns) / 2e9 + _READING_S


class _Line(NamedTuple):
    value: float
    bound: float
    slope: float
    slope_bound: float


class ClockEstimator:
    """What is known of one clock against rank 0's. Pure: it reads no clock."""

    def __init__(self) -> None:
        self._kept: deque[Ping] = deque()

    def add(self, burst: Sequence[Ping]) -> bool:
        """Take the answered pings of one burst; return whether they prove that a clock was set."""
        best = min(burst, key=lambda ping: ping.round_trip_ns)
        contradicted = any(_contradict(best, ping) for ping in self._kept)
        # On one host both clocks are set at once: the offset stays, and own times occur twice.
        if contradicted or (self._kept and best.middle_ns < self._kept[-1].middle_ns):
            self._kept.clear()
        while self._kept and best.middle_ns - self._kept[0].middle_ns > _WINDOW_NS:
            self._kept.popleft()
        self._kept.append(best)
        return contradicted

    def estimate(self, now_ns: int) -> Clock | None:
        """Return how the clocks stand at the own time `now_ns`; None where nothing was answered."""
        if not self._kept:
            return None
        base = self._kept[-1]
        # Seconds from the last ping, and offsets against its own, so that nothing is lost to rounding.
        points = [
            ((ping.middle_ns - base.middle_ns) / 1e9, (ping.offset_ns - base.offset_ns) / 1e9, ping.half_s)
            for ping in self._kept
        ]
        at_s = (now_ns - base.middle_ns) / 1e9
        bound, offset = min((half + _MAX_DRIFT * abs(at_s - t), value) for t, value, half in points)
        drift = 0.0
        if points[0][0] < 0:
            line = _fit(points, at_s)
            drift = line.slope if line.slope_bound <= _DRIFT_WORTH else 0.0
            if line.bound < bound:
                offset, bound = line.value, line.bound
        return Clock(now_ns, base.offset_ns / 1e9 + offset, drift, bound, len(points))


def is_news(last: Clock | None, now: Clock) -> bool:
    """Tell whether an estimate is worth an event: the first, one that moved beyond its bound, one a minute."""
    if last is None or abs(now.time_ns - last.time_ns) >= _REPORT_EVERY_NS:
        return True
    expected_s = last.offset_s + last.drift * (now.time_ns - last.time_ns) / 1e9
    return abs(now.offset_s - expected_s) > now.bound_s


def to_rank0_time(time_ns: int, clocks: Sequence[Clock]) -> int:
    """Return rank 0's time at a process's own `time_ns`; `clocks` are the process's events, in order of time.

    The nearest estimate counts, on either side: after a clock was set forward, the next one knows better
    than the one before. Without any estimate (rank 0 itself, or nobody answered) it is `time_ns`.
    After a clock was set back, own times occur twice: give the estimates of one side only.
    """
    if not clocks:
        return time_ns
    after = bisect_left(clocks, time_ns, key=lambda clock: clock.time_ns)
    nearest = min(clocks[max(0, after - 1) : after + 1], key=lambda clock: abs(clock.time_ns - time_ns))
    later_s = (time_ns - nearest.time_ns) / 1e9
    return time_ns + round((nearest.offset_s + nearest.drift * later_s) * 1e9)


class JumpWatch:
    """Sees when a wall clock was set, by comparing it with the monotonic clock of the same host."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None

    def look(self, wall_ns: int, monotonic_ns: int, doubt_ns: int = 0) -> float | None:
        """Return the seconds by which the wall clock moved more than the monotonic one, where it was set.

        `doubt_ns`: the two were read within so much of each other. A machine that slept counts as set: its
        monotonic clock stood still.
        """
        last, self._last = self._last, (wall_ns, monotonic_ns, doubt_ns)
        if last is None:
            return None
        passed_ns = monotonic_ns - last[1]
        by_s = (wall_ns - last[0] - passed_ns) / 1e9
        explained_s = _JUMP_S + _MAX_DRIFT * passed_ns / 1e9 + (doubt_ns + last[2]) / 1e9
        return by_s if abs(by_s) > explained_s else None


def read_both_clocks(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> tuple[int, int, int]:
    """Return wall time, monotonic time and how far apart the two may have been read, in nanoseconds."""
    best: tuple[int, int, int] | None = None
    for _ in range(_TRIES):
        before = monotonic_ns()
        wall = wall_ns()
        after = monotonic_ns()
        if best is None or after - before < best[2]:
            best = wall, (before + after) // 2, after - before
        if best[2] <= _SURE_NS:
            break
    assert best is not None
    return best


def _contradict(one: Ping, other: Ping) -> bool:
    apart_s = abs(one.offset_ns - other.offset_ns) / 1e9
    drifted_s = _MAX_DRIFT * abs(one.middle_ns - other.middle_ns) / 1e9
    return apart_s > one.half_s + other.half_s + drifted_s


def _fit(points: Sequence[tuple[float, float, float]], at: float) -> _Line:
    """Return the weighted line through (time, value, half-width) at a time, with what it can be wrong by."""
    weights = [half**-2 for _, _, half in points]
    total = sum(weights)
    center = sum(w * t for w, (t, _, _) in zip(weights, points, strict=True)) / total
    spread = sum(w * (t - center) ** 2 for w, (t, _, _) in zip(weights, points, strict=True))
    slopes = [w * (t - center) / spread for w, (t, _, _) in zip(weights, points, strict=True)]
    slope = sum(s * value for s, (_, value, _) in zip(slopes, points, strict=True))
    mean = sum(w * value for w, (_, value, _) in zip(weights, points, strict=True)) / total
    factors = [w / total + s * (at - center) for w, s in zip(weights, slopes, strict=True)]
    excess = max(0.0, *(abs(value - mean - slope * (t - center)) - half for t, value, half in points))
    return _Line(
        value=mean + slope * (at - center),
        bound=sum(abs(f) * half for f, (_, _, half) in zip(factors, points, strict=True)) + excess,
        slope=slope,
        slope_bound=sum(abs(s) * half for s, (_, _, half) in zip(slopes, points, strict=True))
        + 2 * excess / abs(points[-1][0] - points[0][0]),
    )
