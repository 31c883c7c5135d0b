"""Work in a thread, one after the other."""

from __future__ import annotations

import threading

import pytest

from gscalar.runtime.host_group.lane import Lane


def test_work_is_done_in_order_beside_the_caller() -> None:
    lane, done, may_begin = Lane("test-lane"), [], threading.Event()
    assert lane.is_idle
    waits = [lane.start(lambda: may_begin.wait(60))]
    waits += [lane.start(lambda number=number: not done.append(number)) for number in range(3)]  # type: ignore[misc]
    assert (done, lane.is_idle) == ([], False)
    may_begin.set()
    assert [wait() for wait in reversed(waits)] == [True] * 4
    assert (done, lane.is_idle) == ([0, 1, 2], True)
    lane.close(60)


def test_what_work_raises_reaches_who_waits_and_the_next_work_is_done() -> None:
    lane = Lane("test-lane")
    broken, sound = lane.start(lambda: 1 // 0), lane.start(lambda: 1)
    with pytest.raises(ZeroDivisionError):
        broken()
    assert sound() == 1
    lane.close(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "test-lane"]


def test_a_lane_that_was_never_used_closes() -> None:
    Lane("test-lane").close(60)
