"""Iterable data: streams of batches that have no length and cannot be indexed.

Every rank reads the whole stream and keeps every world-th batch, so that no data set has to know of
ranks; one that shards itself says `sharded`. The last round of an epoch may have fewer batches than
ranks: a rank without one repeats its last batch with no weight, so that all ranks step together.

Resume: a loader or data set with `state_dict` and `load_state_dict` is put back where it was.
Another one is read again from the epoch's beginning, and what was consumed is discarded; a warning
says so, because that is exact only where the stream yields the same order again. At the beginning of an
epoch no state is put back, since many data sets take the state of their end for one without anything
left: what differs from epoch to epoch follows `set_epoch`, which is called where there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from typing import Any

import torch

from gscalar.base.canonical import digest
from gscalar.base.errors import TrainingError
from gscalar.frameworks.torch.data import leading_size, to_device
from gscalar.frameworks.torch.randomness import drawing
from gscalar.frameworks.torch.state import from_plain, to_plain
from gscalar.runtime.cursor import Cursor
from gscalar.runtime.framework import Batch
from gscalar.runtime.launch import Launch


class StreamFeed:
    """Any iterable of batches, or a loader over an iterable data set."""

    def __init__(self, data: Any, launch: Launch, seed: int, device: torch.device, sharded: bool) -> None:
        self._data = data
        self._world, self._rank = (1, 0) if sharded else (launch.world, launch.rank)
        self._seed = seed
        self._device = device
        self._holder = _state_holder(data)
        self._generator: torch.Generator | None = None
        if getattr(data, "generator", 0) is None:
            # Else every pass would draw its data workers' seed from the training's own random numbers.
            data.generator = self._generator = torch.Generator()

    @property
    def batches_per_epoch(self) -> int | None:
        """None: only the end of a stream tells its length."""
        return None

    def batches_left(self, cursor: Cursor) -> int | None:
        """None, as for a whole epoch."""
        return None

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's batches from the cursor on; `cursor.sample` counts rounds of the epoch.

        Raises:
            TrainingError: `data-too-small`, when an epoch has no batch; `bad-state`.
        """
        epoch, rounds = cursor.epoch, cursor.sample
        skip = 0
        if rounds and data_state is not None and self._holder is not None:
            self._holder.load_state_dict(from_plain(data_state))
        elif rounds:
            skip = rounds
            warnings.warn(
                f"{type(self._data).__name__} has no state_dict: its first {rounds} rounds are read again and "
                "discarded, which is exact only if it yields the same order again.",
                stacklevel=2,
            )
        batches = cursor.batches
        while True:
            for own, state, is_last in self._rounds(epoch, rounds - skip, skip):
                rounds, batches = rounds + 1, batches + 1
                after = Cursor(epoch + 1, 0, batches) if is_last else Cursor(epoch, rounds, batches)
                value, weight = own
                yield Batch(to_device(value, self._device), weight, None, after, is_last, state)
            epoch, rounds, skip = epoch + 1, 0, 0

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass."""
        source = self._begin(0)
        for index in _count():
            with drawing(self._seed + index):
                value = next(source, _END)
            if value is _END:
                return
            if index % self._world == self._rank:
                yield to_device(value, self._device)

    def digest(self, cursor: Cursor) -> str:
        """Return a digest of how much was consumed: what was in it only the stream knows."""
        return digest({"stream": type(self._data).__name__, "epoch": cursor.epoch, "rounds": cursor.sample})

    def _rounds(self, epoch: int, first: int, skip: int) -> Iterator[tuple[tuple[Any, int], Any, bool]]:
        """Yield (this rank's (batch, samples), state after the round, whether it is the epoch's last)."""
        holder: Any
        for holder in (self._data, getattr(self._data, "dataset", None)):
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)
        source = self._begin(epoch)
        number = first
        held: tuple[tuple[Any, int], Any] | None = None
        while True:
            batches = self._read_round(source, epoch, number)
            if not batches:
                break
            number += 1
            if number <= skip + first:
                continue
            if held is not None:
                yield *held, False
            state = to_plain(self._holder.state_dict(), "data state") if self._holder is not None else None
            held = (self._own(batches), state)
        if held is None:
            raise TrainingError(
                code="data-too-small",
                what=f"The data stream gave no batch in epoch {epoch}: it is empty, or cannot be iterated twice.",
                value=type(self._data).__name__,
                next_step="Look at its source; give an iterable that begins anew each time, and no generator.",
            )
        yield *held, True

    def _begin(self, epoch: int) -> Iterator[Any]:
        if self._generator is not None:
            self._generator.manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
        return iter(self._data)

    def _read_round(self, source: Iterator[Any], epoch: int, number: int) -> list[Any]:
        batches = []
        with drawing((self._seed * 1_000_003 + epoch * 8191 + number) % 2**63):
            for _ in range(self._world):
                value = next(source, _END)
                if value is _END:
                    break
                batches.append(value)
        return batches

    def _own(self, batches: list[Any]) -> tuple[Any, int]:
        if self._rank < len(batches):
            return batches[self._rank], leading_size(batches[self._rank])
        return batches[-1], 0


_END = object()


def _count() -> Iterator[int]:
    index = 0
    while True:
        yield index
        index += 1


def _state_holder(data: Any) -> Any:
    """Return who can tell and take back the stream's place, or None."""
    if hasattr(data, "state_dict") and hasattr(data, "load_state_dict"):
        return data
    dataset = getattr(data, "dataset", None)
    # With data workers the data set's state lives in them, out of reach.
    if getattr(data, "num_workers", 0) == 0 and hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
        return dataset
    return None
