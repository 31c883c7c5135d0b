"""The data of a `fit` or of a loop, in the run's global order.

Arrays are picked sample by sample and a `PyDataset` batch by batch, in an order that is a counter and so can be
resumed anywhere, in any world. A `tf.data.Dataset` and everything else that can only be iterated is a stream of
batches: every rank reads the whole stream and keeps its own batches, and a resume reads the epoch again up to its
place and discards what was consumed.

A `tf.data` shuffle draws its seed when an iterator begins, from the data set's own generator. A resumed process
begins as many iterators as epochs were done, and so meets the order that the epoch had.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gscalar.base.canonical import digest
from gscalar.base.errors import TrainingError
from gscalar.frameworks.keras.ahead import Request, read_ahead, read_in_turn, requests_of
from gscalar.frameworks.keras.backend import Array, staged, to_tensor
from gscalar.frameworks.keras.flavors import current
from gscalar.frameworks.keras.randomness import drawing
from gscalar.model.shares import Share
from gscalar.runtime.cursor import Cursor, Order, OrderFacts, eval_shard, order_digest
from gscalar.runtime.framework import Batch
from gscalar.runtime.launch import Launch


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples in memory: nested arrays whose first dim is the sample. `batch_size` is per worker."""

    values: Any
    batch_size: int = 32
    shuffle: bool = True

    def __len__(self) -> int:
        return len(current().flatten(self.values)[0])

    @property
    def in_memory(self) -> bool:
        """Whether rows are picked by NumPy alone."""
        return all(isinstance(leaf, np.ndarray) for leaf in current().flatten(self.values))

    def rows(self, indices: Sequence[int]) -> Any:
        """Return one batch as arrays."""
        places = np.asarray(indices)
        return current().map_structure(lambda array: np.asarray(array)[places], self.values)

    def at(self, indices: Sequence[int]) -> Any:
        """Return one batch as tensors."""
        return as_tensors(self.rows(indices))


@dataclass(frozen=True, eq=False)
class BatchList:
    """Batches that can be asked for by number, as those of a `keras.utils.PyDataset` or a legacy `Sequence`."""

    get: Callable[[int], Any]
    num_batches: int
    shuffle: bool = False


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches that can only be iterated; `begin` starts an epoch from its first batch.

    `draws` says that it may use the process's random numbers; a `tf.data.Dataset` has its own.
    """

    begin: Callable[[], Iterator[Any]]
    kind: str
    draws: bool = True


@dataclass(eq=False)
class InFit:
    """Data of a call of `fit`, whose batches come as `Marked`: Keras has to know where its epoch ends."""

    data: Arrays | BatchList | Stream
    feed: ListedFeed | StreamFeed | None = None

    def release(self) -> None:
        """Let the samples go: a run keeps its feeds, and a script may call `fit` a hundred times."""
        empty: Stream = Stream(lambda: iter(()), "released")
        self.data = empty
        if self.feed is not None:
            self.feed.release()


class Marked(NamedTuple):
    """A batch, and whether it is the last of its epoch."""

    value: Any
    ends_epoch: bool


@dataclass(frozen=True, slots=True)
class FeedPlace:
    """Where a feed stands: the rank, the run's seed, the data's number, and what the run has fixed before."""

    launch: Launch
    seed: int
    number: int
    global_batch: int | None


class ListedFeed:
    """Data that can be indexed: by sample or by batch."""

    def __init__(self, data: Arrays | BatchList, place: FeedPlace, in_fit: bool = False) -> None:
        self._data: Arrays | BatchList = data
        self._in_fit = in_fit
        self._place = place
        launch = place.launch
        self._by_sample = isinstance(data, Arrays)
        self._order = Order(
            size=len(data) if isinstance(data, Arrays) else data.num_batches,
            batch_size=data.batch_size if isinstance(data, Arrays) else 1,
            world=launch.world,
            rank=launch.rank,
            seed=place.seed,
            shuffle=data.shuffle,
            fixed_batch=place.global_batch,
        )

    @property
    def order(self) -> OrderFacts:
        """What the global order follows from."""
        return self._order.facts

    def batches_left(self, cursor: Cursor) -> int | None:
        """Return the global micro-batches that the cursor's epoch still has."""
        return self._order.batches_left(cursor)

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's micro-batches from the cursor on, without end."""
        requests = requests_of(self._order.steps(cursor, accumulate))
        with contextlib.closing(self._read(requests)) as taken:
            for (micro, step), value, num_ready in taken:
                num_samples = micro.num_samples
                if not self._by_sample:
                    num_samples = 0 if micro.is_padding else leading_size(value)
                value = as_tensors(value) if self._by_sample else value
                yield Batch(
                    value=Marked(value, micro.ends_epoch) if self._in_fit else value,
                    num_samples=num_samples,
                    group_samples=sum(other.num_global for other in step) if self._by_sample else None,
                    after=micro.after,
                    ends_epoch=micro.ends_epoch,
                    shares=micro.shares(self._place.number),
                    step_size=len(step),
                    num_ready=num_ready,
                )

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass in order."""
        data, launch = self._data, self._place.launch
        size, per_batch = (len(data), data.batch_size) if isinstance(data, Arrays) else (data.num_batches, 1)
        for indices in eval_shard(size, per_batch, launch.world, launch.rank):
            yield self._take(indices, self._place.seed + indices[0])

    def digest(self, cursor: Cursor) -> str:
        """Return the digest of the order up to the cursor."""
        return order_digest(self._order, cursor)

    def release(self) -> None:
        """Let the samples go; the order stays known."""
        self._data = BatchList(lambda number: None, 0)

    def _read(self, requests: Iterator[Request]) -> Generator[tuple[Request, Any, int], None, None]:
        """Yield the requests with their batches; only what is no code of the script's is read ahead."""
        data = self._data
        if not isinstance(data, Arrays):
            return read_in_turn(requests, lambda micro: self._take(micro.indices, micro.draw))
        if not data.in_memory:
            return read_in_turn(requests, lambda micro: data.rows(micro.indices))
        return read_ahead(requests, lambda micro: current().map_structure(staged, data.rows(micro.indices)))

    def _take(self, indices: Sequence[int], draw: int) -> Any:
        if isinstance(self._data, Arrays):
            return self._data.at(indices)
        with drawing(draw):
            return self._data.get(int(indices[0]))


