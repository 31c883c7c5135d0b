"""Timed intervals of one rank's step, and its collectives, as the record packs them.

Both are rows of whole numbers, one after the other, which msgpack keeps short (a span takes about 8 bytes). Times
are of the writer's monotonic clock, counted from the step's begin, which the event gives as wall-clock time;
here they are nanoseconds, on disk microseconds. Ends are rounded and not durations, so neighbours stay neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


_SPAN_FIELDS: Final = 4
_COLLECTIVE_FIELDS: Final = 7


def pack_spans(spans: Iterable[Span]) -> tuple[int, ...]:
    """Return the rows of a `Spans` event."""
    flat: list[int] = []
    for kind, start_ns, duration_ns, value in spans:
        start = start_ns // 1000
        flat += (kind, start, (start_ns + duration_ns) // 1000 - start, value)
    return tuple(flat)


def unpack_spans(rows: Sequence[int]) -> Iterator[Span]:
    """Yield the spans of a `Spans` event; half a row at the end is left out."""
    for at in range(0, len(rows) - _SPAN_FIELDS + 1, _SPAN_FIELDS):
        kind, start, duration, value = rows[at : at + _SPAN_FIELDS]
        yield Span(kind, start * 1000, duration * 1000, value)


def pack_collectives(collectives: Iterable[Collective]) -> tuple[int, ...]:
    """Return the rows of a `Collectives` event."""
    flat: list[int] = []
    for each in collectives:
        flat += each[:4]
        flat += (time_ns // 1000 for time_ns in each[4:])
    return tuple(flat)


def unpack_collectives(rows: Sequence[int]) -> Iterator[Collective]:
    """Yield the collectives of a `Collectives` event; half a row at the end is left out."""
    for at in range(0, len(rows) - _COLLECTIVE_FIELDS + 1, _COLLECTIVE_FIELDS):
        kind, group, sequence, num_bytes, *times = rows[at : at + _COLLECTIVE_FIELDS]
        yield Collective(kind, group, sequence, num_bytes, *(time * 1000 for time in times))
