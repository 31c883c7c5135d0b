"""`gscalar delete`: delete a run."""

from __future__ import annotations

import sys

import click

from gscalar.base.errors import UserError
from gscalar.base.units import format_bytes
from gscalar.cli.common import common_options
from gscalar.cli.reading import fresh_catalog
from gscalar.control.deleting import delete_run, num_bytes_of
from gscalar.model.status import Status
from gscalar.state.catalog import resolve_run
from gscalar.views.show import show_run


@click.command("delete")
@click.argument("run", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def command(run: str, yes: bool, home: str | None) -> None:
    """Delete a run that has ended: its record, checkpoints and logs. This cannot be undone.

    Asks first; where there is nobody to ask, --yes is needed. The id is never given again.
    """
    with fresh_catalog(home) as (opened, catalog):
        run_id = resolve_run(catalog, run)
        shown = show_run(opened, catalog, run_id)
        num_bytes = num_bytes_of(opened.run(run_id).path)
        what = f"{run_id} ({shown['name']}, {shown['status']}, {format_bytes(num_bytes)})"
        if not yes and shown["status"] != Status.RUNNING:  # a run that is going is refused anyway
            if not sys.stdin.isatty():
                raise UserError(
                    code="not-confirmed",
                    what="Deleting a run needs a yes, and there is no terminal to ask at.",
                    value=run_id,
                    next_step=f"gscalar delete {run_id} --yes",
                )
            click.confirm(f"Delete {what} for good?", abort=True, err=True)
        delete_run(opened, catalog, run_id)
    click.echo(f"deleted {what}", err=True)
