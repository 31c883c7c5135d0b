"""How much of a run's time went into steps that count, and where the rest went.

    ratio = productive / total
    total = the time in which somebody was at work for the run: a supervisor, or a script alone

Every moment of the total is in exactly one part. Rank 0's steps come first, since a monotonic clock timed them;
what they leave of an attempt is given, in this order, to the silence of a hang, to the way to the first step and
to the way out after a failure; the remainder is `other`. So the parts sum to the total whatever the clocks did,
and none is negative.

    productive     steps that count, without their waits for data and for checkpoints
    data           waiting for batches, in steps that count
    checkpoint     waiting for checkpoints, in steps that count
    lost_progress  steps that a later attempt has repeated
    start          to the first step: of the first attempt, and of one that goes on after an intended stop
    recovery       from a failure to the first step of the next attempt, however many attempts that took
    hang           from the last sign of life of a hung rank until the supervisor said so
    other          evaluation, the step that a failure cut off, the end of the run

Limits. What lies between the end of a run and `--resume` is nobody's time and not in the total, nor is the time
after a supervisor died with its run. Where steps carry no accounts, their waits are unknown and count as productive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Jump:
    """The wall clock was set: at `time_ns`, its new time, it had moved by `by_s` more than it should."""

    time_ns: int
    by_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptTimes:
    """One attempt by the wall clock, and what rank 0's steps took. `jumps` are those between start and end."""

    started_ns: int
    ended_ns: int  # of one that goes on: its newest event
    jumps: tuple[Jump, ...] = ()
    first_step_ns: int | None = None  # its begin
    counted_s: float = 0.0
    superseded_s: float = 0.0
    data_wait_s: float | None = None  # of steps that count; None: not measured
    checkpoint_s: float | None = None
    failed_ns: int | None = None  # when it failed, where it did
    silent_since_ns: int | None = None  # the last sign of life of the hung rank, where it failed by a hang
    after_s: float = 0.0  # from its end to the next attempt or to the run's end, while somebody waited


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """The parts of a run's time, in seconds. `data_s` and `checkpoint_s` are None where no step says."""

    productive_s: float
    start_s: float
    data_s: float | None
    checkpoint_s: float | None
    lost_progress_s: float
    recovery_s: float
    hang_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        """The sum of all parts."""
        waits_s = (self.data_s or 0.0) + (self.checkpoint_s or 0.0)
        idle_s = self.start_s + self.recovery_s + self.hang_s + self.other_s
        return self.productive_s + waits_s + self.lost_progress_s + idle_s

    @property
    def ratio(self) -> float:
        """The productive share of the total."""
        return self.productive_s / self.total_s


@dataclass(frozen=True, kw_only=True, slots=True)
class _Idle:
    """What an attempt spent outside of steps."""

    start_s: float = 0.0
    recovery_s: float = 0.0
    hang_s: float = 0.0
    other_s: float = 0.0


def measure_goodput(attempts: Sequence[AttemptTimes]) -> Goodput | None:
    """Return where the time of these attempts, in their order, went; None before the first step of any."""
    if not any(each.counted_s or each.superseded_s for each in attempts):
        return None
    idle: list[_Idle] = []
    recovering = False
    for place, attempt in enumerate(attempts):
        followed = place + 1 < len(attempts)
        idle.append(_divide(attempt, recovering=recovering, followed=followed))
        recovering = attempt.failed_ns is not None or (recovering and attempt.first_step_ns is None)
    counted_s = sum(each.counted_s for each in attempts)
    data_s = _sum_known([each.data_wait_s for each in attempts], counted_s)
    checkpoint_s = _sum_known([each.checkpoint_s for each in attempts], counted_s - (data_s or 0.0))
    return Goodput(
        productive_s=counted_s - (data_s or 0.0) - (checkpoint_s or 0.0),
        start_s=sum(each.start_s for each in idle),
        data_s=data_s,
        checkpoint_s=checkpoint_s,
        lost_progress_s=sum(each.superseded_s for each in attempts),
        recovery_s=sum(each.recovery_s for each in idle),
        hang_s=sum(each.hang_s for each in idle),
        other_s=sum(each.other_s for each in idle),
    )


def _divide(attempt: AttemptTimes, *, recovering: bool, followed: bool) -> _Idle:
    """Return the parts of an attempt outside of its steps."""
    length_s = _elapsed_s(attempt, attempt.ended_ns)
    left_s = max(0.0, length_s - attempt.counted_s - attempt.superseded_s)
    failed_s = None if attempt.failed_ns is None else _elapsed_s(attempt, attempt.failed_ns)
    # 1. The silence of a hang.
    hang_s = 0.0
    if failed_s is not None and attempt.silent_since_ns is not None:
        hang_s = _clip(failed_s - _elapsed_s(attempt, attempt.silent_since_ns), left_s)
    left_s -= hang_s
    # 2. The way to the first step.
    if attempt.first_step_ns is not None:
        lead_s = _clip(_elapsed_s(attempt, attempt.first_step_ns), left_s)
    elif recovering or failed_s is None:
        lead_s = left_s
    else:
        lead_s = _clip(failed_s - hang_s, left_s)
    left_s -= lead_s
    # 3. The way out after a failure, and the wait for the next attempt. Without a next one nothing was recovered.
    recovery_s, after_s = 0.0, max(0.0, attempt.after_s)
    if failed_s is not None and followed:
        recovery_s = _clip(length_s - failed_s, left_s)
        left_s -= recovery_s
        recovery_s, after_s = recovery_s + after_s, 0.0
    return _Idle(
        start_s=0.0 if recovering else lead_s,
        recovery_s=recovery_s + (lead_s if recovering else 0.0),
        hang_s=hang_s,
        other_s=left_s + after_s,
    )


def _elapsed_s(attempt: AttemptTimes, time_ns: int) -> float:
    """Return the seconds from the attempt's start to a time of the wall clock, without the clock's jumps."""
    elapsed_s = (time_ns - attempt.started_ns) / 1e9
    if time_ns == attempt.ended_ns:
        return max(0.0, elapsed_s - sum(each.by_s for each in attempt.jumps))
    for jump in attempt.jumps:
        # A jump is noticed a moment late; halfway between the old and the new time nothing else can lie. After a
        # jump backwards times come twice: those are taken for later ones, and the clipping bounds the error.
        if time_ns >= jump.time_ns - max(0.0, jump.by_s) / 2 * 1e9:
            elapsed_s -= jump.by_s
    return max(0.0, elapsed_s)


def _clip(seconds: float, most_s: float) -> float:
    return min(max(0.0, seconds), most_s)


def _sum_known(values: Sequence[float | None], most_s: float) -> float | None:
    known = [value for value in values if value is not None]
    return _clip(sum(known), most_s) if known else None
