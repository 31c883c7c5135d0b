"""`gscalar metrics`: what runs measured, as a table, a chart, or all points."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

import click
from rich.text import Text

import gscalar.cli.one_thread  # noqa: F401  # before all that loads NumPy
from gscalar.base.units import format_bytes
from gscalar.cli.charts import ChartOptions, print_charts, rank_text
from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.plotting import sparkline
from gscalar.cli.points import print_points
from gscalar.cli.references import find_runs
from gscalar.cli.tables import make_console, print_table
from gscalar.state.series import SeriesInfo
from gscalar.views.metrics import (
    KINDS,
    Choice,
    RunSeries,
    check_choice,
    choose_series,
    describe_series,
    find_unit,
    fresh_series,
)

_PLAIN_WIDTH: Final = 80
_FEWEST_SPARKS, _MOST_SPARKS = 6, 12
_RIGHT: Final = ("LAST", "MIN", "MAX", "COUNT", "STEP", "NaN", "INF")
_TITLES: Final = {"account": "Accounts of a step, in seconds", "hardware": "Hardware"}


class _Rank(click.ParamType[int | str]):
    name = "rank"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return a rank, -1 for `host`, or `all`."""
        if value == "all":
            return "all"
        if value == "host":
            return -1
        if not (isinstance(value, str) and value.isascii() and value.isdecimal()):
            self.fail(f"{value!r} is no rank: give a number, `host` or `all`.", param, ctx)
        return int(value)


