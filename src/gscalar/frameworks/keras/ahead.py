"""One batch is read ahead, in a thread of its own, while the training computes on the one before.

Picking the rows of a batch and making tensors of them is most of a millisecond of copying. Both are done ahead: what
one core has just written costs another one about as much to copy as picking it did.

What is read ahead is not consumed: a batch brings its own place in the order with it, and counts once it is handed
out. Nothing is read over the end of an epoch, so a fit that ends there has read nothing in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from gscalar.runtime.cursor import MicroBatch

Value = TypeVar("Value")
NO_QUEUE = -1


class Request(NamedTuple):
    """A micro-batch that is asked for, with the optimizer step that it belongs to."""

    micro: MicroBatch
    step: list[MicroBatch]


def requests_of(steps: Iterator[list[MicroBatch]]) -> Iterator[Request]:
    """Yield the micro-batches of steps one by one."""
    return (Request(micro, step) for step in steps for micro in step)


def read_in_turn(
    requests: Iterator[Request], read: Callable[[MicroBatch], Value]
) -> Generator[tuple[Request, Value, int], None, None]:
    """Yield each request with what was read when it was asked for."""
    for request in requests:
        yield request, read(request.micro), NO_QUEUE


def read_ahead(
    requests: Iterator[Request], read: Callable[[MicroBatch], Value]
) -> Generator[tuple[Request, Value, int], None, None]:
    """Yield each request with what was read, and whether it lay ready (1) or had to be waited for (0)."""
    with ThreadPoolExecutor(1, "gscalar-batch") as reader:
        following: tuple[Request, Future[Value]] | None = None
        while True:
            if following is None:
                request = next(requests)
                reading = reader.submit(read, request.micro)
            else:
                request, reading = following
            num_ready = int(reading.done())
            value = reading.result()
            following = None
            if not request.micro.ends_epoch:
                upcoming = next(requests)
                following = upcoming, reader.submit(read, upcoming.micro)
            yield request, value, num_ready
