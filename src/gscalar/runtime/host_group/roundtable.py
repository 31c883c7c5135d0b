"""What rank 0 answers to the small messages of all ranks: messages in, messages out, no socket and no clock.

Ranks number their calls; the same number is the same call, since all make the same calls in the same order. A sum
is answered when every rank has given its part, and values are added in the order of ranks. A broadcast needs
nobody's part but rank 0's, a gather is answered to rank 0 alone. Where ranks make different calls under one number,
or one can never give its part, everybody is told once, and the table is of no more use.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

import msgspec

from gscalar.base.errors import Retryable, ScalarError, TrainingError

Why = Literal["ended", "left", "still", "differs"]


class Kind(IntEnum):
    """What a message is."""

    SUM = 1
    BROADCAST = 2
    GATHER = 3
    ASK = 4  # whom does this call wait for?
    BYE = 5  # the sender leaves; it lacks in what is not answered yet
    FAILED = 6
    STOP = 7  # the sender was told to stop, and asks rank 0 to stop all


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `number` is the call that it belongs to (0 for none)."""

    kind: Kind
    number: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the group is of no more use, and the rank that it comes from."""

    rank: int
    why: Why

    def packed(self) -> bytes:
        """Return it as a payload."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpacked(cls, payload: bytes) -> Failure:
        """Return what `packed` packed."""
        return msgspec.msgpack.decode(payload, type=cls)

    def error(self, rank: int) -> ScalarError:
        """Return the error that `rank` raises."""
        if self.why == "differs":
            return TrainingError(
                code="ranks-differ",
                what=f"Rank {self.rank} makes another call than other ranks, or has arrays of other shapes or types.",
                next_step="Let every worker build the same model and make the same calls in the same order.",
            )
        return Retryable(
            code="peer-lost",
            what=_TEXTS[self.why].format(rank=rank, peer=self.rank),
            next_step=f"See the output of rank {self.rank}: gscalar logs RUN --rank {self.rank}.",
        )


_TEXTS: Final = {
    "ended": "Rank {rank} lost rank {peer}, whose process has ended or can no longer be reached.",
    "left": "Rank {rank} waits for rank {peer}, which has left the group.",
    "still": "Rank {rank} waited too long for rank {peer}, which stands still or is in another call.",
}

Deliveries = list[tuple[int, Message]]


@dataclass(slots=True)
class _Call:
    kind: Kind
    parts: dict[int, bytes] = field(default_factory=dict)


class Roundtable:
    """The calls of a group that are not answered yet."""

    def __init__(self, world: int) -> None:
        self._ranks = range(world)
        self._calls: dict[int, _Call] = {}
        self._left: set[int] = set()
        self._last_answered = 0
        self._failed = False

    def take(self, rank: int, message: Message) -> Deliveries:
        """Return what to tell whom after a message of a rank."""
        if self._failed:
            return []
        match message.kind:
            case Kind.BYE:
                return self._leave(rank)
            case Kind.ASK:
                return self._say_whom(message.number)
            case Kind.FAILED:
                return self.fail(Failure.unpacked(message.payload))
            case Kind.BROADCAST:
                self._last_answered = max(self._last_answered, message.number)
                return [(to, message) for to in self._ranks]
        call = self._calls.setdefault(message.number, _Call(message.kind))
        if call.kind != message.kind:
            return self.fail(Failure(rank, "differs"))
        call.parts[rank] = message.payload
        missing = self._missing(call)
        if not missing:
            return self._answer(message.number, self._calls.pop(message.number))
        gone = sorted(missing & self._left)
        return self.fail(Failure(gone[0], "left")) if gone else []

    def fail(self, failure: Failure) -> Deliveries:
        """Return what to tell everybody."""
        if self._failed:
            return []
        self._failed = True
        return [(to, Message(Kind.FAILED, 0, failure.packed())) for to in self._ranks]

    def _leave(self, rank: int) -> Deliveries:
        self._left.add(rank)
        if rank == 0:
            return [(to, Message(Kind.BYE, 0)) for to in self._ranks if to]
        awaited = any(rank in self._missing(call) for call in self._calls.values())
        return self.fail(Failure(rank, "left")) if awaited else []

    def _answer(self, number: int, call: _Call) -> Deliveries:
        self._last_answered = max(self._last_answered, number)
        in_order = [call.parts[rank] for rank in self._ranks]
        if call.kind is Kind.GATHER:
            return [(0, Message(Kind.GATHER, number, msgspec.msgpack.encode(in_order)))]
        for rank, part in zip(self._ranks, in_order, strict=True):
            if len(part) != len(in_order[0]):
                return self.fail(Failure(rank, "differs"))
        total = Message(Kind.SUM, number, pack(add(call.parts)))
        return [(to, total) for to in self._ranks]

    def _missing(self, call: _Call) -> set[int]:
        return set(self._ranks) - set(call.parts)

    def _say_whom(self, number: int) -> Deliveries:
        """Name whom a call waits for; one that nobody gave a part to is a broadcast of rank 0."""
        call = self._calls.get(number)
        if call is None and number <= self._last_answered:
            return []  # the answer is on its way
        return self.fail(Failure(min(self._missing(call)) if call else 0, "still"))


def add(parts: Mapping[int, bytes]) -> list[float]:
    """Return the sums of packed values, added in the order of ranks."""
    totals: list[float] = []
    for rank in sorted(parts):
        values = unpack(parts[rank])
        totals = totals or [0.0] * len(values)
        for index, value in enumerate(values):
            totals[index] += value
    return totals


def pack(values: list[float]) -> bytes:
    """Return values as float64 in little-endian order."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack(payload: bytes) -> list[float]:
    """Return what `pack` packed."""
    return list(struct.unpack(f"<{len(payload) // 8}d", payload))