@click.command("metrics")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--name", "-n", "names", metavar="GLOB", multiple=True, help="Only these names (repeatable).")
@click.option("--all", "everything", is_flag=True, help="Accounts of steps and hardware counters too.")
@click.option("--rank", metavar="N", type=_Rank(), help="This rank, `host`, or `all` (default: the lowest of a name).")
@click.option("--plot/--no-plot", default=None, help="Draw charts (default: with --name, on a terminal).")
@click.option(
    "--smooth",
    metavar="W",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="Also draw the moving average of this weight, such as 0.9.",
)
@click.option("--log", is_flag=True, help="Draw values on a logarithmic axis.")
@click.option("--axis", type=click.Choice(["step", "time", "relative"]), help="What values are drawn over.")
@click.option("--from", "begin", metavar="AT", help="Charts and points from here on the axis: 1000, 2026-01-31, 15min.")
@click.option("--to", "end", metavar="AT", help="Charts and points up to here.")
@click.option("--width", metavar="N", type=click.IntRange(20, 1000), help="Characters of a chart (default: all).")
@click.option("--height", metavar="N", type=click.IntRange(3, 200), default=16, show_default=True, help="Its rows.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), help="csv and json: all points.")
@json_option
@common_options
def command(runs: tuple[str, ...], home: str | None, **options: Any) -> None:
    """Show what runs measured: a table with a small curve of each series, charts, or all points.

    RUN is an id, a unique prefix of one, or a name (the newest). A GLOB is a name in which * stands for
    any letters; each is a chart of its own. Steps that a later attempt repeated are left out.

    \b
    gscalar metrics base
    gscalar metrics base large --name train/loss --smooth 0.9
    gscalar metrics base --name '*/loss' --format csv > losses.csv

    --json prints what the table has, an object a series; --format json all points.
    """
    choice = Choice(
        patterns=options["names"],
        everything=options["everything"],
        rank=options["rank"] if isinstance(options["rank"], int) else None,
        all_ranks=options["rank"] == "all",
    )
    form = choose_form(options)
    with ExitStack() as stack:
        opened, found = find_runs(home, runs)
        sources = [stack.enter_context(fresh_series(opened, run_id, name)) for run_id, name in found.items()]
        check_choice({each.run_id: each.infos for each in sources}, choice)
        tell_missing(sources, choice)
        show(sources, choice, form, options)


def choose_form(options: dict[str, Any]) -> str:
    """Return what is printed: summary, table, plot, csv or json.

    Raises:
        click.UsageError: the options ask for two things.
    """
    form, plot, as_json = options["form"], options["plot"], options["as_json"]
    if as_json and (plot or form is not None):
        raise click.UsageError("--json is the table as JSON: give it without --plot and --format.")
    if form is not None and plot:
        raise click.UsageError("--plot and --format exclude each other.")
    if as_json:
        chosen = "summary"
    elif form is not None:
        chosen = str(form)
    else:
        chosen = "plot" if plot or (plot is None and options["names"] and sys.stdout.isatty()) else "table"
    drawn = ("smooth", "log", "width") if chosen != "plot" else ()
    windowed = ("begin", "end", "axis") if chosen in ("table", "summary") else ()
    given = [f"--{_FLAGS.get(each, each)}" for each in (*drawn, *windowed) if options[each]]
    if given:
        needed = "--plot or --format csv" if given[0] in ("--from", "--to", "--axis") else "--plot"
        raise click.UsageError(f"{given[0]} needs {needed}.")
    return chosen


_FLAGS: Final = {"begin": "from", "end": "to"}


def show(sources: Sequence[RunSeries], choice: Choice, form: str, options: dict[str, Any]) -> None:
    """Print the chosen series in the chosen form."""
    charting = ChartOptions(
        **{name: options[name] for name in ("axis", "begin", "end", "smooth", "log", "width", "height")}
    )
    if form == "summary":
        print_json(
            [describe_series(each.run_id, info) for each in sources for info in choose_series(each.infos, choice)]
        )
    elif form == "plot":
        print_charts(sources, choice, charting)
    elif form == "table":
        for place, each in enumerate(sources):
            if len(sources) > 1:
                click.echo(f"{'' if place == 0 else chr(10)}{each.label}  {each.run_id}")
            print_series(
                each, choose_series(each.infos, choice), with_ranks=choice.all_ranks or choice.rank is not None
            )
    else:
        print_points(sources, choice, charting, form)


def tell_missing(sources: Sequence[RunSeries], choice: Choice) -> None:
    """Say on stderr which of the runs has nothing of what is asked for."""
    for each in sources:
        if choose_series(each.infos, choice):
            continue
        what = "none of these series" if choice.patterns or choice.rank is not None else "no metrics"
        others = " `--all` shows what else it has." if each.infos and not choice.patterns else ""
        click.echo(f"The run {each.label} has {what} by now.{others}", err=True)


# ---- the table


def print_series(run: RunSeries, infos: Sequence[SeriesInfo], *, with_ranks: bool) -> None:
    """Print a table of series, a part for each kind."""
    for kind in KINDS:
        chosen = [each for each in infos if each.kind == kind]
        if not chosen:
            continue
        if kind in _TITLES:
            make_console().print(Text(f"\n{_TITLES[kind]}", style="bold"))
        odd = any(each.num_nan or each.num_posinf or each.num_neginf for each in chosen)
        columns = ["NAME", *(["RANK"] if with_ranks else []), "LAST", "MIN", "MAX", "COUNT"]
        columns += [*(["STEP"] if kind != "hardware" else []), *(["NaN", "INF"] if odd else [])]
        rows = [series_cells(each, columns) for each in chosen]
        widths = [max(len(row[place]) for row in [columns, *rows]) + 2 for place in range(len(columns))]
        width = max(_FEWEST_SPARKS, min(_MOST_SPARKS, _PLAIN_WIDTH - sum(widths)))
        sparks = [series_spark(run, each, width) for each in chosen]
        print_table([*columns, "CURVE"], [[*row, spark] for row, spark in zip(rows, sparks, strict=True)], right=_RIGHT)


def series_cells(info: SeriesInfo, columns: Sequence[str]) -> list[str]:
    """Return the cells of one series under these columns."""
    cells = {
        "NAME": info.name,
        "RANK": rank_text(info.rank).removeprefix("rank "),
        "LAST": value_text(info, info.last),
        "MIN": value_text(info, info.least),
        "MAX": value_text(info, info.greatest),
        "COUNT": str(info.count),
        "STEP": str(info.last_step),
        "NaN": str(info.num_nan or ""),
        "INF": str((info.num_posinf + info.num_neginf) or ""),
    }
    return [cells[each] for each in columns]


def series_spark(run: RunSeries, info: SeriesInfo, width: int) -> str:
    """Return the series as a curve of characters, over steps or, where it has none, over time."""
    axis = "time" if info.kind == "hardware" else "step"
    chart = run.reader.chart(info.kind, info.name, info.rank, axis=axis, columns=width)
    return sparkline(chart.least, chart.greatest)


def value_text(info: SeriesInfo, value: float) -> str:
    """Return a value with four digits, a whole part of up to seven as it is, bytes with their unit."""
    if find_unit(info.kind, info.name) == "byte":
        return format_bytes(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