class StreamFeed:
    """A stream of batches. Positions are batches of the epoch, counted over all ranks."""

    def __init__(self, data: Stream, place: FeedPlace, in_fit: bool = False) -> None:
        self._data = data
        self._in_fit = in_fit
        self._place = place
        self._world, self._rank = place.launch.world, place.launch.rank
        if place.global_batch is not None and place.global_batch != self._world:
            raise TrainingError(
                code="world-changed",
                what=f"A stream that was read by {place.global_batch} ranks cannot go on with {self._world}.",
                value=data.kind,
                next_step=f"Resume with `workers: {place.global_batch}`, or start a new run.",
            )

    @property
    def order(self) -> OrderFacts:
        """What is known: positions are batches, in the stream's own order."""
        return OrderFacts(0, self._place.seed, False, False, self._world, 1, self._world)

    def batches_left(self, cursor: Cursor) -> int | None:
        """None: only the end of a stream tells its length."""
        return None

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's batches from the cursor on.

        Raises:
            TrainingError: `data-too-small`, when an epoch has no batch.
        """
        if not self._data.draws:
            for _ in range(cursor.epoch):  # what an iterator draws when it begins is drawn again
                next(self._data.begin(), None)
        epoch, skip, count = cursor.epoch, cursor.sample, cursor.batches
        while True:
            with self._drawing(epoch, -1):
                source = self._data.begin()
            for position in range(skip):
                self._read(source, epoch, position)
            position, ended = skip, False
            row = self._row(source, epoch, position)
            if not row and not position:
                raise self._empty(epoch)
            while not ended:
                following = self._row(source, epoch, position + len(row))
                ended, begin, position, count = not following, position, position + len(row), count + 1
                own = self._rank < len(row)
                value = row[self._rank] if own else row[-1]
                yield Batch(
                    value=Marked(value, ended) if self._in_fit else value,
                    num_samples=leading_size(value) if own else 0,
                    group_samples=None,
                    after=Cursor(epoch + 1, 0, count) if ended else Cursor(epoch, position, count),
                    ends_epoch=ended,
                    shares=(Share(self._place.number, epoch, begin + self._rank, begin + self._rank + 1),)
                    if own
                    else (),
                    step_size=accumulate,
                )
                row = following
            epoch, skip = epoch + 1, 0

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass."""
        for position, value in enumerate(self._data.begin()):
            if position % self._world == self._rank:
                yield value

    def digest(self, cursor: Cursor) -> str:
        """Return a digest of how much was consumed: what was in it only the stream knows."""
        return digest({"stream": self._data.kind, "epoch": cursor.epoch, "batches": cursor.sample})

    def release(self) -> None:
        """Let the data go."""
        self._data = Stream(lambda: iter(()), self._data.kind)

    def _row(self, source: Iterator[Any], epoch: int, position: int) -> list[Any]:
        """Return the next batches of all ranks; fewer at the stream's end."""
        row = []
        for number in range(self._world):
            value = self._read(source, epoch, position + number)
            if value is None:
                break
            row.append(value)
        return row

    def _read(self, source: Iterator[Any], epoch: int, position: int) -> Any:
        with self._drawing(epoch, position):
            return next(source, None)

    def _drawing(self, epoch: int, position: int) -> contextlib.AbstractContextManager[None]:
        """Return a scope with random numbers that are alike on all ranks, and after a resume."""
        if not self._data.draws:
            return contextlib.nullcontext()
        return drawing((self._place.seed * 1_000_003 + epoch * 2_147_483_647 + position) % 2**63)

    def _empty(self, epoch: int) -> TrainingError:
        return TrainingError(
            code="data-too-small",
            what=f"The data gave no batch in epoch {epoch}: it is empty, or cannot be iterated twice.",
            value=self._data.kind,
            next_step="Look at its source; give data that begins anew in each epoch.",
        )


def as_tensors(arrays: Any) -> Any:
    """Return nested arrays, staged or not, as tensors."""
    return current().map_structure(to_tensor, arrays)


def leading_size(value: Any) -> int:
    """Return the number of samples of a batch: the first dim of its first array, or 1."""
    for leaf in current().flatten(value):
        shape = getattr(leaf, "shape", None)
        if shape:
            return int(shape[0])
    return 1


def as_float(array: Any) -> Array:
    """Return an array as Keras would train on it: numbers with a fraction in its own precision."""
    values: Array = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    return values.astype(current().floatx(), copy=False) if values.dtype.kind == "f" else values


def steps_of(data: Any, world: int) -> int | None:
    """Return the steps of one worker in an epoch, where that is known."""
    if isinstance(data, Arrays):
        return math.ceil(len(data) / (data.batch_size * world))
    return math.ceil(data.num_batches / world) if isinstance(data, BatchList) else None
