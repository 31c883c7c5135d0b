"""The global sample order: a counter into a counter-based permutation, so that no rank has state.

Position p of epoch e is sample `Permutation(size, seed, e).at(p)`. A cursor is how many samples of
an epoch are consumed by all ranks together; the rest of the training's data follows from it, for
any number of ranks. Global micro-batch k of an epoch is the positions from k * G on. G is the world
times the batch size where the run begins, and stays when the run goes on in another world: so
neither a sample is skipped or repeated, nor do steps and their gradients get another meaning.

Each rank's part of a global micro-batch differs from another's by at most one sample. A part larger
than the batch size, in a world that shrank, is cut into pieces: all ranks take their first pieces
together, then their second ones, each in a forward of its own, so that no worker needs more memory
than before. What all ranks take in one piece is a contiguous range, in which each has a
contiguous slice.

The permutation is a generalised Feistel network on Z_a x Z_b with a * b just above the size, and
cycle walking for the fewer than a values beyond it (J. Black, P. Rogaway, "Ciphers with Arbitrary
Finite Domains", CT-RSA 2002, methods 2 and 3). The round function is the finaliser of SplitMix64
(D. Stafford's variant 13; G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014) of a half mixed with a round key; the keys are SHAKE-128 of size, seed and
epoch. It is made for good shuffles, not for secrets. Sizes up to 2**40.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gscalar.base.canonical import digest
from gscalar.base.errors import TrainingError
from gscalar.model.shares import Share

MAX_SIZE: Final = 2**40
# Four rounds are the least for a pseudo-random permutation, and twice that is cheap. Where the halves
# are only a few bits wide, so few rounds do not reach every order equally often (size 6: chi-square of
# all 720 orders 134 standard deviations off after 8 rounds, none after 24).
_NUM_ROUNDS: Final = 8
_NUM_ROUNDS_SMALL: Final = 24
_SMALL: Final = 4096
# Positions permuted at once while iterating: pays NumPy's cost per call once for many batches.
_WINDOW: Final = 2048

_SamplesAt = Callable[[NDArray[np.int64]], NDArray[np.int64]]
_S27, _S30, _S33 = np.uint64(27), np.uint64(30), np.uint64(33)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of range(size) that is a pure function of size, seed and epoch."""

    size: int
    seed: int
    epoch: int
    _keys: tuple[np.uint64, ...] = field(init=False, repr=False, compare=False)
    _widths: tuple[np.uint64, np.uint64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert 1 <= self.size <= MAX_SIZE, self.size
        low = math.isqrt(self.size - 1) + 1
        high = -(-self.size // low)
        num_rounds = _NUM_ROUNDS_SMALL if self.size <= _SMALL else _NUM_ROUNDS
        keys = _hash(b"order", self.size, self.seed, self.epoch, num_bytes=8 * num_rounds)
        object.__setattr__(self, "_widths", (np.uint64(low), np.uint64(high)))
        object.__setattr__(self, "_keys", tuple(np.frombuffer(keys, dtype="<u8").astype(np.uint64)))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at these positions, each in range(size), in the same shape, int64."""
        values = self._network(np.asarray(positions).astype(np.uint64))
        # A value beyond the size is sent through again: its cycle comes back into the range.
        outside = values >= self.size
        while outside.any():
            values[outside] = self._network(values[outside])
            outside = values >= self.size
        return values.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        width, other_width = self._widths
        other, half = np.divmod(values, width)
        for key in self._keys:
            mixed = other ^ key
            mixed ^= mixed >> _S30
            mixed *= _M1
            mixed ^= mixed >> _S27
            mixed *= _M2
            # The last step of the finaliser, x ^= x >> 31, does not touch the top 31 bits taken here.
            mixed >>= _S33
            mixed += half
            mixed %= width
            half, other = other, mixed
            width, other_width = other_width, width
        # An even number of rounds leaves the halves in their first places.
        return half + other * width


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the data of a whole training, the same on all ranks."""

    epoch: int = 0
    sample: int = 0  # samples (or lists, or batches of a stream) of this epoch consumed by all ranks together
    batches: int = 0  # global micro-batches since the start of training

    def to_plain(self) -> dict[str, int]:
        """Return the cursor for a checkpoint."""
        return {"epoch": self.epoch, "sample": self.sample, "batches": self.batches}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Cursor:
        """Return the cursor that `to_plain` wrote."""
        return cls(epoch=int(plain["epoch"]), sample=int(plain["sample"]), batches=int(plain["batches"]))


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What a data object's global order follows from. Kept in the run's state from its first use on."""

    size: int  # positions of an epoch (of the first one, where a sampler decides); 0 for a stream
    seed: int
    shuffle: bool
    listed: bool
    global_batch: int  # positions of a full micro-batch of all ranks
    batch_size: int  # the most positions that one worker takes in one forward
    world: int  # ranks that it is dealt to

    def to_plain(self) -> dict[str, Any]:
        """Return the facts for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> OrderFacts:
        """Return the facts that `to_plain` wrote."""
        return cls(**plain)


# A tuple and not a dataclass: cheaper to make, and one is made for every forward.
class MicroBatch(NamedTuple):
    """What one rank takes in one forward: its part of a global micro-batch, or a piece of that."""

    indices: tuple[int, ...]  # never empty: a rank without a sample has one as padding
    num_samples: int  # samples that count; 0 for padding
    num_global: int  # samples that count, over all ranks
    epoch: int
    begin: int  # position of the first sample in the epoch
    after: Cursor  # what all ranks have consumed with it
    closes: bool  # whether it is the last piece of its global micro-batch
    ends_epoch: bool
    draw: int  # seed, below 2**63, of the random numbers of these samples on this rank

    @property
    def is_padding(self) -> bool:
        """Whether the sample is there only so that the rank takes part in the step (weight 0)."""
        return self.num_samples == 0

    def shares(self, data: int) -> tuple[Share, ...]:
        """Return the positions that count, as the record names them; none for padding."""
        return () if self.is_padding else (Share(data, self.epoch, self.begin, self.begin + self.num_samples),)


class Piece(NamedTuple):
    """What all ranks take in one forward, and this rank's part; counted from the global micro-batch's begin."""

    begin: int
    end: int
    own_begin: int
    own_end: int  # equal to `own_begin` for a rank that only takes part


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order in which all ranks together see the samples, and one rank's part of it.

    `batch_size` is the most that a worker takes in one forward. `fixed_batch` is the global batch that
    the run began with; without it the run begins here, with `world * batch_size`. `listed`, where
    given, returns the indices of an epoch in order (a sampler of the user, materialised); it must be
    a pure function of the epoch, the lists may differ in length, `size` is the first one's, and
    `shuffle` is ignored.

    Raises:
        TrainingError: `data-too-small`, when no step could be filled.
    """

    size: int
    batch_size: int
    world: int = 1
    rank: int = 0
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    listed: Callable[[int], Sequence[int]] | None = None
    fixed_batch: int | None = None

    def __post_init__(self) -> None:
        assert self.batch_size >= 1, self.batch_size
        assert self.fixed_batch is None or self.fixed_batch >= 1, self.fixed_batch
        assert 0 <= self.rank < self.world, (self.rank, self.world)
        self._check(self.size)

    @property
    def global_batch(self) -> int:
        """Samples of a full micro-batch of all ranks."""
        return self.fixed_batch or self.world * self.batch_size

    @property
    def batches_per_epoch(self) -> int:
        """Global micro-batches of a whole epoch."""
        return self.batches_left(Cursor())

    @property
    def facts(self) -> OrderFacts:
        """What the order follows from."""
        listed = self.listed is not None
        shuffle = self.shuffle and not listed
        return OrderFacts(self.size, self.seed, shuffle, listed, self.global_batch, self.batch_size, self.world)

    def batches_left(self, cursor: Cursor) -> int:
        """Return how many global micro-batches the cursor's epoch still has, one that is begun included."""
        return max(0, -(-self._end(self.size) // self.global_batch) - cursor.sample // self.global_batch)

    def steps(self, cursor: Cursor, accumulate: int) -> Iterator[list[MicroBatch]]:
        """Yield this rank's micro-batches by optimizer step: `accumulate` global ones, fewer at an epoch's end."""
        step: list[MicroBatch] = []
        closed = 0
        for micro in self.micro_batches(cursor):
            step.append(micro)
            closed += micro.closes
            if closed == accumulate or micro.ends_epoch:
                yield step
                step, closed = [], 0

    def micro_batches(self, cursor: Cursor) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches from the cursor on, epoch after epoch without end.

        A cursor written under another world is continued from its sample: a global micro-batch that is
        begun is finished first.
        """
        epoch, start, batches = cursor.epoch, cursor.sample, cursor.batches
        while True:
            size, samples_at = self._epoch(epoch)
            end = self._end(size)
            for first, piece, indices in self._pieces(start, end, samples_at):
                sample = first + piece.end
                ends = sample >= end
                closes = ends or sample % self.global_batch == 0
                draw = self._draw(epoch, batches, (first + piece.begin) % self.global_batch)
                batches += closes
                yield MicroBatch(
                    indices=indices,
                    num_samples=piece.own_end - piece.own_begin,
                    num_global=piece.end - piece.begin,
                    epoch=epoch,
                    begin=first + piece.own_begin,
                    after=Cursor(epoch + 1, 0, batches) if ends else Cursor(epoch, sample, batches),
                    closes=closes,
                    ends_epoch=ends,
                    draw=draw,
                )
            epoch, start = epoch + 1, 0

    def _end(self, size: int) -> int:
        """Return the position after the last one that is trained on."""
        return size - size % self.global_batch if self.drop_last else size

    def _epoch(self, epoch: int) -> tuple[int, _SamplesAt]:
        """Return the size of an epoch and the function from its positions to samples."""
        if self.listed is not None:
            listed = np.asarray(self.listed(epoch), dtype=np.int64)
            self._check(len(listed))
            return len(listed), lambda positions: listed[positions]
        if self.shuffle:
            return self.size, Permutation(self.size, self.seed, epoch).at
        return self.size, lambda positions: positions

    def _pieces(self, start: int, end: int, samples_at: _SamplesAt) -> Iterator[tuple[int, Piece, tuple[int, ...]]]:
        """Yield (where its micro-batch starts, piece, indices) for the positions from start to end."""
        stride = self.global_batch
        head = min(-start % stride, end - start)
        if head > 0:
            yield from self._rows(start, head, 1, samples_at)
            start += head
        while end - start >= stride:
            num_rows = min((end - start) // stride, max(1, _WINDOW * self.world // stride))
            yield from self._rows(start, stride, num_rows, samples_at)
            start += num_rows * stride
        if start < end:
            yield from self._rows(start, end - start, 1, samples_at)

    def _rows(
        self, start: int, count: int, num_rows: int, samples_at: _SamplesAt
    ) -> Iterator[tuple[int, Piece, tuple[int, ...]]]:
        """Yield the same for `num_rows` micro-batches of `count` positions each."""
        pieces = pieces_of(count, batch_size=self.batch_size, world=self.world, rank=self.rank)
        # A rank without a sample repeats the last one, and gives it no weight.
        own = [range(p.own_begin, p.own_end) if p.own_begin < p.own_end else range(p.end - 1, p.end) for p in pieces]
        offsets = np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in own])
        firsts = start + count * np.arange(num_rows, dtype=np.int64)
        for first, row in zip(firsts.tolist(), samples_at(firsts[:, None] + offsets).tolist(), strict=True):
            taken = 0
            for piece, part in zip(pieces, own, strict=True):
                yield first, piece, tuple(row[taken : taken + len(part)])
                taken += len(part)

    def _draw(self, epoch: int, batches: int, offset: int) -> int:
        """Return the seed of what is drawn for a piece; `offset` is where it begins in its global micro-batch."""
        place = (epoch, batches, self.rank, offset) if offset else (epoch, batches, self.rank)
        return int.from_bytes(_hash(b"draw", self.seed, *place, num_bytes=8), "little") >> 1

    def _check(self, size: int) -> None:
        if size < self.world:
            raise TrainingError(
                code="data-too-small",
                what=f"The data set has fewer samples than there are workers ({self.world}).",
                value=size,
                next_step=f"Run with `workers: {max(1, size)}` or fewer, or give more data."
                if size
                else "Look at the data set's path and filters: it is empty.",
            )
        if self.drop_last and size < self.global_batch:
            raise TrainingError(
                code="data-too-small",
                what=f"The data set does not fill one step of {self.global_batch} samples over all workers, "
                "and the loader drops what is left (drop_last).",
                value=size,
                next_step="Set drop_last=False in the loader, or lower its batch size or the workers.",
            )


def shard_of(count: int, world: int, rank: int) -> tuple[int, int]:
    """Return the start and stop of a rank's contiguous share of `count` items; shares differ by at most 1."""
    base, extra = divmod(count, world)
    start = rank * base + min(rank, extra)
    return start, start + base + (1 if rank < extra else 0)


def pieces_of(count: int, *, batch_size: int, world: int, rank: int) -> list[Piece]:
    """Return the pieces in which all ranks take `count` positions, none larger than `batch_size` on any rank.

    A rank's pieces sum up to the size of its `shard_of` share; in one piece that is its share itself.
    """
    base, num_larger = divmod(count, world)
    num_pieces = -(-(base + (num_larger > 0)) // batch_size)
    pieces, begin = [], 0
    for index in range(num_pieces):
        larger, smaller = (_length(shard_of(share, num_pieces, index)) for share in (base + 1, base))
        own_begin = begin + min(rank, num_larger) * larger + max(0, rank - num_larger) * smaller
        end = begin + num_larger * larger + (world - num_larger) * smaller
        pieces.append(Piece(begin, end, own_begin, own_begin + (larger if rank < num_larger else smaller)))
        begin = end
    return pieces


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def eval_shard(size: int, batch_size: int, world: int, rank: int) -> Iterator[tuple[int, ...]]:
    """Yield this rank's batches of an evaluation: over all ranks, every sample exactly once, none as padding.

    Batches are cut as one process would cut them and dealt in turn, so that what is in a batch
    does not depend on the world. A rank may get one batch less than another, and so none at all.
    """
    for start in range(rank * batch_size, size, world * batch_size):
        yield tuple(range(start, min(start + batch_size, size)))


def order_digest(order: Order, cursor: Cursor) -> str:
    """Return the SHA-256 that names the sequence of samples consumed up to the cursor.

    The sequence is a pure function of what is hashed, so that equal digests mean equal data in
    equal order, whatever the world. Of a listed order the last epoch's list stands for all.
    """
    facts: dict[str, Any] = {"size": order.size, "epoch": cursor.epoch, "sample": cursor.sample}
    if order.listed is not None:
        last = cursor.epoch if cursor.sample else max(0, cursor.epoch - 1)
        consumed = cursor.sample or None
        indices = np.asarray(order.listed(last), dtype="<i8")[:consumed]
        facts["listed"] = hashlib.sha256(indices.tobytes()).hexdigest() if cursor.epoch or cursor.sample else ""
    else:
        facts |= {"shuffle": order.shuffle, "seed": order.seed if order.shuffle else 0}
    return digest(facts)


def _hash(purpose: bytes, *numbers: int, num_bytes: int) -> bytes:
    """Return bytes that depend on every number and on the purpose."""
    text = purpose + b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return hashlib.shake_128(text).digest(num_bytes)
