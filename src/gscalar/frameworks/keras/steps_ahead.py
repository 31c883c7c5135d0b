"""Steps that a coordinator has given out to the workers of parameter servers, and that are not counted yet.

They are counted in the order in which they were given out, each when its result is taken. A few are under way, so that
no worker waits for the chief; before a checkpoint or a stop none is, so that what is saved holds the steps that are
counted, and no others. A worker that is far slower holds the others up once they are those few steps ahead of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from gscalar.frameworks.keras.applied import Applied
from gscalar.runtime.driving import Driver

_PER_WORKER: Final = 2


class StepsAhead:
    """The steps under way of one run. `loss_of` finds the loss in a step's result."""

    def __init__(self, driver: Driver, coordinator: Any, loss_of: Callable[[Any], Any], samples: int = 1) -> None:
        self._driver = driver
        self._loss_of = loss_of
        self._samples = samples
        self._most = _PER_WORKER * coordinator.strategy.extended._num_workers
        self._results: deque[Any] = deque()
        self.border_due = False  # whether a step that was counted wants a checkpoint or a stop

    def __len__(self) -> int:
        return len(self._results)

    @property
    def has_room(self) -> bool:
        """Whether one more may be given out."""
        most: int = self._most
        return len(self._results) < most

    def add(self, result: Any) -> None:
        """Note a step that was given out."""
        self._results.append(result)

    def count_oldest(self) -> Any:
        """Wait for the oldest step, count it, and return its result."""
        with self._driver.waiting_for_others():
            value = self._results.popleft().fetch()
        self._driver.expect(self._samples)
        self._driver.run.step(Applied(self._loss_of(value)))
        self.border_due = self.border_due or self._driver.border_wanted
        return value

    def settle(self) -> None:
        """Count all that are under way."""
        while self._results:
            self.count_oldest()

    def cross_border(self) -> None:
        """Save, and stop where that was asked for. None may be under way."""
        self.border_due = False
        self._driver.cross_border()
