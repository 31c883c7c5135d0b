"""Iterable data: streams of batches that have no length and cannot be indexed.

Every rank reads the whole stream and keeps its own batches, so that no data set has to know of
ranks; one that shards itself says `sharded`. Positions are batches of the epoch, counted over all
ranks. A global micro-batch is as many batches as the run began with ranks; in a smaller world it
is walked in pieces of one batch a rank. A rank without a batch, at the end of an epoch or in a larger world,
repeats another's with no weight, so that all ranks step together.

Resume: a loader or data set with `state_dict` and `load_state_dict` is put back where it was, in any
world, since all ranks have read the same. Another one is read again from the epoch's beginning, and
what was consumed is discarded; a warning says so, because that is exact only where the stream yields the
same order again. Each batch is read under random numbers of its own, so that this holds for what it draws. At
the beginning of an epoch no state is put back, since many data sets take the state of their end for one
without anything left: what differs from epoch to epoch follows `set_epoch`, which is called where there is one.

A stream that shards itself has other shards in another world: it is refused there.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch

from gscalar.base.canonical import digest
from gscalar.base.errors import TrainingError
from gscalar.frameworks.torch.data import FeedPlace, leading_size, moved, to_device
from gscalar.frameworks.torch.randomness import drawing
from gscalar.frameworks.torch.state import from_plain, to_plain
from gscalar.model.shares import Share
from gscalar.runtime.cursor import Cursor, OrderFacts
from gscalar.runtime.framework import Batch


class _Piece(NamedTuple):
    """What this rank takes of the batches that all ranks take in one forward."""

    value: Any
    num_samples: int
    position: int | None  # None where it only takes part
    end: int  # position after the last batch of all ranks
    state: Any


class StreamFeed:
    """Any iterable of batches, or a loader over an iterable data set."""

    def __init__(self, data: Any, place: FeedPlace, sharded: bool) -> None:
        self._data = data
        self._place = place
        self._sharded = sharded
        self._world, self._rank = place.launch.world, place.launch.rank
        self._round = place.global_batch or self._world
        if sharded and self._round != self._world:
            raise TrainingError(
                code="world-changed",
                what=f"A stream that shards itself over {self._round} ranks cannot go on in a world of {self._world}: "
                "its shards are others there.",
                value=type(data).__name__,
                next_step=f"Resume with `workers: {self._round}`, or start a new run.",
            )
        self._holder = _state_holder(data)
        self._generator: torch.Generator | None = None
        if getattr(data, "generator", 0) is None:
            # Else every pass would draw its data workers' seed from the training's own random numbers.
            data.generator = self._generator = torch.Generator()

    @property
    def order(self) -> OrderFacts:
        """What is known: positions are batches, in the stream's own order."""
        return OrderFacts(0, self._place.seed, False, False, self._round, 1, self._world)

    def batches_left(self, cursor: Cursor) -> int | None:
        """None: only the end of a stream tells its length."""
        return None

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's batches from the cursor on.

        Raises:
            TrainingError: `data-too-small`, when an epoch has no batch; `bad-state`.
        """
        epoch, start, skip = cursor.epoch, cursor.sample, 0
        if start and data_state is not None and self._holder is not None:
            self._holder.load_state_dict(from_plain(data_state))
        elif start:
            skip = start // self._world if self._sharded else start
            warnings.warn(
                f"{type(self._data).__name__} has no state_dict: its first {skip} batches are read again and "
                "discarded, which is exact only if it yields the same order again.",
                stacklevel=2,
            )
        batches = cursor.batches
        while True:
            # A step that begins inside a global micro-batch finishes that one first.
            step_size = self._num_pieces(self._round - start % self._round)
            step_size += (accumulate - 1) * self._num_pieces(self._round)
            closed = 0
            for piece, is_last in self._pieces(epoch, start, skip):
                closes = is_last or piece.end % self._round == 0
                batches += closes
                shares = () if piece.position is None else (self._share(epoch, piece.position),)
                value, transfer_s = moved(piece.value, self._place.device)
                yield Batch(
                    value=value,
                    num_samples=piece.num_samples,
                    group_samples=None,
                    after=Cursor(epoch + 1, 0, batches) if is_last else Cursor(epoch, piece.end, batches),
                    ends_epoch=is_last,
                    data_state=piece.state,
                    shares=shares,
                    step_size=step_size,
                    transfer_s=transfer_s,
                )
                closed += closes
                if closed % accumulate == 0 and closes:
                    step_size = accumulate * self._num_pieces(self._round)
            epoch, start, skip = epoch + 1, 0, 0

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass."""
        source = self._begin(0)
        world, rank = (1, 0) if self._sharded else (self._world, self._rank)
        for index in _count():
            with drawing(self._place.seed + index):
                value = next(source, _END)
            if value is _END:
                return
            if index % world == rank:
                yield to_device(value, self._place.device)

    def digest(self, cursor: Cursor) -> str:
        """Return a digest of how much was consumed: what was in it only the stream knows."""
        return digest({"stream": type(self._data).__name__, "epoch": cursor.epoch, "batches": cursor.sample})

    def _num_pieces(self, count: int) -> int:
        return -(-count // self._world)

    def _share(self, epoch: int, position: int) -> Share:
        return Share(self._place.number, epoch, position, position + 1)

    def _pieces(self, epoch: int, start: int, skip: int) -> Iterator[tuple[_Piece, bool]]:
        """Yield pieces from position `start` on, and whether each is the epoch's last; `skip` batches are discarded."""
        holder: Any
        for holder in (self._data, getattr(self._data, "dataset", None)):
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)
        source = self._begin(epoch)
        for position in range(skip):
            self._read(source, epoch, position)
        held: _Piece | None = None
        while (piece := self._next_piece(source, epoch, held.end if held is not None else start)) is not None:
            if held is not None:
                yield held, False
            held = piece
        if held is None:
            raise TrainingError(
                code="data-too-small",
                what=f"The data stream gave no batch in epoch {epoch}: it is empty, or cannot be iterated twice.",
                value=type(self._data).__name__,
                next_step="Look at its source; give an iterable that begins anew each time, and no generator.",
            )
        yield held, True

    def _begin(self, epoch: int) -> Iterator[Any]:
        if self._generator is not None:
            self._generator.manual_seed((self._place.seed * 1_000_003 + epoch) % 2**63)
        return iter(self._data)

    def _next_piece(self, source: Iterator[Any], epoch: int, begin: int) -> _Piece | None:
        """Return what this rank takes of the batches from position `begin` on; None at the stream's end."""
        if self._sharded:
            value = self._read(source, epoch, begin // self._world)
            return None if value is _END else self._piece(value, begin + self._rank, begin + self._world)
        wanted = min(self._world, self._round - begin % self._round)
        batches = []
        for position in range(begin, begin + wanted):
            value = self._read(source, epoch, position)
            if value is _END:
                break
            batches.append(value)
        if not batches:
            return None
        end = begin + len(batches)
        if self._rank < len(batches):
            return self._piece(batches[self._rank], begin + self._rank, end)
        return self._piece(batches[-1], None, end)

    def _piece(self, value: Any, position: int | None, end: int) -> _Piece:
        state = to_plain(self._holder.state_dict(), "data state") if self._holder is not None else None
        return _Piece(value, leading_size(value) if position is not None else 0, position, end, state)

    def _read(self, source: Iterator[Any], epoch: int, position: int) -> Any:
        with drawing((self._place.seed * 1_000_003 + epoch * 2_147_483_647 + position) % 2**63):
            return next(source, _END)


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
