"""`gscalar compare`: runs side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import click
from rich.text import Text

import gscalar.cli.one_thread  # noqa: F401  # before all that loads NumPy
from gscalar.base.units import format_count, format_duration
from gscalar.cli.charts import ChartOptions, print_charts
from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.costs import account_word, percent
from gscalar.cli.reading import number_text, status_text
from gscalar.cli.references import load_runs
from gscalar.cli.tables import make_console, print_table
from gscalar.views.compare import compare_runs
from gscalar.views.describing import describe_run
from gscalar.views.metrics import Choice, check_choice, fresh_series

_PLAIN_WIDTH: Final = 80
_FEWEST_CHARACTERS: Final = 8
_MOST_KEY: Final = 32
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_DIFFERENCES: Final = 3
_SECTION_TITLES: Final = {
    "spec": "Spec",
    "code": "Code",
    "model": "Model",
    "packages": "Packages",
    "machine": "Machine",
    "variables": "Environment variables",
}
_SAME: Final = {"weights": "same final weights", "data": "same data in the same order", "spec": "same spec"}
_REASONS: Final = {
    "seed": "their seeds differ",
    "world": "their numbers of workers differ",
    "data": "they had other data, or in another order",
    "metrics": "they share no metric that depends on the training alone",
}


@click.command("compare")
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="All values, also the equal ones; compare every point.")
@click.option("--plot", "names", metavar="GLOB", multiple=True, help="Draw these series of all runs (repeatable).")
@json_option
@common_options
def command(runs: tuple[str, ...], everything: bool, names: tuple[str, ...], as_json: bool, home: str | None) -> None:
    """Compare runs: what differs in spec, code, packages and machine, their metrics, and where their time went.

    RUN is an id, a unique prefix of one, or a name (the newest). Ratios are to the first run. Runs with the same
    seed, data order and number of workers are compared point by point: the first step at which a metric differs is
    told.
    """
    if as_json and names:
        raise click.UsageError("--json and --plot exclude each other.")
    opened, found = load_runs(home, runs)
    if len(found) < 2:
        raise click.UsageError("Give at least two runs; an id, or a name with several runs, is only one of them.")
    told = [describe_run(opened, each) for each in found]
    with ExitStack() as stack:
        series = [
            stack.enter_context(fresh_series(opened, run["id"], label))
            for run, label in zip(told, labels(told), strict=True)
        ]
        if names:
            choice = Choice(patterns=names)
            check_choice({each.run_id: each.infos for each in series}, choice)
            print_charts(series, choice, ChartOptions())
            return
        compared = compare_runs(told, series, everything=everything)
    if as_json:
        print_json(compared)
    else:
        print_comparison(compared)


def labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what to call the runs: their names, with the id where two have the same."""
    names = [run["name"] for run in runs]
    return [name if names.count(name) == 1 else f"{name} {run['id']}" for name, run in zip(names, runs, strict=True)]


def print_comparison(compared: Mapping[str, Any]) -> None:
    """Print a comparison for people."""
    runs = compared["runs"]
    letters = [_LETTERS[place % len(_LETTERS)] for place in range(len(runs))]
    rows = [
        [Text(letter, style="bold"), run["name"], run["id"], status_text(run["status"]), f"{run['steps']} steps"]
        for letter, run in zip(letters, runs, strict=True)
    ]
    print_table(("", "", "", "", ""), rows)
    for line in [*same_lines(compared["digests"], len(runs)), *divergence_lines(compared["divergence"], letters)]:
        make_console().print(line)
    print_configuration(compared["configuration"], letters)
    print_metrics(compared["metrics"], letters)
    print_times(compared, letters)


def same_lines(digests: Mapping[str, Any], num_runs: int) -> list[Text]:
    """Return what all runs have in common, bit for bit."""
    same = [text for name, text in _SAME.items() if digests[name]["equal"]]
    whose = "Both" if num_runs == 2 else "All"
    return [Text(f"{whose}: {', '.join(same)}", style="green")] if same else []


def divergence_lines(found: Sequence[Mapping[str, Any]], letters: Sequence[str]) -> list[Text]:
    """Return for each further run where it diverges from the first one."""
    return [_divergence_line(each, letters[0], letter) for each, letter in zip(found, letters[1:], strict=True)]


def _divergence_line(told: Mapping[str, Any], first: str, second: str) -> Text:
    if not told["compared"]:
        return Text(f"{first} and {second} are not compared step by step: {_REASONS[told['reason']]}.", style="dim")
    order = {"equal": "", "unknown": " (order of data not known)"}[told["data_order"]]
    if told["step"] is None:
        num = len(told["names"])
        extent = f"{num} metric{'s' if num != 1 else ''} up to step {told['last_step']}"
        points = (
            f"all {told['num_points']} points" if told["exact"] else "points and charts; --all compares every point"
        )
        return Text(f"{first} and {second} are equal in {extent} ({points}){order}.", style="green")
    names = [each["name"] for each in told["metrics"]]
    more = f" and {len(names) - _MOST_DIFFERENCES} more" if len(names) > _MOST_DIFFERENCES else ""
    text = Text(
        f"{second} diverged from {first} at step {told['step']} in {', '.join(names[:_MOST_DIFFERENCES])}{more}"
    )
    text.stylize("bold yellow")
    values = " against ".join(repr(each) for each in told["metrics"][0]["values"])
    return text.append(f"{order}:\n  {names[0]} {values}", style="not bold default")


