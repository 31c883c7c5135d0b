"""Charts of series on the terminal: what `gscalar metrics` and `gscalar compare` draw.

Each name that is asked for is a chart with all series that fit it, of all runs; without names each series' name is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import click
import numpy as np

from gscalar.cli.plotting import MOST_LINES, NAN_MARK, NEGINF_MARK, POSINF_MARK, Plot, PlotLine, draw_plot
from gscalar.cli.tables import make_console
from gscalar.state.series import SeriesInfo
from gscalar.views.curves import Curve, Floats, Ints, Window, load_curve
from gscalar.views.metrics import Choice, RunSeries, choose_series, find_unit

# More chart columns than dots, so that a column whose edges moved still falls into the right dot.
_COLUMNS_A_CHARACTER: Final = 4
_PLAIN_WIDTH: Final = 80
_UNITS_S: Final = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartOptions:
    """How a chart is drawn. `axis` None: steps, or relative time for what has no step."""

    axis: str | None = None  # step | time | relative
    begin: str | None = None
    end: str | None = None
    smooth: float = 0.0
    log: bool = False
    width: int | None = None
    height: int = 16


def print_charts(runs: Sequence[RunSeries], choice: Choice, options: ChartOptions) -> None:
    """Print a chart for each name that is asked for."""
    console = make_console()
    colour = console.is_terminal and not console.no_color
    width = options.width or (console.width if console.is_terminal else _PLAIN_WIDTH)
    for place, (title, chosen) in enumerate(divide(runs, choice)):
        if place:
            console.print()
        shown = chosen[:MOST_LINES]
        for line in draw_plot(make_plot(title, shown, options, width), colour=colour):
            console.print(line, no_wrap=True, overflow="crop", width=max(width, console.width))
        if len(shown) < len(chosen):
            click.echo(f"{len(shown)} of {len(chosen)} series are drawn; a longer --name or --rank chooses.", err=True)


def divide(runs: Sequence[RunSeries], choice: Choice) -> Iterator[tuple[str, list[tuple[RunSeries, SeriesInfo]]]]:
    """Yield the title of each chart and its series; names that no run has are left out."""
    patterns = choice.patterns
    if not patterns:
        found = [choose_series(run.infos, choice) for run in runs]
        patterns = tuple(dict.fromkeys(each.name for infos in found for each in infos))
    for pattern in patterns:
        one = Choice(patterns=(pattern,), everything=choice.everything, rank=choice.rank, all_ranks=choice.all_ranks)
        chosen = [(run, info) for run in runs for info in choose_series(run.infos, one)]
        if chosen:
            names = {info.name for _, info in chosen}
            units = {find_unit(info.kind, info.name) for _, info in chosen}
            unit = next(iter(units)) if len(units) == 1 else None
            yield (
                (names.pop() if len(names) == 1 else pattern) + (f", {unit}" if unit not in (None, "1") else ""),
                chosen,
            )


def make_plot(title: str, chosen: Sequence[tuple[RunSeries, SeriesInfo]], options: ChartOptions, width: int) -> Plot:
    """Return the plot of some series over one axis."""
    timed_only = any(info.kind == "hardware" for _, info in chosen)
    axis = options.axis or ("relative" if timed_only else "step")
    several_runs = len({run.run_id for run, _ in chosen}) > 1
    several_names = len({info.name for _, info in chosen}) > 1
    several_ranks = len({info.rank for _, info in chosen}) > 1
    lines = []
    for run, info in chosen:
        window = find_window(axis, options.begin, options.end, run.origin_ns())
        columns = _COLUMNS_A_CHARACTER * width
        curve = load_curve(run.reader, info, window, columns=columns, smooth=options.smooth)
        words = [run.label] if several_runs or not several_names else []
        words += [info.name] if several_names else []
        words += [rank_text(info.rank)] if several_ranks else []
        lines.append(make_line(" ".join(words), curve, axis, run.origin_ns(), log=options.log))
    suffix = f"  smoothed {options.smooth:g}" if options.smooth else ""
    return Plot(title=title + suffix, lines=lines, axis=axis, log=options.log, width=width, height=options.height)


def make_line(label: str, curve: Curve, axis: str, origin_ns: int, *, log: bool) -> PlotLine:
    """Return a curve as a line of a plot, with what its legend says."""

    def place(at: Ints) -> Floats:
        if axis == "step":
            return at.astype(np.float64)
        return (at - (origin_ns if axis == "relative" else 0)) / 1e9

    values = curve.line.values
    drawn = values[np.isfinite(values)]
    facts = []
    if len(drawn):
        facts = [f"last {drawn[-1]:.5g}", f"min {drawn.min():.5g}", f"max {drawn.max():.5g}"]
    if log and len(drawn) and drawn.min() <= 0:
        facts.append("what is not above 0 is left out")
    facts += [
        f"{count} {name} {mark}"
        for count, name, mark in (
            (curve.num_nan, "NaN", NAN_MARK),
            (curve.num_posinf, "infinite", POSINF_MARK),
            (curve.num_neginf, "-infinite", NEGINF_MARK),
        )
        if count
    ]
    return PlotLine(
        label=f"{label}: {', '.join(facts)}" if facts else f"{label}: no points",
        x=place(curve.line.at),
        y=values,
        smoothed_x=place(curve.smoothed.at) if curve.smoothed else None,
        smoothed_y=curve.smoothed.values if curve.smoothed else None,
        marks={
            mark: place(at)
            for mark, at in (
                (NAN_MARK, curve.nan_at),
                (POSINF_MARK, curve.posinf_at),
                (NEGINF_MARK, curve.neginf_at),
            )
            if len(at)
        },
    )


def rank_text(rank: int) -> str:
    """Return who recorded a series."""
    return "host" if rank < 0 else f"rank {rank}"


# ---- positions on the axis


def find_window(axis: str, begin: str | None, end: str | None, origin_ns: int) -> Window:
    """Return the window that --from and --to name.

    Raises:
        click.BadParameter: one of them is no position on the axis.
    """
    return Window(
        axis="step" if axis == "step" else "time",
        begin=None if begin is None else parse_position(axis, begin, origin_ns),
        end=None if end is None else parse_position(axis, end, origin_ns),
    )


def parse_position(axis: str, text: str, origin_ns: int) -> int:
    """Return a step, or nanoseconds. Raises as `find_window` does."""
    if axis == "step":
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise click.BadParameter(f"{text!r} is no step.")
        return int(text)
    if axis == "relative":
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)?", text)
        if found is None or not math.isfinite(float(found[1])):
            raise click.BadParameter(f"{text!r} is no time since the start, such as 90, 15min, 2.5h or 1d.")
        return origin_ns + round(float(found[1]) * _UNITS_S[found[2] or ""] * 1e9)
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is no time, such as 2026-01-31 or 2026-01-31T12:00.") from None
    return round(moment.timestamp() * 1e6) * 1000
