"""Work done one after the other in a thread of its own, which begins with the first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from gscalar.observation.threads import start_thread

T = TypeVar("T")


class Lane:
    """A queue of work and the thread that does it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._num_started = self._num_done = 0  # written by one thread each

    @property
    def is_idle(self) -> bool:
        """Whether all work is done."""
        return self._num_started == self._num_done

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """Add work, and return a function that waits for what it returns or raises."""
        self._thread = self._thread or start_thread(self._run, self._name)
        future: Future[T] = Future()
        self._num_started += 1

        def do() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the thread's boundary; who waits raises it
                self._num_done += 1
                future.set_exception(error)
            else:
                self._num_done += 1
                future.set_result(result)

        self._queue.put(do)
        return future.result

    def close(self, within_s: float) -> None:
        """End the thread after the work that it has."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(within_s)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work()
            del work  # and with it the result, which is not kept until the next comes
