"""When to hold a process so that it runs a fixed share of the time.

A process whose speed is divided by f runs for t and is held for (f - 1) t. Sleeps come back late, by more than a phase
is long on a busy machine, so phases are planned from what really was: the balance

    owed = (f - 1) * ran - held

is what the next hold takes back, and what was held too long lengthens the next run. A hold is at most
`_MOST_PERIODS` periods: after a long absence the rest is forgiven, since a long stop is another fault than a slow rank.
"""

from __future__ import annotations

from typing import Final

_MOST_PERIODS: Final = 10.0


class DutyCycle:
    """The balance of one slowed target."""

    def __init__(self, factor: float, period_s: float) -> None:
        assert factor > 1, factor
        self._factor = factor
        self._period_s = period_s
        self._owed_s = 0.0
        self.ran_s = 0.0
        self.held_s = 0.0

    def plan_run_s(self) -> float:
        """Return how long the target shall run now."""
        return self._period_s / self._factor + max(0.0, -self._owed_s) / (self._factor - 1)

    def plan_hold_s(self) -> float:
        """Return how long the target shall be held now; 0 where it was held too long before."""
        return max(0.0, self._owed_s)

    def ran(self, seconds: float) -> None:
        """Take how long the target ran."""
        self.ran_s += seconds
        self._owed_s = min(self._owed_s + (self._factor - 1) * seconds, _MOST_PERIODS * self._period_s)

    def held(self, seconds: float) -> None:
        """Take how long the target was held."""
        self.held_s += seconds
        self._owed_s -= seconds
