"""The data objects of a run: one feed each, and how far a loop goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gscalar.model.events import Note, SampleOrder
from gscalar.runtime.cursor import Cursor, OrderFacts
from gscalar.runtime.feeding import Extent, Feeds, explain_change
from gscalar.runtime.launch import Launch
from gscalar.runtime.state import RunState

FACTS = OrderFacts(size=40, seed=3, shuffle=True, listed=False, global_batch=16, batch_size=8, world=2)


class Counting:
    """A framework that only makes feeds, of a given number of batches."""

    order = FACTS

    def __init__(self, batches_per_epoch: int | None = 10) -> None:
        self.batches_per_epoch = batches_per_epoch
        self.asked: list[tuple[Any, int, bool]] = []
        self.fixed: list[tuple[int, int | None]] = []

    def batches_left(self, cursor: Cursor) -> int | None:
        return None if self.batches_per_epoch is None else self.batches_per_epoch - cursor.sample

    def feed(
        self, data: Any, launch: Launch, seed: int, *, sharded: bool, number: int, global_batch: int | None
    ) -> Counting:
        self.asked.append((data, seed, sharded))
        self.fixed.append((number, global_batch))
        return self


def make_feeds(accumulate: int = 1, rank: int = 0) -> Feeds:
    return Feeds(Launch(launcher="alone", identity="test", rank=rank, world=2), seed=3, accumulate=accumulate)


def test_a_data_object_has_one_feed_and_one_name_by_the_order_of_first_use() -> None:
    framework, feeds = Counting(), make_feeds()
    train, val = [1], [1]
    assert feeds.first() is None
    first = feeds.of(train, framework, False, {})  # type: ignore[arg-type]
    second = feeds.of(val, framework, True, {})  # type: ignore[arg-type]
    assert feeds.of(train, framework, False, {}) is first  # type: ignore[arg-type]
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
    fed = feeds.of([1], Counting(per_epoch), False, {})  # type: ignore[arg-type]
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
    fed = feeds.of([1], Counting(10), False, {})  # type: ignore[arg-type]
    assert feeds.extend(fed, epochs, None, done=done, cursor=cursor).total_steps == want


# ---- what is told of the order ---------------------------------------------------------------------


def test_the_global_batch_that_the_run_began_with_reaches_the_feed_by_name() -> None:
    framework, feeds = Counting(), make_feeds()
    for data in ([1], [2], [3]):
        feeds.of(data, framework, False, {"data1": FACTS})  # type: ignore[arg-type]
    assert framework.fixed == [(0, None), (1, 16), (2, None)]


def test_an_order_is_told_once_an_attempt_and_kept() -> None:
    feeds, state = make_feeds(), RunState()
    fed = feeds.of([1], Counting(), False, state.orders)  # type: ignore[arg-type]
    want = SampleOrder(time_ns=5, data=0, size=40, seed=3, shuffle=True, listed=False, global_batch=16)
    assert feeds.announce(fed, state, 5) == [want]
    assert feeds.announce(fed, state, 6) == []
    assert state.orders == {"data0": FACTS}


@pytest.mark.parametrize(("rank", "want"), [(0, ["world-changed"]), (1, [])])
def test_a_change_is_said_by_rank_0_alone_and_only_once(rank: int, want: list[str]) -> None:
    state = RunState()
    state.orders["data0"] = replace(FACTS, world=4)
    for codes in (want, []):  # the second attempt finds what the first one kept
        feeds = make_feeds(rank=rank)
        fed = feeds.of([1], Counting(), False, state.orders)  # type: ignore[arg-type]
        told = feeds.announce(fed, state, 5)[1:]
        assert [event.code for event in told if isinstance(event, Note)] == codes


CHANGES: dict[str, tuple[dict[str, Any], int, list[str], str]] = {
    "nothing": ({}, 16, [], ""),
    "three workers share unevenly": ({"world": 3}, 16, ["world-changed"], "16 samples: 6 or 5 a worker"),
    "one worker takes all": ({"world": 1}, 16, ["world-changed"], "16 samples: 16 a worker"),
    "some get none": ({"world": 20}, 16, ["world-changed"], "1 or 0 a worker"),
    "a script that divides its batch by the world": ({"world": 4, "batch_size": 4}, 16, ["world-changed"], ""),
    "a smaller batch for less memory": ({"batch_size": 2}, 0, ["batch-size-changed"], "at most 2"),
    "both, and they do not fit": ({"world": 4, "batch_size": 8}, 0, ["world-changed"], "4 a worker"),
    "another batch in another world": (
        {"world": 4, "batch_size": 5}, 0, ["world-changed", "batch-size-changed"], "was 8",
    ),
    "more data in the middle of an epoch": ({"size": 50}, 16, ["order-changed"], "size 40 to 50"),
    "more data between two epochs": ({"size": 50}, 0, [], ""),
    "another seed in the middle of an epoch": ({"seed": 4}, 16, ["order-changed"], "seed 3 to 4"),
    "no shuffle any more": ({"shuffle": False}, 16, ["order-changed"], "another one"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_what_differs_from_the_attempt_before_is_said(case: str) -> None:
    changes, sample, want, text = CHANGES[case]
    notes = explain_change("data0", FACTS, replace(FACTS, **changes), Cursor(0, sample, 1))
    assert [code for _, code, _ in notes] == want
    assert any(text in said for _, _, said in notes) or not notes
    assert [level for level, code, _ in notes if code == "world-changed"] == ["info"] * want.count("world-changed")


def test_a_seed_that_decides_nothing_is_no_change() -> None:
    straight = replace(FACTS, shuffle=False)
    assert explain_change("data0", straight, replace(straight, seed=9), Cursor(0, 16, 1)) == []
