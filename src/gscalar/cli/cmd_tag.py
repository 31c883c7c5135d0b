"""`gscalar tag`: set or remove tags."""

from __future__ import annotations

import click

from gscalar.cli.common import common_options
from gscalar.cli.reading import fresh_catalog
from gscalar.control.editing import edit_tags, parse_tags
from gscalar.control.indexer import refresh
from gscalar.state.catalog import resolve_run
from gscalar.views.show import show_run


@click.command("tag")
@click.argument("run", metavar="RUN")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
@common_options
def command(run: str, changes: tuple[str, ...], home: str | None) -> None:
    """Set tags of a run (KEY=VALUE) or remove them (KEY-), while it runs or later.

    Prints the run's tags after it.
    """
    parsed = parse_tags(changes)
    with fresh_catalog(home) as (opened, catalog):
        run_id = resolve_run(catalog, run)
        edit_tags(opened, run_id, parsed)
        refresh(opened, catalog, run_id)
        tags = show_run(opened, catalog, run_id)["tags"]
    for key, value in tags.items():
        click.echo(f"{key}={value}")
