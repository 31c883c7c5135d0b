"""How many batches a loader's worker processes have ready: a queue that runs empty names who is too slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

NO_QUEUE: Final = -1


def count_ready(source: Any) -> int:
    """Return how many batches the iterator of a DataLoader can give at once; -1 where it has no workers.

    torch has no public name for it. Its multi-process iterator holds what came out of order in
    `_task_info` (a pair once the data is there), and the rest is in `_data_queue`.
    """
    queue, tasks = getattr(source, "_data_queue", None), getattr(source, "_task_info", None)
    if queue is None or tasks is None:
        return NO_QUEUE
    try:
        return int(queue.qsize()) + sum(len(info) == 2 for info in tasks.values())
    except (NotImplementedError, OSError, TypeError):
        return NO_QUEUE


def with_ready(source: Iterator[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each item with the number that was ready when it was asked for."""
    while True:
        ready = count_ready(source)
        try:
            item = next(source)
        except StopIteration:
            return
        yield item, ready
