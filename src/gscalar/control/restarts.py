"""Whether a failed run gets another attempt, and when.

A restart costs one from the budget (`retries`), and nothing refills it: a run that fails once an hour
shall not go on for a year unseen. The wait before it is 0.5 s, doubled at each failure in a row
without progress, 60 s at most; an attempt that got further than all before it sets it back to 0.5 s.

Not restarted, whatever is left of the budget:
- a script that ends by an error before it calls `gscalar.init`: nothing of ours can change that;
- an error by which gscalar itself refuses (a data set that is too small, a non-finite loss with
  `on_nonfinite: stop`): it is the same the next time;
- the same error of the user's code (type, message, step) for the second time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gscalar.model.events import Failure
from gscalar.model.status import FailureClass

# Names of this package's errors that are the same the next time (gscalar.base.errors).
_REFUSALS: Final = frozenset({"UserError", "SpecError", "EnvironmentProblem", "TrainingError"})
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedAttempt:
    """One failed attempt: why, whether its script got to `init`, and its last completed step."""

    failure: Failure
    started: bool
    last_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """The budget and the back-off."""

    retries: int
    first_delay_s: float = 0.5
    factor: float = 2.0
    longest_delay_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether to go on, after what wait, and why (shown to the user)."""

    restart: bool
    reason: str
    delay_s: float = 0.0


def decide(history: Sequence[FailedAttempt], policy: RestartPolicy) -> Verdict:
    """Return the verdict after the last of these failed attempts, the oldest first."""
    last = history[-1]
    refusal = _refusal(history[:-1], last)
    if refusal:
        return Verdict(restart=False, reason=refusal)
    used = len(history) - 1
    if used >= policy.retries:
        budget = "no restarts are allowed" if policy.retries == 0 else f"all {policy.retries} restarts are used"
        return Verdict(restart=False, reason=f"{budget} (`retries`)")
    delay_s = min(policy.first_delay_s * policy.factor ** _failures_in_a_row(history), policy.longest_delay_s)
    return Verdict(restart=True, delay_s=delay_s, reason=f"restart {used + 1} of {policy.retries}")


def _refusal(before: Sequence[FailedAttempt], last: FailedAttempt) -> str:
    if last.failure.failure_class != FailureClass.USER_ERROR:
        return ""
    if not last.started and last.last_step == 0:
        return "the script fails before it calls `gscalar.init`, and would again"
    if last.failure.kind in _REFUSALS:
        return "a restart would meet the same"
    if any(same_error(past.failure, last.failure) for past in before):
        return f"the same error came twice at step {last.failure.step}"
    return ""


def same_error(first: Failure, second: Failure) -> bool:
    """Return whether two failures are one: class, type, message (but addresses in it) and step."""
    return _identity(first) == _identity(second)


def _identity(failure: Failure) -> tuple[str, str, str, int]:
    message = _ADDRESS.sub("0x", failure.message)
    return failure.failure_class, failure.kind, message, failure.step


def _failures_in_a_row(history: Sequence[FailedAttempt]) -> int:
    """Return how many attempts before the last one brought no progress since, the last one included."""
    row = 0
    for place in range(len(history) - 1, 0, -1):
        best_before = max(attempt.last_step for attempt in history[:place])
        if history[place].last_step > best_before:
            break
        row += 1
    return row
