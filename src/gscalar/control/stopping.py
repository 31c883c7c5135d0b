"""How a stop goes on: from signals and time to what the supervisor does next. Pure.

SIGTERM             checkpoint at the next step border, exit 75; a `control/cancel` file makes it a cancel
SIGINT (Ctrl-C)     the same with a summary, exit 130
SIGINT again        kill now
the deadline        kill
"""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass
from typing import Final

GRACE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StopState:
    """What was asked so far."""

    reason: str = ""  # preempted | interrupted | cancelled; empty: nobody asked
    deadline_s: float = float("inf")  # of the supervisor's monotonic clock
    num_interrupts: int = 0
    kill: bool = False
    why_kill: str = ""

    @property
    def asked(self) -> bool:
        """Whether anybody asked for an end."""
        return bool(self.reason)


def on_signal(state: StopState, signum: int, *, cancelled: bool, now_s: float, grace_s: float) -> StopState:
    """Return the state after a signal. `cancelled`: there is a request by `gscalar cancel`."""
    interrupts = state.num_interrupts + (signum == signal.SIGINT)
    state = dataclasses.replace(state, num_interrupts=interrupts)
    if interrupts >= 2:
        return dataclasses.replace(state, kill=True, why_kill="interrupted twice")
    if state.asked:
        return state  # schedulers repeat their SIGTERM
    reason = "cancelled" if cancelled else "interrupted" if signum == signal.SIGINT else "preempted"
    return dataclasses.replace(state, reason=reason, deadline_s=now_s + grace_s)


def on_request(state: StopState, reason: str, *, now_s: float, grace_s: float) -> StopState:
    """Return the state after a request that came without a signal, by file or by a worker's own stop."""
    if state.asked:
        return state
    return dataclasses.replace(state, reason=reason, deadline_s=now_s + grace_s)


def on_time(state: StopState, now_s: float) -> StopState:
    """Return the state at a later time: when the deadline has passed, the workers are killed."""
    if state.asked and not state.kill and now_s >= state.deadline_s:
        return dataclasses.replace(state, kill=True, why_kill="the workers did not stop in time")
    return state
