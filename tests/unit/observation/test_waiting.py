"""Waiting for the last rank against moving bytes. Times are small whole numbers of nanoseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.observation.waiting import Interval, Met, RankTrace, merge, overlap, split_exposed

A, B = (0, 1), (0, 2)


def trace(exposed: list[Interval], *met: tuple[tuple[int, int], int, int]) -> RankTrace:
    return RankTrace(tuple(exposed), tuple(Met(*each) for each in met))


# sentence: (ranks, (wait, transfer))
CASES: dict[str, tuple[dict[int, RankTrace], tuple[int, int] | None]] = {
    # Rank 0 is ready at 10, rank 1 at 30, both are done at 40: rank 0 waits 20, and both move bytes for 10.
    "the ready one waits for the late one": (
        {0: trace([(10, 40)], (A, 10, 40)), 1: trace([(30, 40)], (A, 30, 40))},
        (20, 20),
    ),
    "all are ready at once": (
        {0: trace([(10, 40)], (A, 10, 40)), 1: trace([(10, 40)], (A, 10, 40))},
        (0, 60),
    ),
    "a wait behind the backward costs nothing": (
        {0: trace([(35, 40)], (A, 10, 40)), 1: trace([(30, 40)], (A, 30, 40))},
        (0, 15),
    ),
    "only the exposed part of a wait counts": (
        {0: trace([(25, 40)], (A, 10, 40)), 1: trace([(30, 40)], (A, 30, 40))},
        (5, 20),
    ),
    # Rank 0 waits in [10, 30] for A and in [20, 35] for B: 25 in all.
    "collectives that overlap are not counted twice": (
        {
            0: trace([(10, 50)], (A, 10, 40), (B, 20, 50)),
            1: trace([(35, 50)], (A, 30, 40), (B, 35, 50)),
        },
        (25, 30),
    ),
    "a rank that was done before the last was ready (a broadcast's sender)": (
        {0: trace([(10, 15)], (A, 10, 15)), 1: trace([(30, 40)], (A, 30, 40))},
        (5, 10),
    ),
    "no rank is known but one": ({0: trace([(10, 40)], (A, 10, 40))}, None),
    "ranks that met in nothing": (
        {0: trace([(10, 40)], (A, 10, 40)), 1: trace([(10, 40)], (B, 10, 40))},
        None,
    ),
    "one more collective of one rank alone is transfer": (
        {0: trace([(10, 20), (50, 60)], (A, 10, 20), (B, 50, 60)), 1: trace([], (A, 15, 20))},
        (5, 15),
    ),
    "nothing is exposed": ({0: trace([], (A, 10, 40)), 1: trace([], (A, 30, 40))}, (0, 0)),
    "three ranks wait for the last": (
        {rank: trace([(ready, 100)], (A, ready, 100)) for rank, ready in enumerate((10, 50, 90))},
        (80 + 40, 10 + 10 + 10),
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_exposed_communication_is_split(sentence: str) -> None:
    ranks, want = CASES[sentence]
    found = split_exposed(ranks)
    assert ((found.wait_ns, found.transfer_ns) if found else None) == want


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def moments(intervals: list[Interval]) -> set[int]:
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_intervals_are_sets_of_moments(first: list[Interval], second: list[Interval]) -> None:
    assert moments(merge(first)) == moments(first)
    assert overlap(merge(first), merge(second)) == len(moments(first) & moments(second))
