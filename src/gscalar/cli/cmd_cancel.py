"""`gscalar cancel RUN`: stop a run at its next step border, with a checkpoint."""

from __future__ import annotations

import click

from gscalar.base.units import format_duration
from gscalar.cli.common import common_options
from gscalar.control.cancelling import cancel_run
from gscalar.control.indexer import refresh
from gscalar.state.catalog import open_catalog
from gscalar.state.catalog.resolving import resolve_run
from gscalar.state.home import open_home


@click.command()
@click.argument("run", metavar="RUN")
@common_options
def command(run: str, home: str | None) -> None:
    """Stop RUN at its next step border, with a checkpoint, and wait until it has ended.

    RUN is an id, a unique prefix of one, or a name (the newest run of that name). The run can go on
    later with `gscalar run --resume RUN`.
    """
    place = open_home(home)
    with open_catalog(place) as catalog:
        refresh(place, catalog)
        run_id = resolve_run(catalog, run)
    status = cancel_run(place, run_id, waiting=_say_waiting)
    click.echo(f"{run_id} {status}")


def _say_waiting(waited_s: float) -> None:
    click.echo(f"waiting for the run to end, {format_duration(waited_s)} so far ...", err=True)
