"""`gscalar scaling`: how a run's step would fare on other numbers of workers."""

from __future__ import annotations

import re
from typing import Any, Final

import click
import numpy as np
from rich.text import Text

import gscalar.cli.one_thread  # noqa: F401  # before all that loads NumPy
from gscalar.base.units import format_bytes, format_count, format_duration
from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.costs import percent
from gscalar.cli.plotting import Plot, PlotLine, draw_plot
from gscalar.cli.references import load_runs
from gscalar.cli.tables import make_console, print_table
from gscalar.prediction.collectives import AlphaBeta
from gscalar.prediction.scaling import ScalingCurve, ScalingPoint
from gscalar.state.catalog.rows import RunSummary
from gscalar.views.scaling import run_scaling, scaling_json

_MOST_WORKERS: Final = 1_000_000
_MOST_POINTS: Final = 64
_PLAIN_WIDTH: Final = 80
_CHART_HEIGHT: Final = 8
_GOOD: Final = 0.8
_COLUMNS: Final = (
    *("WORKERS", "STEP", "90 %", "SAMPLES/S", "SPEED-UP", "EFFICIENCY"),
    *("COMPUTE", "WAITING", "COMMUNICATION", "REST", "LIMIT"),
)
_RIGHT: Final = _COLUMNS[:-1]
# As `gscalar whatif --link` takes it: decimal, and of bits but for a capital B alone.
_RATE: Final = r"(\d+(?:\.\d+)?)([kKmMgGtT]?)([bB]it|bps|b|B)(?:/s)?"
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
_USUAL_LATENCY_S: Final = 50e-6
_LONGEST_LATENCY_S: Final = 60
_FASTEST_LINK: Final = 1e18  # bytes a second


class _Workers(click.ParamType[tuple[int, ...]]):
    name = "workers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return numbers of workers, of `8..4096` (the powers of two in it) or `8,12,16`."""
        found = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", value)
        if found:
            first, last = int(found[1]), int(found[2])
            numbers = [2**power for power in range(31) if first <= 2**power <= last]
            if not numbers:
                self.fail(f"{value!r} has no power of two in it.", param, ctx)
        elif re.fullmatch(r"\d{1,9}(,\d{1,9})*", value):
            numbers = sorted({int(each) for each in value.split(",")})
        else:
            self.fail(f"{value!r} is neither a range such as 8..4096 nor a list such as 8,12,16.", param, ctx)
        if not 1 <= numbers[0] <= numbers[-1] <= _MOST_WORKERS or len(numbers) > _MOST_POINTS:
            self.fail(f"{value!r}: give 1 to {_MOST_POINTS} numbers from 1 to {_MOST_WORKERS}.", param, ctx)
        return tuple(numbers)


class _Link(click.ParamType[AlphaBeta]):
    name = "link"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AlphaBeta:
        """Return a link, of `10Gbit` or `10Gbit,30us`."""
        if isinstance(value, AlphaBeta):
            return value
        found = re.fullmatch(_RATE + r"(?:,(\d+(?:\.\d+)?)(ns|us|ms))?", value)
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no link such as 10Gbit, 12.5GB or 25Gbit,20us.", param, ctx)
        latency_s = float(found[4]) * _TIMES_S[found[5]] if found[4] else _USUAL_LATENCY_S
        rate = float(found[1]) * _PREFIXES[found[2].lower()] / (1 if found[3] == "B" else 8)
        if not (1 / 8 <= rate <= _FASTEST_LINK and latency_s <= _LONGEST_LATENCY_S):
            self.fail(f"{value!r} is out of range: from 1bit to 1000000TB, up to {_LONGEST_LATENCY_S} s.", param, ctx)
        return AlphaBeta(alpha_s=latency_s, beta_bytes_per_s=rate)


@click.command("scaling")
@click.argument("run", metavar="RUN")
@click.option(
    "--workers",
    metavar="RANGE",
    type=_Workers(),
    default="1..1024",
    show_default=True,
    help="Powers of two from 8 to 4096: 8..4096. Or a list: 8,12,16.",
)
@click.option(
    "--link",
    metavar="RATE[,LATENCY]",
    type=_Link(),
    help="What workers exchange gradients over, such as 10Gbit or 25Gbit,20us a hop (default: what was measured).",
)
@click.option(
    "--strong/--weak",
    default=False,
    help="Share the batch of a step among more workers, or let it grow with them (default).",
)
@json_option
@common_options
def command(
    run: str, workers: tuple[int, ...], link: AlphaBeta | None, strong: bool, as_json: bool, home: str | None
) -> None:
    """Predict a run's step, speed and efficiency on other numbers of data-parallel workers.

    RUN is an id, a unique prefix of one, or a name (the newest). It is measured by its newest steps: how long each
    worker computes and how much that varies, how long gradients take, and what of it the backward hides.

    \b
    gscalar scaling base --workers 8..4096
    gscalar scaling base --workers 8,12,16 --strong --link 25Gbit,20us
    """
    opened, (found,) = load_runs(home, [run])
    curve = run_scaling(opened, found, workers, strong=strong, link=link)
    if as_json:
        print_json(scaling_json(curve, found))
    else:
        print_curve(curve, found)


