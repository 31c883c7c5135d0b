"""`run.state`: everything a resumed run needs, in one object.

Counters (`step`, `tokens`, `samples`, `epoch`), cursor and order of every data object, and what the script
adds: plain JSON values, and objects that have `state_dict` and `load_state_dict` with JSON values
and arrays. Models, optimizers and random numbers are added by the framework when a checkpoint is
taken.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol, runtime_checkable

from gscalar.base.canonical import canonical_json
from gscalar.base.errors import TrainingError
from gscalar.runtime.cursor import Cursor, OrderFacts


@runtime_checkable
class Stateful(Protocol):
    """An object that can tell its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take a state back."""


class RunState(MutableMapping[str, Any]):
    """Counters of the training, and a mapping for what the script wants restored.

    `state["best"] = 1.2` keeps a JSON value; `state.setdefault("best", 9.9)` reads what a resumed
    run had. Assigning an object with `state_dict` and `load_state_dict` keeps the object, and gives
    it its state back at once when the run is resumed.
    """

    def __init__(self) -> None:
        self.step = 0
        self.tokens = 0.0
        self.samples = 0.0
        self.cursors: dict[str, Cursor] = {}
        self.orders: dict[str, OrderFacts] = {}
        self.data_states: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._objects: dict[str, Stateful] = {}
        self._waiting: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        """The epoch of the first data object, from 0; it rises with an epoch's last batch."""
        return next(iter(self.cursors.values())).epoch if self.cursors else 0

    def __getitem__(self, name: str) -> Any:
        return self._objects[name] if name in self._objects else self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Stateful):
            self._objects[name] = value
            self._values.pop(name, None)
            if name in self._waiting:
                value.load_state_dict(self._waiting.pop(name))
            return
        try:
            canonical_json(value)
        except (TypeError, ValueError) as error:
            raise TrainingError(
                code="bad-state",
                what="Only JSON values and objects with state_dict and load_state_dict can be kept in run.state.",
                value=type(value).__name__,
                where=f"run.state[{name!r}]",
                next_step="Store numbers, strings, lists and dicts, or give the object those two methods.",
            ) from error
        self._values[name] = value
        self._objects.pop(name, None)
        self._waiting.pop(name, None)

    def __delitem__(self, name: str) -> None:
        if name in self._objects:
            del self._objects[name]
        else:
            del self._values[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._objects

    def __len__(self) -> int:
        return len(self._values) + len(self._objects)

    def to_plain(self) -> dict[str, Any]:
        """Return a copy of everything here, as plain values for a checkpoint."""
        plain = {
            "step": self.step,
            "tokens": self.tokens,
            "samples": self.samples,
            "cursors": {name: cursor.to_plain() for name, cursor in self.cursors.items()},
            "orders": {name: order.to_plain() for name, order in self.orders.items()},
            "data_states": self.data_states,
            "values": self._values,
            "objects": {**self._waiting, **{name: item.state_dict() for name, item in self._objects.items()}},
        }
        # It is written while the script goes on changing its lists and dicts.
        return copy.deepcopy(plain)

    def restore(self, plain: dict[str, Any]) -> None:
        """Take back what `to_plain` gave; objects that the script has not given yet wait for it."""
        self.step = plain["step"]
        self.tokens = plain["tokens"]
        self.samples = plain["samples"]
        self.cursors = {name: Cursor.from_plain(item) for name, item in plain["cursors"].items()}
        self.orders = {name: OrderFacts.from_plain(item) for name, item in plain.get("orders", {}).items()}
        self.data_states = dict(plain["data_states"])
        self._values = dict(plain["values"])
        self._waiting = dict(plain["objects"])
        for name in list(self._objects):
            if name in self._waiting:
                self._objects[name].load_state_dict(self._waiting.pop(name))
