"""How a chart's columns are laid, and drawn from blocks and points: pure functions.

Columns are equally wide, but none may end inside a block of which only the summary is known: first and last of a
column would be wrong in most columns. So an edge that falls into a block, or into several that overlap,
moves to where they end, and the chart says where its columns really begin and end. Blocks overlap where steps
were logged out of order. A block wider than a column is worth opening; so is a knot of blocks that overlap
over several columns. Which those are is what `find_wide` and `find_knots` say.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.state.series.blocks import Blocks, Points, join_blocks, merge_blocks, starts_of
from gscalar.state.series.types import Chart, Ints

_KNOT_COLUMNS: Final = 2
_LAST: Final = np.iinfo(np.int64).max


def lay_edges(low: int, high: int, columns: int) -> Ints:
    """Return where columns of equal width begin, ascending; the last one ends with `high`."""
    # Python's integers: times in nanoseconds times columns pass 64 bits.
    width = high - low + 1
    return np.array(sorted({low + width * index // columns for index in range(columns)}), np.int64)


def move_edges(edges: Ints, low: Ints, high: Ints) -> Ints:
    """Return the edges with none inside a stretch; stretches [low, high] are ascending and do not overlap."""
    if not len(low):
        return edges
    before = np.searchsorted(low, edges, "left") - 1
    inside = (before >= 0) & (high[before] >= edges)
    # Behind the last number there is no place for an edge.
    kept = ~inside | (high[before] < _LAST)
    moved = np.where(inside, high[before] + (high[before] < _LAST), edges)[kept]
    return moved[starts_of(moved)]


def join_overlapping(low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the stretches that overlapping blocks make: low, high, and the stretch of each block."""
    order = np.argsort(low, kind="stable")
    reach = np.maximum.accumulate(high[order])
    begins = np.append(True, low[order][1:] > reach[:-1]) if len(low) else np.empty(0, bool)
    starts = np.flatnonzero(begins)
    of_block = np.empty(len(low), np.int64)
    of_block[order] = np.cumsum(begins) - 1
    ends = np.append(starts[1:], len(low)) - 1 if len(low) else starts
    return low[order][starts], reach[ends], of_block


def find_wide(blocks: Blocks, axis: str, width: int) -> Ints:
    """Return the blocks that are wider than a column, the widest first."""
    span = _span(blocks.records[f"first_{axis}"], blocks.records[f"last_{axis}"])
    return np.flatnonzero(span > width)[np.argsort(-span[span > width], kind="stable")]


def find_knots(blocks: Blocks, axis: str, width: int) -> Ints:
    """Return the blocks that overlap with others over more than some columns."""
    low, high, of_block = join_overlapping(blocks.records[f"first_{axis}"], blocks.records[f"last_{axis}"])
    several = np.bincount(of_block, minlength=len(low)) > 1
    return np.flatnonzero((several & (_span(low, high) > _KNOT_COLUMNS * width))[of_block])


def draw_points(points: Points, axis: str, edges: Ints, columns: int) -> Chart:
    """Return the chart of points in the axis's order; each is its own column where there are at most `columns`."""
    if not len(points):
        return empty_chart(axis)
    if len(points) > columns:
        starts = starts_of(np.searchsorted(edges, points.position(axis), "right"))
        return merge_blocks(np.arange(len(starts)), points.block(starts), axis)
    blocks = points.block(np.arange(len(points)))
    chart = merge_blocks(np.arange(len(points)), blocks, axis)
    return Chart(True, *[getattr(chart, field.name) for field in dataclasses.fields(chart)[1:]])


def draw(blocks: Blocks, points: Points, axis: str, edges: Ints) -> Chart:
    """Return the chart of blocks and of points in the axis's order, in columns that begin near `edges`."""
    low, high, _ = join_overlapping(blocks.records[f"first_{axis}"], blocks.records[f"last_{axis}"])
    edges = move_edges(edges, low, high)
    if len(points):
        starts = starts_of(np.searchsorted(edges, points.position(axis), "right"))
        blocks = join_blocks([points.block(starts), blocks])
    bins = np.searchsorted(edges, blocks.records[f"first_{axis}"], "right")
    return merge_blocks(bins, blocks, axis)


def empty_chart(axis: str) -> Chart:
    """Return the chart of no points."""
    ints, floats = np.empty(0, np.int64), np.empty(0, np.float64)
    return Chart(True, axis, ints, ints, floats, floats, floats, floats, *[ints] * 6)


def _span(low: Ints, high: Ints) -> npt.NDArray[np.float64]:
    # As floats, since the difference of two steps may not fit.
    return high.astype(np.float64) - low.astype(np.float64)
