"""Lines as dots in character cells: braille, two dots wide and four high.

    +---+
    |1 4|   a cell is U+2800 plus the sum of 2^(n-1) over its dots
    |2 5|
    |3 6|
    |7 8|
    +---+

A line is filled column by column of dots from where it enters to where it leaves, so that a spike of one point
reaches the row of its value whatever is beside it.

What is drawn as faint gives way, cell by cell, to what is not. Two lines in one cell share its dots, and it has the
colour of the later one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

DOTS_WIDE: Final = 2
DOTS_HIGH: Final = 4
_BRAILLE: Final = 0x2800
_BITS: Final = np.array([[1, 8], [2, 16], [4, 32], [64, 128]])

Floats = npt.NDArray[np.float64]
Dots = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Cell:
    """One character with its style."""

    character: str
    style: str = ""


@dataclass(slots=True)
class Canvas:
    """A field of `width` by `height` characters, the first row at the top."""

    width: int
    height: int
    _codes: npt.NDArray[Any] = field(init=False)
    _owners: npt.NDArray[Any] = field(init=False)  # which layer a cell belongs to, -1: none
    _faint: list[bool] = field(default_factory=list)
    _styles: list[str] = field(default_factory=list)
    _letters: dict[tuple[int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._codes = np.zeros((self.height, self.width), np.int64)
        self._owners = np.full((self.height, self.width), -1)

    @property
    def columns(self) -> int:
        """How many dots the field is wide."""
        return self.width * DOTS_WIDE

    @property
    def rows(self) -> int:
        """How many dots the field is high."""
        return self.height * DOTS_HIGH

    def draw(self, x: Floats, y: Floats, style: str = "", *, faint: bool = False) -> Dots:
        """Draw a line through points in dots from the left and from the bottom; NaN is a gap. Return its cells."""
        dots = trace_dots(x, self.rows - 1 - y, self.columns, self.rows)
        cells = dots.reshape(self.height, DOTS_HIGH, self.width, DOTS_WIDE)
        codes = np.einsum("hiwj,ij->hw", cells.astype(np.int64), _BITS)
        touched = codes > 0
        if not faint:
            over_faint = touched & np.isin(self._owners, [place for place, each in enumerate(self._faint) if each])
            self._codes[over_faint] = 0
        else:
            solid = np.isin(self._owners, [place for place, each in enumerate(self._faint) if not each])
            touched &= ~solid
        self._codes[touched] |= codes[touched]
        self._owners[touched] = len(self._styles)
        self._styles.append(style)
        self._faint.append(faint)
        drawn: Dots = touched
        return drawn

    def put(self, column: int, row: int, letter: str) -> None:
        """Write a letter over what is drawn in a cell."""
        self._letters[row, column] = letter

    def render(self) -> list[list[Cell]]:
        """Return the rows of cells from the top."""
        return [[self._cell(row, column) for column in range(self.width)] for row in range(self.height)]

    def _cell(self, row: int, column: int) -> Cell:
        owner = int(self._owners[row, column])
        letter = self._letters.get((row, column))
        style = self._styles[owner] if owner >= 0 else ""
        if letter is not None:
            return Cell(letter, style)
        return Cell(chr(_BRAILLE + int(self._codes[row, column])), style) if owner >= 0 else Cell(" ")


def trace_dots(x: Floats, y: Floats, columns: int, rows: int) -> Dots:
    """Return which dots a line through points touches; x ascends, y counts from the top, NaN is a gap."""
    dots = np.zeros((rows, columns), bool)
    known = np.isfinite(x) & np.isfinite(y)
    across = np.clip(np.rint(np.where(known, x, 0)), 0, columns - 1).astype(np.int64)
    down = np.clip(np.where(known, y, 0), 0, rows - 1)
    dots[np.rint(down[known]).astype(np.int64), across[known]] = True
    for place in np.flatnonzero(known[1:] & known[:-1]).tolist():
        _join(dots, int(across[place]), float(down[place]), int(across[place + 1]), float(down[place + 1]))
    return dots


def _join(dots: Dots, x0: int, y0: float, x1: int, y1: float) -> None:
    """Fill the columns from one point to another one that is not to its left."""
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    for column in range(x0, x1 + 1):
        # Of a column, from the middle between it and the one before to the middle to the next.
        enter = y0 if column == x0 else y0 + slope * (column - 0.5 - x0)
        leave = y1 if column == x1 else y0 + slope * (column + 0.5 - x0)
        # What ends in the middle between two dots goes no further than the nearer one, so that a slope is no stair.
        low = math.floor(min(enter, leave) + 0.5)
        dots[low : max(low, math.ceil(max(enter, leave) - 0.5)) + 1, column] = True
