"""A line chart as text: axes with round numbers, lines in braille, a legend.

Where a value is NaN or infinite the line has a gap, and the axis of steps or time a mark below it: `x` NaN,
`▲` +infinity, `▼` -infinity. On a logarithmic axis, values that are not above zero are gaps too.

Without colour, lines are told apart by a letter here and there, and a smoothed line is all letters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.text import Text

from gscalar.cli.canvas import DOTS_HIGH, DOTS_WIDE, Canvas

Floats = npt.NDArray[np.float64]

STYLES: Final = ("cyan", "yellow", "magenta", "green", "red", "blue")
MOST_LINES: Final = 12
NAN_MARK, POSINF_MARK, NEGINF_MARK = "x", "▲", "▼"
_LETTERS: Final = "ABCDEFGHIJKL"
_LETTER_EVERY: Final = 12
_FEWEST_COLUMNS: Final = 10
_LARGEST: Final = 8e307
_LEAST_RANGE: Final = 1e-300
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_LONG_S: Final = 120
_TIME_STEPS_S: Final = (
    *(1e-3, 1e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotLine:
    """One line of a plot. Positions ascend; a NaN is a gap."""

    label: str
    x: Floats
    y: Floats
    smoothed_x: Floats | None = None
    smoothed_y: Floats | None = None
    marks: dict[str, Floats] = field(default_factory=dict)  # where values are not finite, by the mark for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A chart of `width` by `height` characters with axes, without title and legend."""

    title: str
    lines: Sequence[PlotLine]
    axis: str  # step | time | relative | workers (positions are their logarithm to base 2)
    log: bool = False
    width: int = 80
    height: int = 16


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps numbers to dots 0 to `dots` - 1."""

    low: float
    high: float
    dots: int
    log: bool = False

    def place(self, numbers: Floats) -> Floats:
        """Return where the numbers are, in dots; NaN for what cannot be on the axis."""
        if self.log:
            numbers = np.log10(np.where(numbers > 0, numbers, np.nan))
        low, high = self._ends()
        found: Floats = (numbers - low) / (high - low) * (self.dots - 1)
        return found

    def _ends(self) -> tuple[float, float]:
        return (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)


def draw_plot(plot: Plot, *, colour: bool) -> list[Text]:
    """Return the chart as lines of text: title, field with axes, legend."""
    x_range, y_range = _range([each.x for each in plot.lines]), _y_range(plot)
    if x_range is None or y_range is None:
        return [Text(plot.title, style="bold"), Text("  no value that can be drawn"), *_legend(plot, colour)]
    ticks = log_ticks(*y_range) if plot.log else nice_ticks(*y_range, max(2, plot.height // 2))
    labels = tick_labels(ticks)
    margin = max((len(each) for each in labels), default=0) + 1
    canvas = Canvas(max(_FEWEST_COLUMNS, plot.width - margin - 1), plot.height)
    across = Scale(*x_range, canvas.columns)
    upward = Scale(*y_range, canvas.rows, plot.log)
    _draw_lines(canvas, plot, across, upward, colour=colour)
    rows: dict[int, str] = {}
    for tick, label in zip(upward.place(np.array(ticks, float)).tolist(), labels, strict=True):
        rows.setdefault(canvas.height - 1 - round(tick) // DOTS_HIGH, label)
    found = [Text(plot.title, style="bold")]
    for row, cells in enumerate(canvas.render()):
        line = Text(f"{rows.get(row, ''):>{margin - 1}} {'┤' if row in rows else '│'}")
        for cell in cells:
            line.append(cell.character, style=cell.style)
        line.rstrip()
        found.append(line)
    return [*found, *_x_axis(plot, across, margin, canvas.width), *_legend(plot, colour)]


def sparkline(least: Floats, greatest: Floats) -> str:
    """Return one character a column, as high as that one of its extremes that is farther from what is usual."""
    finite = np.isfinite(least) & np.isfinite(greatest)
    if not finite.any():
        return NAN_MARK * len(least)
    low, high = float(least[finite].min()), float(greatest[finite].max())
    # `np.median` would load masked arrays, which takes longer than all curves of a table.
    middles = np.sort(least[finite] / 2 + greatest[finite] / 2)
    usual = float(middles[(len(middles) - 1) // 2] / 2 + middles[len(middles) // 2] / 2)
    text = ""
    for bottom, top, known in zip(least.tolist(), greatest.tolist(), finite.tolist(), strict=True):
        value = top if top - usual >= usual - bottom else bottom
        share = (value - low) / (high - low) if 0 < high - low < math.inf else 0.0
        text += _SPARKS[min(len(_SPARKS) - 1, int(share * len(_SPARKS)))] if known else NAN_MARK
    return text


# ---- the field


def _draw_lines(canvas: Canvas, plot: Plot, across: Scale, upward: Scale, *, colour: bool) -> None:
    # Faint lines first, so that no smoothed one is hidden.
    for place, line in enumerate(plot.lines):
        smoothed = line.smoothed_x is not None
        style = STYLES[place % len(STYLES)] if colour else ""
        cells = canvas.draw(
            across.place(line.x), upward.place(line.y), f"{style} dim".strip() if colour and smoothed else style,
            faint=smoothed,
        )  # fmt: skip
        if not colour and not smoothed and len(plot.lines) > 1:
            _put_letters(canvas, cells, _LETTERS[place], every=_LETTER_EVERY, first=3 * place)
    for place, line in enumerate(plot.lines):
        if line.smoothed_x is None or line.smoothed_y is None:
            continue
        style = f"{STYLES[place % len(STYLES)]} bold" if colour else ""
        cells = canvas.draw(across.place(line.smoothed_x), upward.place(line.smoothed_y), style)
        if not colour:
            _put_letters(canvas, cells, _LETTERS[place], every=1, first=0)


def _put_letters(canvas: Canvas, cells: npt.NDArray[np.bool_], letter: str, *, every: int, first: int) -> None:
    """Name a line in some of its columns, where it is in the middle of its reach there."""
    for column in range(first % every, canvas.width, every):
        rows = np.flatnonzero(cells[:, column])
        if len(rows):
            canvas.put(column, int(rows[len(rows) // 2]), letter)


def _range(parts: Sequence[Floats]) -> tuple[float, float] | None:
    """Return least and greatest of all finite numbers, apart where they are one."""
    finite = [each[np.isfinite(each)] for each in parts]
    finite = [each for each in finite if len(each)]
    if not finite:
        return None
    low, high = min(float(each.min()) for each in finite), max(float(each.max()) for each in finite)
    low, high = max(low, -_LARGEST), min(high, _LARGEST)  # their difference is a number
    if high - low > _LEAST_RANGE:
        return low, high
    around = abs(low) * 0.05 if abs(low) > 100 * _LEAST_RANGE else 1.0
    return low - around, high + around


def _y_range(plot: Plot) -> tuple[float, float] | None:
    parts = [each.y for each in plot.lines] + [each.smoothed_y for each in plot.lines if each.smoothed_y is not None]
    return _range([each[each > 0] for each in parts] if plot.log else parts)


def _x_axis(plot: Plot, across: Scale, margin: int, width: int) -> list[Text]:
    """Return the lower axis with its marks, its labels and its unit."""
    ticks, labels, unit = x_ticks(plot.axis, across.low, across.high, max(2, width // 14))
    line, under = ["─"] * width, [" "] * (width + 1)
    for tick, label in zip(ticks, labels, strict=True):
        column = _column(across, tick)
        line[column] = "┬"
        start = max(0, min(column - len(label) // 2, width - len(label)))
        if all(each == " " for each in under[max(0, start - 1) : start + len(label)]):
            under[start : start + len(label)] = label
    for each in plot.lines:
        for mark, positions in each.marks.items():
            for position in positions.tolist():
                line[_column(across, position)] = mark
    name = f"{plot.axis}{f', {unit}' if unit else ''}"
    text = "".join(under).rstrip()
    room = margin + 1 + len(text) + 2 + len(name) <= margin + 1 + width
    labels_line = [Text(f"{' ' * margin} {text}  {name}")] if room else [
        Text(f"{' ' * margin} {text}"), Text(f"{' ' * margin} {name:>{width}}")
    ]  # fmt: skip
    return [Text(f"{' ' * margin}└{''.join(line)}"), *labels_line]


def _column(across: Scale, position: float) -> int:
    width = across.dots // DOTS_WIDE
    return min(width - 1, max(0, int(across.place(np.array([position])).item() / DOTS_WIDE)))


def _legend(plot: Plot, colour: bool) -> list[Text]:
    found = []
    for place, line in enumerate(plot.lines):
        mark = "━━" if colour else _LETTERS[place] if len(plot.lines) > 1 or line.smoothed_x is not None else " "
        text = Text(f"{mark} ", style=STYLES[place % len(STYLES)] if colour else "")
        room = plot.width - len(mark) - 1
        label = line.label if len(line.label) <= room else line.label[: room - 1] + "…"
        found.append(text.append(label, style="not bold default" if colour else ""))
    return found


# ---- ticks


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return as many round numbers from low to high as there may be: multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / (most + 1)))
    steps = (factor * power for factor in (1, 2, 5, 10, 20, 50, 100))
    return next(ticks for ticks in (_multiples(step, low, high) for step in steps) if len(ticks) <= most)


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten from low to high, thinned to six; round numbers where there are fewer than two."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 1:
        return [each for each in nice_ticks(low, high, 4) if each > 0]
    every = -(-(last - first + 1) // 6)
    return [10.0**power for power in range(first, last + 1, every)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the ticks with as many decimals as tell them apart."""
    largest = max((abs(each) for each in ticks), default=0.0)
    gaps = [b - a for a, b in itertools.pairwise(ticks) if b > a]
    gap = min(gaps, default=largest or 1.0)
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9))
    if largest and (not 1e-3 <= largest < 1e6 or decimals > 6):
        digits = max(3, math.ceil(math.log10(largest / gap)) + 1)
        return [f"{each:.{digits}g}" for each in ticks]
    return [f"{each:.{decimals}f}" for each in ticks]


