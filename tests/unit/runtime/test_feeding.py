"""The data objects of a run: one feed each, and how far a loop goes."""

from __future__ import annotations

from typing import Any

import pytest

from gscalar.runtime.cursor import Cursor
from gscalar.runtime.feeding import Extent, Feeds
from gscalar.runtime.launch import Launch


class Counting:
    """A framework that only makes feeds, of a given number of batches."""

    def __init__(self, batches_per_epoch: int | None = 10) -> None:
        self.batches_per_epoch = batches_per_epoch
        self.asked: list[tuple[Any, int, bool]] = []

    def batches_left(self, cursor: Cursor) -> int | None:
        return None if self.batches_per_epoch is None else self.batches_per_epoch - cursor.sample

    def feed(self, data: Any, launch: Launch, seed: int, *, sharded: bool) -> Counting:
        self.asked.append((data, seed, sharded))
        return self


def make_feeds(accumulate: int = 1) -> Feeds:
    return Feeds(Launch(launcher="alone", identity="test"), seed=3, accumulate=accumulate)


def test_a_data_object_has_one_feed_and_one_name_by_the_order_of_first_use() -> None:
    framework, feeds = Counting(), make_feeds()
    train, val = [1], [1]
    assert feeds.first() is None
    first = feeds.of(train, framework, False)  # type: ignore[arg-type]
    second = feeds.of(val, framework, True)  # type: ignore[arg-type]
    assert feeds.of(train, framework, False) is first  # type: ignore[arg-type]
    assert (first.name, second.name) == ("data0", "data1")
    assert feeds.first() is first
    assert framework.asked == [(train, 3, False), (val, 3, True)]


LIMITS: dict[str, tuple[int | None, int, list[tuple[int | None, int | None]], Extent]] = {
    "one more epoch, and nobody knows how many follow": (10, 1, [(None, None)], Extent(1, None, 10, False)),
    "the third loop of one epoch each": (10, 1, [(None, None)] * 3, Extent(3, None, 30, False)),
    "several epochs": (10, 1, [(4, None)], Extent(4, None, 40)),
    "an epoch ends its last step early": (10, 3, [(2, None)], Extent(2, None, 8)),
    "steps alone run over any number of epochs": (10, 1, [(None, 25)], Extent(None, 25, 25)),
    "steps and epochs, steps first": (10, 1, [(4, 25)], Extent(4, 25, 25)),
    "steps and epochs, epochs first": (10, 1, [(2, 25)], Extent(2, 25, 20)),
    "a stream of unknown length": (None, 1, [(2, None)], Extent(2, None, None)),
    "a stream with steps": (None, 1, [(2, 7)], Extent(2, 7, 7)),
    "more epochs after some": (10, 1, [(2, None), (3, None)], Extent(5, None, 50)),
}


@pytest.mark.parametrize("case", LIMITS)
def test_how_far_a_loop_goes(case: str) -> None:
    per_epoch, accumulate, loops, want = LIMITS[case]
    feeds = make_feeds(accumulate)
    fed = feeds.of([1], Counting(per_epoch), False)  # type: ignore[arg-type]
    assert [feeds.extend(fed, *loop, done=0, cursor=Cursor()) for loop in loops][-1] == want


# (steps done, cursor, epochs asked) -> the step where the loop ends; 10 micro-batches an epoch, 3 a step
REST: dict[str, tuple[int, Cursor, int, int]] = {
    "a fresh start": (0, Cursor(), 2, 8),
    "in the middle of the first epoch": (2, Cursor(0, 6), 2, 8),
    "the same, with steps done in a larger world": (500, Cursor(0, 6), 2, 506),
    "in the last epoch": (5, Cursor(1, 3), 2, 8),
    "after the last epoch": (8, Cursor(2, 0), 2, 8),
}


@pytest.mark.parametrize("case", REST)
def test_what_is_left_is_counted_from_the_cursor(case: str) -> None:
    done, cursor, epochs, want = REST[case]
    feeds = make_feeds(accumulate=3)
    fed = feeds.of([1], Counting(10), False)  # type: ignore[arg-type]
    assert feeds.extend(fed, epochs, None, done=done, cursor=cursor).total_steps == want
