"""`gscalar doctor`: what this machine has and lacks."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.reading import print_table
from gscalar.control.deleting import sweep
from gscalar.control.indexer import rebuild
from gscalar.model.status import Exit
from gscalar.state.home import locate_home, open_home
from gscalar.views.doctor import BROKEN, OK, WARNING, examine

_STYLES = {OK: "green", WARNING: "yellow", BROKEN: "red"}


@click.command("doctor")
@click.option("--rebuild", "rebuilds", is_flag=True, help="Build the catalog again from the records first.")
@json_option
@common_options
def command(rebuilds: bool, as_json: bool, home: str | None) -> int:
    """Say what this machine has and lacks, and repair the catalog.

    Looks at Python, cores, memory and their limits, packages, GPUs, schedulers, the network of this
    machine, and the home with its disk and catalog. Exits with 3 if something that gscalar needs is broken.
    """
    if rebuilds:
        opened = open_home(home)
        sweep(opened)
        num_runs = rebuild(opened)
        click.echo(f"The catalog has been built again from the records: {num_runs} runs.", err=True)
    checks = examine(locate_home(home))
    broken = any(check.state == BROKEN for check in checks)
    if as_json:
        print_json({"healthy": not broken, "checks": [asdict(check) for check in checks]})
    else:
        rows: list[list[str | Text]] = [
            [Text(check.state, style=_STYLES[check.state]), check.name, Text(check.value, overflow="fold")]
            for check in checks
        ]
        print_table(("", "", ""), rows)
        for check in checks:
            if check.advice:
                click.echo(f"{check.name}: {check.advice}", err=True)
    return Exit.ENVIRONMENT if broken else Exit.DONE
