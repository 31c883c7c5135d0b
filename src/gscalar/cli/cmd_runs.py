"""`gscalar runs`: list runs."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.reading import fresh_catalog, local_time, number_text, print_table, status_text
from gscalar.views.runs import explain_nothing, list_runs

_TABLE_LIMIT = 50


@click.command(
    "runs",
    epilog="In a shell, put terms with < or > in quotes.",
)
@click.argument("terms", nargs=-1, metavar="[TERM]...")
@click.option("--project", metavar="NAME", help="Only runs of this project.")
@click.option(
    "--sort",
    metavar="KEY",
    default="-created",
    show_default=True,
    help="Sort by created, name, status, steps, a metric or a value; -KEY for descending.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"At most N runs (default: {_TABLE_LIMIT} in the table, all in JSON).",
)
@json_option
@common_options
def command(
    terms: tuple[str, ...],
    project: str | None,
    sort: str,
    limit: int | None,
    as_json: bool,
    home: str | None,
) -> None:
    """List runs, the newest first.

    A TERM is a word (part of the name, the project or a tag, the start of the id, a status) or a
    comparison, and all must hold:

    \b
    gscalar runs completed team=language
    gscalar runs 'val/loss<3.0' 'config.lr>=1e-3' 'created>2026-01-31'

    A comparison's key is an attribute (id, name, project, status, steps, tokens, seed, world,
    created, started, ended), a value of the spec such as config.lr, a tag or a metric.
    """
    with fresh_catalog(home) as (_, catalog):
        found = list_runs(
            catalog,
            search=terms,
            sort=sort,
            # One more tells whether there are more.
            limit=limit if as_json or limit else _TABLE_LIMIT + 1,
            project=project,
        )
        for hint in explain_nothing(catalog, terms) if not found else ():
            click.echo(hint, err=True)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("No runs." if not terms and not project else "No run fits.", err=True)
        return
    shown = found if limit else found[:_TABLE_LIMIT]
    metric = shown_metric(found, sort.removeprefix("-"))
    columns = ["ID", "NAME", "PROJECT", "STATUS", "STEPS", "CREATED", *([metric] if metric else [])]
    rows = [run_row(run, metric) for run in shown]
    print_table(columns, rows, right=("STEPS", metric or ""))
    if len(shown) < len(found):
        click.echo(f"The newest {_TABLE_LIMIT} are shown; --limit N shows more.", err=True)


def shown_metric(runs: list[dict[str, Any]], sort: str) -> str | None:
    """Return the metric that the table shows: that of the order, else the most common, validation first."""
    counts: dict[str, int] = {}
    for run in runs:
        for name in run["metrics"]:
            counts[name] = counts.get(name, 0) + 1
    if sort in counts:
        return sort
    return max(
        counts,
        key=lambda name: (name.startswith("val"), name == "train/loss", counts[name], name),
        default=None,
    )


def run_row(run: dict[str, Any], metric: str | None) -> list[str | Text]:
    """Return a run as a row of the table."""
    row: list[str | Text] = [
        run["id"],
        run["name"],
        run["project"],
        status_text(run["status"]),
        str(run["steps"]),
        local_time(run["created"]),
    ]
    if metric is not None:
        values = run["metrics"].get(metric)
        row.append(number_text(values["last"]) if values else "-")
    return row
