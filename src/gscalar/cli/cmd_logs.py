"""`gscalar logs`: what workers wrote."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from gscalar.cli.common import common_options, json_option
from gscalar.cli.reading import fresh_catalog
from gscalar.control.indexer import refresh
from gscalar.model.status import Status
from gscalar.state.catalog import Catalog, resolve_run
from gscalar.state.home import Home
from gscalar.views.logs import read_logs
from gscalar.views.show import run_status

_POLL_S = 0.2


@click.command("logs")
@click.argument("run", metavar="RUN")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="Only this worker.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=0), help="This attempt instead of the newest one.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends, through later attempts too.")
@json_option
@common_options
def command(run: str, rank: int | None, attempt: int | None, follow: bool, as_json: bool, home: str | None) -> None:
    """Print what a run's workers wrote to stdout and stderr.

    Each line begins with the worker's rank, unless --rank names one. With --json each line is an object
    {attempt, rank, text} of its own.
    """
    with fresh_catalog(home) as (opened, catalog):
        run_id = resolve_run(catalog, run)

        def wait() -> bool:
            time.sleep(_POLL_S)
            return is_going(opened, catalog, run_id)

        for line in read_logs(opened, run_id, attempt=attempt, rank=rank, wait=wait if follow else None):
            if as_json:
                click.echo(json.dumps(asdict(line), ensure_ascii=False))
            else:
                prefix = f"[rank {line.rank}] " if rank is None else ""
                click.echo(f"{prefix}{line.text}")


def is_going(home: Home, catalog: Catalog, run_id: str) -> bool:
    """Tell whether the run has not ended by now."""
    refresh(home, catalog, run_id)
    return not Status(run_status(catalog, run_id)).ended