def x_ticks(axis: str, low: float, high: float, most: int) -> tuple[list[float], list[str], str]:
    """Return the lower axis's ticks, their labels and the unit."""
    if axis == "step":
        ticks = [each for each in nice_ticks(low, high, most) if each == round(each)]
        return ticks, [step_text(each) for each in ticks], ""
    if axis == "workers":
        ticks = [each for each in nice_ticks(low, high, most) if each == round(each)]
        return ticks, [f"{2**each:.0f}" for each in ticks], ""
    if axis == "relative" and high - low < _LONG_S:
        ticks = nice_ticks(low, high, most)
        return ticks, tick_labels(ticks), "s"
    step = next((each for each in _TIME_STEPS_S if (high - low) / each <= most - 1), _TIME_STEPS_S[-1])
    if axis == "relative":
        unit, seconds = next(
            (each for each in (("d", 86400), ("h", 3600), ("min", 60)) if high - low >= 2 * each[1]), ("s", 1)
        )
        ticks = _multiples(step, low, high)
        return ticks, [f"{each / seconds:.3g}" for each in ticks], unit
    shift = datetime.fromtimestamp(low, UTC).astimezone().utcoffset()
    offset_s = shift.total_seconds() if shift else 0.0
    ticks = [each - offset_s for each in _multiples(step, low + offset_s, high + offset_s)]
    form = "%Y-%m-%d" if step >= 86400 else "%d. %H:%M" if high - low > 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    return ticks, [f"{datetime.fromtimestamp(each, UTC).astimezone():{form}}" for each in ticks], ""


def step_text(step: float) -> str:
    """Return a step, in thousands or millions where that is shorter."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(step) >= 10 * size or (abs(step) >= size and step % (size / 100) == 0):
            return f"{step / size:g}{unit}"
    return f"{step:g}"


def _multiples(step: float, low: float, high: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Numbers that differ in their last bits only have multiples that are one number.
    found = dict.fromkeys(count * step for count in range(first, last + 1))
    return [each for each in found if low - step * 1e-9 <= each <= high + step * 1e-9]