def print_curve(curve: ScalingCurve, run: RunSummary) -> None:
    """Print a curve for people: what was measured, a table, a chart, what was assumed."""
    console = make_console()
    console.print(Text.assemble((run.name, "bold"), "  ", run.id, "  ", measured_text(curve)))
    kept = "the batch of a step" if curve.strong else "a worker's batch"
    console.print(Text(f"{'strong' if curve.strong else 'weak'} scaling: {kept} stays; {link_text(curve)}\n"))
    print_table(_COLUMNS, [point_cells(each) for each in curve.points], right=_RIGHT)
    if len(curve.points) > 1:
        colour = console.is_terminal and not console.no_color
        width = console.width if console.is_terminal else _PLAIN_WIDTH
        console.print()
        for line in draw_plot(make_plot(curve, width), colour=colour):
            console.print(line, no_wrap=True, overflow="crop", width=max(width, console.width))
    for remark in remarks(curve):
        console.print(Text(remark))


def measured_text(curve: ScalingCurve) -> str:
    """Return what the curve was measured by."""
    workers = f"{curve.num_workers} worker{'s' if curve.num_workers != 1 else ''}"
    steps = f"{curve.num_steps} step{'s' if curve.num_steps != 1 else ''}"
    return f"measured: {workers}, {steps} of {format_duration(curve.measured_step_s)}"


def link_text(curve: ScalingCurve) -> str:
    """Return the link in a few words."""
    link = curve.link
    if link is None:
        return "the link is not known"
    rate = f"{format_bytes(link.beta_bytes_per_s)}/s" if np.isfinite(link.beta_bytes_per_s) else "any rate"
    latency = f", {format_duration(link.alpha_s)} a hop" if link.tells_latency else ""
    return f"a link of {rate}{latency}, {'measured' if link.group_size else 'as given'}, in a {curve.algorithm}"


def point_cells(point: ScalingPoint) -> list[str]:
    """Return the cells of one number of workers; what is not known is `-`."""
    unknown = not np.isfinite(point.communication_s)
    high = format_duration(point.high_s) if np.isfinite(point.high_s) else "?"
    return [
        str(point.workers),
        ("≥ " if unknown else "") + format_duration(point.step_s),
        f"{format_duration(point.low_s)} to {high}",
        format_count(point.samples_per_s) if np.isfinite(point.samples_per_s) else "-",
        f"{point.speedup:.0f}x" if point.speedup >= 100 else f"{point.speedup:.3g}x",
        percent(point.efficiency),
        format_duration(point.compute_s),
        format_duration(point.waiting_s),
        "-" if unknown else format_duration(point.communication_s),
        format_duration(point.rest_s),
        point.limit,
    ]


def make_plot(curve: ScalingCurve, width: int) -> Plot:
    """Return the efficiency over workers, each doubling as wide as the next, with the ends of its interval."""
    at = np.log2([each.workers for each in curve.points])
    likely = np.array([each.efficiency for each in curve.points])
    step_s = np.array([each.step_s for each in curve.points])
    low_s, high_s = (np.array([getattr(each, name) for each in curve.points]) for name in ("low_s", "high_s"))
    lines = [PlotLine(label="predicted", x=at, y=likely)]
    if np.isfinite(high_s).all() and (low_s > 0).all():
        lines.append(PlotLine(label="upper end of the interval", x=at, y=likely * step_s / low_s))
        lines.append(PlotLine(label="lower end", x=at, y=likely * step_s / high_s))
    return Plot(title="Efficiency", lines=lines, axis="workers", width=width, height=_CHART_HEIGHT)


def remarks(curve: ScalingCurve) -> list[str]:
    """Return how far the run scales, and what that rests on."""
    lines = []
    if curve.points:
        most = curve.most_workers(_GOOD)
        far = f"holds up to {most} workers" if most else f"is not reached with {curve.points[0].workers} workers"
        if most == curve.points[-1].workers:
            far = f"holds on all of these, up to {most} workers"
        lines.append(f"\nAn efficiency of {percent(_GOOD).replace('.0', '')} {far}.")
    return [*lines, *(f"note: {each}" for each in curve.notes)]