# ---- tables


def print_configuration(rows: Sequence[Mapping[str, Any]], letters: Sequence[str]) -> None:
    """Print the values that were asked for, a table for each section."""
    if not rows:
        print_heading("Configuration", "no difference")
    for section, title in _SECTION_TITLES.items():
        chosen = [each for each in rows if each["section"] == section]
        if chosen:
            print_heading(title, "" if any(each["equal"] for each in chosen) else "what differs")
            print_side_by_side(
                "KEY", [(each["key"], [value_text(value) for value in each["values"]]) for each in chosen], letters
            )


def print_metrics(rows: Sequence[Mapping[str, Any]], letters: Sequence[str]) -> None:
    """Print the metrics, a line for each run that has it."""
    if not rows:
        return
    print_heading("Metrics", "")
    lines: list[list[str | Text]] = []
    for row in rows:
        name = row["name"]
        for place, (cell, letter) in enumerate(zip(row["runs"], letters, strict=True)):
            lines.append([name, letter, *_metric_cells(cell, row["direction"], better=row["better"] == place)])
            name = ""
    columns = ("NAME", "RUN", "LAST", "STEP", "MIN", "MAX", "BEST AT", "")
    print_table(columns, lines, right=("LAST", "STEP", "MIN", "MAX", "BEST AT"))


def _metric_cells(cell: Mapping[str, Any] | None, direction: str | None, *, better: bool) -> list[str | Text]:
    if cell is None:
        return ["-", "", "", "", "", ""]
    last, least, greatest = (f"{cell[key]:.5g}" for key in ("last", "min", "max"))
    at = "unknown" if direction is None else "" if cell["best_step"] is None else str(cell["best_step"])
    style = "bold green" if better else ""
    return [
        last,
        str(cell["last_step"]),
        Text(least, style=style if direction == "down" else ""),
        Text(greatest, style=style if direction == "up" else ""),
        at,
        Text("better" if better else "", style=style),
    ]


def print_times(compared: Mapping[str, Any], letters: Sequence[str]) -> None:
    """Print where the time went: of a step, rates, goodput."""
    if compared["accounts"]:
        print_heading("A step", "mean over ranks")
        print_side_by_side(
            "ACCOUNT",
            [
                (account_word(each["name"]), [_share_cell(*parts) for parts in zip(*_columns(each), strict=True)])
                for each in compared["accounts"]
                if any(each["seconds"])
            ],
            letters,
        )
    if compared["throughput"]:
        print_heading("Throughput", "")
        print_side_by_side(
            "RATE",
            [
                (
                    each["name"].replace("_per_", "/"),
                    [
                        "-" if value is None else _rate_text(each["name"], value) + _ratio_text(times, place)
                        for place, (value, times) in enumerate(zip(each["values"], each["ratios"], strict=True))
                    ],
                )
                for each in compared["throughput"]
            ],
            letters,
        )
    if compared["goodput"]:
        print_heading("Goodput", "")
        rows = [
            (_goodput_word(each["name"]), [_goodput_text(each["name"], value) for value in each["values"]])
            for each in compared["goodput"]
            if any(each["values"])
        ]
        print_side_by_side("PART", rows, letters)


def _columns(row: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any], range]:
    return row["seconds"], row["shares"], row["ratios"], range(len(row["seconds"]))


def _share_cell(seconds: float | None, share: float | None, times: float | None, place: int) -> str:
    if seconds is None:
        return "-"
    of_step = f" {percent(share):>7}" if share is not None else ""
    return f"{format_duration(seconds):>8}{of_step}{_ratio_text(times, place)}"


def _rate_text(name: str, value: float) -> str:
    return percent(value) if name == "mfu" else format_count(value)


def _ratio_text(times: float | None, place: int) -> str:
    return "" if place == 0 or times is None else f"  {times:.2f}x"


def _goodput_word(name: str) -> str:
    words = {"ratio": "goodput", "productive_s": "in steps that count", "total_s": "total"}
    return words.get(name) or f"lost: {account_word(name.removeprefix('lost.'))}"


def _goodput_text(name: str, value: float | None) -> str:
    return "-" if value is None else percent(value) if name == "ratio" else format_duration(value)


def print_heading(title: str, what: str) -> None:
    """Print the title of a table."""
    make_console().print(Text(f"\n{title}", style="bold").append(f"  {what}" if what else "", style="not bold dim"))


def print_side_by_side(head: str, rows: Sequence[tuple[str, Sequence[str]]], letters: Sequence[str]) -> None:
    """Print a column for each run; what is too long for the width is cut at its end."""
    console = make_console()
    width = console.width if console.is_terminal else _PLAIN_WIDTH
    keys = min(max(len(key) for key, _ in rows), _MOST_KEY)
    room = max(_FEWEST_CHARACTERS, (width - keys - 2) // len(letters) - 2)
    print_table(
        (head, *letters), [[cut(key, _MOST_KEY), *(cut(value, room) for value in values)] for key, values in rows]
    )


def cut(text: str, room: int) -> str:
    """Return the text, with an ellipsis for what does not fit."""
    return text if len(text) <= room else f"{text[: room - 1]}…"


def value_text(value: Any) -> str:
    """Return a value of the configuration in one line."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value.partition("\n")[0]
    return number_text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
