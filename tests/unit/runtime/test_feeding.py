"""The data objects of a run: one feed each, and how far a loop goes."""

from __future__ import annotations

from typing import Any

import pytest

from gscalar.runtime.feeding import Extent, Feeds
from gscalar.runtime.launch import Launch


class Counting:
    """A framework that only makes feeds, of a given number of batches."""

    def __init__(self, batches_per_epoch: int | None = 10) -> None:
        self.batches_per_epoch = batches_per_epoch
        self.asked: list[tuple[Any, int, bool]] = []

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
    "one more epoch": (10, 1, [(None, None)], Extent(1, None, 10)),
    "the third loop of one epoch each": (10, 1, [(None, None)] * 3, Extent(3, None, 30)),
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
    assert [feeds.extend(fed, *loop) for loop in loops][-1] == want
