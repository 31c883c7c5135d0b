"""Telling a hang from a long wait: which rank, if any, has stopped working.

Every frame of a worker's record is a heartbeat, but for those of threads beside the training (hardware,
clocks): steps, logged values, and beats from evaluation, checkpoints and compilation. The clock of a
rank starts at its first beat or step after `init`, and stops when its session ends; a script that never
calls `init` has no clock and is never called hung.

One rank that stops soon stops all, because the others wait for it in a collective, so the silent
ones are mostly victims. A hang is called when a rank was silent for `hang_after_s` and

- its process is stopped (SIGSTOP, a debugger): that rank; or
- every working rank is silent: the rank that is furthest behind, by step, then by last heartbeat; or
- the others go on without it, and have completed steps that it has not: that rank.

A rank that is silent while another one still beats at the same step (an evaluation on rank 0 alone)
is waiting and not hung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# A rank that has been silent for this share of the limit is said to wait; it need not be overdue itself.
_WAITS: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBeat:
    """A living rank's last sign of life. `arrived_s` is the supervisor's monotonic clock."""

    rank: int
    started: bool = True  # `init` was called
    armed: bool = True  # the first beat or step has come
    finished: bool = False  # the session has ended; what the script does after it is its own affair
    arrived_s: float = 0.0
    time_ns: int = 0  # the worker's wall clock, comparable between workers of one host
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """The culprit, how long it was silent, and who was waiting for it."""

    rank: int
    step: int
    silent_s: float
    stopped: bool = False
    victims: tuple[int, ...] = ()

    def describe(self) -> str:
        """Return one sentence that names the culprit and the victims."""
        after = f" after step {self.step}" if self.step else ""  # who serves others takes no steps
        text = f"rank {self.rank} gave no heartbeat for {self.silent_s:.0f} s{after}"
        if self.stopped:
            text += "; its process is stopped (SIGSTOP or a debugger)"
        if self.victims:
            word = "rank" if len(self.victims) == 1 else "ranks"
            numbers = ", ".join(str(rank) for rank in self.victims)
            text += f"; {word} {numbers} {'was' if len(self.victims) == 1 else 'were'} waiting for it"
        return text


def overdue(beats: Sequence[RankBeat], now_s: float, hang_after_s: float) -> list[RankBeat]:
    """Return the ranks that were silent for too long; cheap, for a look at the processes to follow."""
    return [beat for beat in beats if beat.armed and not beat.finished and now_s - beat.arrived_s >= hang_after_s]


def find_hang(beats: Sequence[RankBeat], states: Mapping[int, str], now_s: float, hang_after_s: float) -> Hang | None:
    """Return the hang, if there is one. `states` are the engine's words for the living processes."""
    late = overdue(beats, now_s, hang_after_s)
    if not late:
        return None
    working = [beat for beat in beats if beat.started and not beat.finished]
    stopped = [beat for beat in working if states.get(beat.rank) == "stopped"]
    culprit = _choose(working, stopped, late)
    if culprit is None:
        return None
    return Hang(
        rank=culprit.rank,
        step=culprit.step,
        silent_s=now_s - culprit.arrived_s,
        stopped=culprit in stopped,
        victims=tuple(
            beat.rank for beat in working if beat is not culprit and now_s - beat.arrived_s >= hang_after_s * _WAITS
        ),
    )


def _choose(working: list[RankBeat], stopped: list[RankBeat], late: list[RankBeat]) -> RankBeat | None:
    if stopped:
        return min(stopped, key=_behind)
    silent = {beat.rank for beat in late}
    beating = [beat for beat in working if beat.armed and beat.rank not in silent]
    if not beating:
        # Also one that has called `init` and not come to its first beat: the others wait for it.
        return min(working, key=_behind)
    ahead = max(beat.step for beat in beating)
    left_behind = [beat for beat in late if beat.step < ahead]
    return min(left_behind, key=_behind) if left_behind else None


def _behind(beat: RankBeat) -> tuple[int, int, int]:
    return beat.step, beat.time_ns, beat.rank
