"""The data objects of a run: which feed each has, how far each is asked to go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

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

    def extend(self, fed: Fed, epochs: int | None, steps: int | None) -> Extent:
        """Return how far one more loop over the data goes; without limits it is one more epoch."""
        if steps is not None and epochs is None:
            return Extent(None, steps, steps)
        fed.epochs_asked += 1 if epochs is None else epochs
        per_epoch = fed.feed.batches_per_epoch
        by_epochs = None if per_epoch is None else fed.epochs_asked * math.ceil(per_epoch / self.accumulate)
        known = [count for count in (by_epochs, steps) if count is not None]
        return Extent(fed.epochs_asked, steps, min(known) if known else None)

    def first(self) -> Fed | None:
        """Return the first data object."""
        return next(iter(self._by_id.values()), None)
