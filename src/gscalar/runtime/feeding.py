"""The data objects of a run: which feed each has, how far each is asked to go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gscalar.runtime.cursor import Cursor
from gscalar.runtime.framework import Feed, Framework
from gscalar.runtime.launch import Launch


@dataclass(slots=True)
class Fed:
    """One data object, by the name its cursor has in the state."""

    name: str
    data: Any  # kept, so that its id stays its own
    feed: Feed
    epochs_asked: int = 0


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a loop goes, counted from the start of the run; None where there is no such limit."""

    epochs: int | None
    steps: int | None
    total_steps: int | None  # the optimizer step where the loop ends, where that is known
    decided: bool = True  # False where the script may go on with one more epoch, and nobody knows how often


@dataclass(slots=True)
class Feeds:
    """The data objects in the order of their first use."""

    launch: Launch
    seed: int
    accumulate: int
    _by_id: dict[int, Fed] = field(default_factory=dict)

    def of(self, data: Any, framework: Framework, sharded: bool) -> Fed:
        """Return the feed of a data object, made at its first use."""
        if id(data) not in self._by_id:
            feed = framework.feed(data, self.launch, self.seed, sharded=sharded)
            self._by_id[id(data)] = Fed(f"data{len(self._by_id)}", data, feed)
        return self._by_id[id(data)]

    def to_evaluate(self, data: Any, framework: Framework, sharded: bool) -> Feed:
        """Return a feed for one pass; it is not kept, since a script may make a new loader every time."""
        known = self._by_id.get(id(data))
        return known.feed if known else framework.feed(data, self.launch, self.seed, sharded=sharded)

    def extend(self, fed: Fed, epochs: int | None, steps: int | None, *, done: int, cursor: Cursor) -> Extent:
        """Return how far one more loop over the data goes; without limits it is one more epoch.

        `done` are the optimizer steps before the loop. What is left is counted from the cursor: a run
        that goes on in another world, or on a second data object, has done its steps otherwise.
        """
        if steps is not None and epochs is None:
            return Extent(None, steps, steps)
        fed.epochs_asked += 1 if epochs is None else epochs
        left = self._steps_left(fed.feed, cursor, fed.epochs_asked)
        known = [count for count in (None if left is None else done + left, steps) if count is not None]
        decided = epochs is not None or steps is not None
        return Extent(fed.epochs_asked, steps, min(known) if known else None, decided)

    def _steps_left(self, feed: Feed, cursor: Cursor, epochs: int) -> int | None:
        per_epoch, in_epoch = feed.batches_per_epoch, feed.batches_left(cursor)
        if per_epoch is None or in_epoch is None:
            return None
        if cursor.epoch >= epochs:
            return 0
        whole = (epochs - cursor.epoch - 1) * math.ceil(per_epoch / self.accumulate)
        return math.ceil(in_epoch / self.accumulate) + whole

    def first(self) -> Fed | None:
        """Return the first data object."""
        return next(iter(self._by_id.values()), None)
