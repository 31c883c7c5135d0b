from __future__ import annotations

import numpy as np
import pytest

from gscalar.state.series.blocks import BLOCK, Blocks
from gscalar.state.series.charting import find_knots, find_wide, join_overlapping, lay_edges, move_edges

LAST = 2**63 - 1


@pytest.mark.parametrize(
    ("low", "high", "columns", "want"),
    [
        (0, 9, 5, [0, 2, 4, 6, 8]),
        (0, 9, 3, [0, 3, 6]),
        (5, 5, 4, [5]),
        (0, 2, 10, [0, 1, 2]),
        (-(2**63), LAST, 2, [-(2**63), 0]),
        (
            1_767_323_045_000_000_000,
            1_767_323_045_000_001_999,
            2,
            [1_767_323_045_000_000_000, 1_767_323_045_000_001_000],
        ),
    ],
)
def test_columns_divide_the_window_equally(low: int, high: int, columns: int, want: list[int]) -> None:
    assert lay_edges(low, high, columns).tolist() == want


MOVES = {
    "an edge between stretches stays": ([0, 10, 20], [(0, 9), (10, 19)], [0, 10, 20]),
    "an edge inside a stretch moves behind it": ([0, 10], [(5, 12)], [0, 13]),
    "an edge at a stretch's begin stays": ([0, 10], [(10, 12)], [0, 10]),
    "an edge at a stretch's last point moves": ([0, 10], [(8, 10)], [0, 11]),
    "edges in one stretch become one": ([0, 10, 11, 12, 30], [(5, 20)], [0, 21, 30]),
    "the first edge stays where all begins": ([0, 10], [(0, 25)], [0, 26]),
    "behind the last number there is no edge": ([0, 10], [(5, LAST)], [0]),
    "without stretches all stay": ([0, 10], [], [0, 10]),
}


@pytest.mark.parametrize("sentence", MOVES)
def test_no_edge_is_inside_a_stretch(sentence: str) -> None:
    edges, stretches, want = MOVES[sentence]
    low, high = (np.array([each[end] for each in stretches], np.int64) for end in (0, 1))
    assert move_edges(np.array(edges), low, high).tolist() == want


def blocks_of(*spans: tuple[int, int]) -> Blocks:
    records = np.zeros(len(spans), BLOCK)
    records["first_step"], records["last_step"] = np.array(spans, np.int64).reshape(-1, 2).T
    order = np.zeros(len(spans), np.int64)
    return Blocks(records, order, order)


JOINS = {
    "blocks side by side are stretches of their own": ([(0, 4), (5, 9)], [(0, 4), (5, 9)], [0, 1]),
    "a shared position joins": ([(0, 5), (5, 9)], [(0, 9)], [0, 0]),
    "order does not matter": ([(20, 30), (0, 4), (3, 9)], [(0, 9), (20, 30)], [1, 0, 0]),
    "a wide block joins what it spans": (
        [(0, 100), (3, 4), (50, 60), (101, 102)],
        [(0, 100), (101, 102)],
        [0, 0, 0, 1],
    ),
    "nothing joins nothing": ([], [], []),
}


@pytest.mark.parametrize("sentence", JOINS)
def test_overlapping_blocks_are_joined(sentence: str) -> None:
    spans, stretches, of_block = JOINS[sentence]
    blocks = blocks_of(*spans)
    low, high, got = join_overlapping(blocks.records["first_step"], blocks.records["last_step"])
    assert (list(zip(low.tolist(), high.tolist(), strict=True)), got.tolist()) == (stretches, of_block)


def test_blocks_wider_than_a_column_are_found_widest_first() -> None:
    assert find_wide(blocks_of((0, 9), (10, 40), (50, 150), (-(2**63), LAST)), "step", 10).tolist() == [3, 2, 1]


def test_a_knot_is_several_blocks_that_overlap_over_more_than_two_columns() -> None:
    spans = [(0, 9), (5, 14), (12, 22), (30, 39), (38, 45), (50, 90)]
    assert find_knots(blocks_of(*spans), "step", 10).tolist() == [0, 1, 2]
