from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gscalar.frameworks.keras.ahead import NO_QUEUE, Request, read_ahead, read_in_turn, requests_of
from gscalar.runtime.cursor import Cursor, MicroBatch, Order


@pytest.fixture
def order() -> Order:
    """Three batches an epoch."""
    return Order(size=12, batch_size=4, world=1, rank=0, seed=1, shuffle=False)


@pytest.fixture
def requests(order: Order) -> Iterator[Request]:
    return requests_of(order.steps(Cursor(), accumulate=2))


class Reader:
    """Notes which batches it was asked for, and lets others wait until it was."""

    def __init__(self) -> None:
        self.asked: list[Cursor] = []
        self.threads: set[threading.Thread] = set()
        self._changed = threading.Condition()

    def __call__(self, micro: MicroBatch) -> tuple[int, ...]:
        with self._changed:
            self.asked.append(micro.after)
            self.threads.add(threading.current_thread())
            self._changed.notify_all()
        return micro.indices

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.asked) >= count, timeout=30)


def test_micro_batches_come_one_by_one_with_their_step(requests: Iterator[Request]) -> None:
    sizes = [len(next(requests).step) for _ in range(6)]
    assert sizes == [2, 2, 1, 2, 2, 1], "an epoch of three, two at a time"


@pytest.mark.parametrize("read", [read_ahead, read_in_turn])
def test_batches_come_in_the_order_asked_for_each_with_its_own_place(order: Order, read: object) -> None:
    taken = read(requests_of(order.steps(Cursor(), 1)), Reader())  # type: ignore[operator]  # both functions
    got = [next(taken) for _ in range(7)]
    taken.close()
    want = [request.micro for request, _ in zip(requests_of(order.steps(Cursor(), 1)), range(7), strict=False)]
    assert [request.micro for request, _, _ in got] == want
    assert [value for _, value, _ in got] == [micro.indices for micro in want]


def test_one_batch_is_read_ahead_in_another_thread_and_none_over_the_end_of_an_epoch(
    requests: Iterator[Request],
) -> None:
    reader = Reader()
    taken = read_ahead(requests, reader)
    for handed_out, read_by_then in ((1, 2), (2, 3), (3, 3), (4, 5), (5, 6), (6, 6)):
        next(taken)
        assert reader.wait_for(read_by_then)
        assert len(reader.asked) == read_by_then, f"with {handed_out} handed out"
    taken.close()
    assert reader.asked == [Cursor(0, 4, 1), Cursor(0, 8, 2), Cursor(1, 0, 3)] + [
        Cursor(1, 4, 4), Cursor(1, 8, 5), Cursor(2, 0, 6)
    ]  # fmt: skip
    assert threading.current_thread() not in reader.threads


def test_the_thread_ends_when_nobody_asks_any_more(requests: Iterator[Request]) -> None:
    reader = Reader()
    taken = read_ahead(requests, reader)
    next(taken)
    assert any(thread.is_alive() for thread in reader.threads)
    taken.close()
    assert not any(thread.is_alive() for thread in reader.threads)


def test_an_error_while_reading_ahead_comes_with_its_batch(requests: Iterator[Request]) -> None:
    def read(micro: MicroBatch) -> int:
        if micro.begin == 4:
            raise IndexError("sample 4 is missing")
        return micro.begin

    taken = read_ahead(requests, read)
    assert next(taken)[1] == 0
    with pytest.raises(IndexError, match="sample 4 is missing"):
        next(taken)


def test_where_nothing_is_read_ahead_there_is_no_queue(requests: Iterator[Request]) -> None:
    reader = Reader()
    taken = read_in_turn(requests, reader)
    for count in (1, 2):
        _, _, num_ready = next(taken)
        assert (num_ready, len(reader.asked)) == (NO_QUEUE, count)
