"""Timed intervals of one rank's step, and its collectives, as the record packs them.

Both are rows of little-endian int64. Times are nanoseconds of the writer's monotonic clock, counted from the
step's begin, which the event gives as wall-clock time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple


class SpanKind(IntEnum):
    """What a span times. `value` of a span is what the comment says, or 0."""

    DATA_WAIT = 1  # value: batches that were ready in the prefetch queue; -1 where there is no queue
    H2D = 2
    FORWARD = 3  # from the batch to `step`: the model, the loss, whatever the script does there
    BACKWARD = 4
    COMMUNICATION = 5  # waiting for a collective, with nothing to compute meanwhile
    OPTIMIZER = 6
    CHECKPOINT = 7  # value: the step that is saved
    EVALUATION = 8
    GC = 9  # value: the generation
    HOST = 10  # the script between `step` and the next batch


class CollectiveKind(IntEnum):
    """What a collective does."""

    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SEND = 7
    RECEIVE = 8


class Span(NamedTuple):
    """One timed interval; spans of the same lane may lie inside one another."""

    kind: int
    start_ns: int
    duration_ns: int
    value: int = 0


class Collective(NamedTuple):
    """One collective as this rank saw it.

    `ready_ns` is when this rank had its part, `start_ns` when the transport took it up, as far as that can be
    seen from outside (not before the collective before it in the group was over), `end_ns` when it was done.
    It is the same collective on all ranks that have the same `group` and `sequence` in one attempt.
    """

    kind: int
    group: int  # 0: gradients; 1: the small sums of a step on the host
    sequence: int  # counts the collectives of the group in this attempt
    num_bytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


_SPAN: Final = struct.Struct("<4q")
_COLLECTIVE: Final = struct.Struct("<7q")


def pack_spans(spans: Iterable[Span]) -> bytes:
    """Return the rows of a `Spans` event."""
    return b"".join(_SPAN.pack(*span) for span in spans)


def unpack_spans(packed: bytes) -> Iterator[Span]:
    """Yield the spans of a `Spans` event; half a row at the end is left out."""
    return (Span(*row) for row in _SPAN.iter_unpack(packed[: len(packed) // _SPAN.size * _SPAN.size]))


def pack_collectives(collectives: Iterable[Collective]) -> bytes:
    """Return the rows of a `Collectives` event."""
    return b"".join(_COLLECTIVE.pack(*each) for each in collectives)


def unpack_collectives(packed: bytes) -> Iterator[Collective]:
    """Yield the collectives of a `Collectives` event; half a row at the end is left out."""
    whole = packed[: len(packed) // _COLLECTIVE.size * _COLLECTIVE.size]
    return (Collective(*row) for row in _COLLECTIVE.iter_unpack(whole))
