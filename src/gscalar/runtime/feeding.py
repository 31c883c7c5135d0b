"""The data objects of a run: which feed each has, how far each is asked to go, what is told of its order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gscalar.model.events import Event, Note, SampleOrder
from gscalar.runtime.cursor import Cursor, OrderFacts, shard_of
from gscalar.runtime.framework import Feed, Framework
from gscalar.runtime.launch import Launch
from gscalar.runtime.state import RunState


@dataclass(slots=True)
class Fed:
    """One data object, by the name its cursor has in the state."""

    name: str
    number: int
    data: Any  # kept, so that its id stays its own
    feed: Feed
    epochs_asked: int = 0
    told: bool = False  # whether its order is on the record of this attempt


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
    used: bool = False  # whether a loop has asked for batches
    _by_id: dict[int, Fed] = field(default_factory=dict)

    def of(self, data: Any, framework: Framework, sharded: bool, orders: Mapping[str, OrderFacts]) -> Fed:
        """Return the feed of a data object, made at its first use; `orders` are those that the run has fixed."""
        self.used = True
        if id(data) not in self._by_id:
            number = len(self._by_id)
            name = f"data{number}"
            fixed = orders[name].global_batch if name in orders else None
            feed = framework.feed(data, self.launch, self.seed, sharded=sharded, number=number, global_batch=fixed)
            self._by_id[id(data)] = Fed(name, number, data, feed)
        return self._by_id[id(data)]

    def to_evaluate(self, data: Any, framework: Framework, sharded: bool) -> Feed:
        """Return a feed for one pass; it is not kept, since a script may make a new loader every time."""
        known = self._by_id.get(id(data))
        return known.feed if known else framework.feed(data, self.launch, self.seed, sharded=sharded)

    def announce(self, fed: Fed, state: RunState, now_ns: int) -> list[Event]:
        """Return what the record is told at the first use in an attempt, and keep the order in the state."""
        if fed.told:
            return []
        fed.told = True
        now = fed.feed.order
        before = state.orders.get(fed.name, now)
        state.orders[fed.name] = now
        order = SampleOrder(now_ns, fed.number, now.size, now.seed, now.shuffle, now.listed, now.global_batch)
        notes = explain_change(fed.name, before, now, state.cursors.get(fed.name, Cursor()))
        # What is alike on all ranks is said once.
        return [order, *(Note(now_ns, *note) for note in notes if self.launch.rank == 0)]

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
        per_epoch, in_epoch = feed.batches_left(Cursor(cursor.epoch + 1)), feed.batches_left(cursor)
        if per_epoch is None or in_epoch is None:
            return None
        if cursor.epoch >= epochs:
            return 0
        whole = (epochs - cursor.epoch - 1) * math.ceil(per_epoch / self.accumulate)
        return math.ceil(in_epoch / self.accumulate) + whole

    def first(self) -> Fed | None:
        """Return the first data object."""
        return next(iter(self._by_id.values()), None)


def explain_change(name: str, before: OrderFacts, now: OrderFacts, cursor: Cursor) -> list[tuple[str, str, str]]:
    """Return notes (level, code, text) on how a data object's order differs from that of the attempt before."""
    notes = []
    if now.world != before.world:
        unit = "batches" if not now.size else "positions" if now.listed else "samples"
        sizes = sorted({stop - start for start, stop in _all_shares(now)}, reverse=True)
        text = (
            f"{name}: the run goes on with {now.world} {_workers(now.world)} and had {before.world}. A step keeps its "
            f"global batch of {now.global_batch} {unit}: {' or '.join(map(str, sizes))} a worker."
        )
        notes.append(("info", "world-changed", text))
    # A script that divides a global batch of its own by the world changes the loader's, and means the same.
    if now.batch_size != before.batch_size and now.batch_size * now.world != now.global_batch:
        text = (
            f"{name}: the loader's batch size is {now.batch_size} and was {before.batch_size}. The run keeps its "
            f"global batch of {now.global_batch}; a worker takes at most {now.batch_size} of it in one forward."
        )
        notes.append(("warning", "batch-size-changed", text))
    if cursor.sample and _sequence(now) != _sequence(before):
        text = (
            f"{name}: the order of the samples is another one (size {before.size} to {now.size}, seed {before.seed} to "
            f"{now.seed}) in the middle of epoch {cursor.epoch}: in this epoch samples may be met twice or not at all."
        )
        notes.append(("warning", "order-changed", text))
    return notes


def _all_shares(order: OrderFacts) -> list[tuple[int, int]]:
    return [shard_of(order.global_batch, order.world, rank) for rank in range(order.world)]


def _workers(count: int) -> str:
    return "worker" if count == 1 else "workers"


def _sequence(order: OrderFacts) -> tuple[int, int, bool, bool]:
    """Return what decides which sample a position is."""
    drawn = order.shuffle or order.listed
    return order.size, order.seed if drawn else 0, order.shuffle, order.listed
