"""What the commands that look at runs share: a catalog that is up to date, tables, colour only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from gscalar.base.errors import EnvironmentProblem
from gscalar.base.units import format_duration
from gscalar.cli.tables import make_console as make_console
from gscalar.cli.tables import print_table as print_table
from gscalar.state.home import Home, open_home_to_read

if TYPE_CHECKING:
    from gscalar.state.catalog import Catalog

STATUS_STYLES = {
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "queued": "dim",
}


@contextmanager
def fresh_catalog(home_flag: str | None) -> Iterator[tuple[Home, Catalog]]:
    """Give the home and its catalog, caught up with the records.

    A damaged catalog is set aside and built anew, with a word on stderr: nothing but time is lost. A home that does not
    exist has no runs, and is not made.
    """
    # What opens the catalog takes longer to load than most commands take, and some need it only now and then.
    from gscalar.control.indexer import refresh
    from gscalar.state.catalog.catalog import empty_catalog, open_catalog, replace_damaged

    home = open_home_to_read(home_flag)
    catalog = open_catalog(home) if home.path.exists() else empty_catalog(home)
    try:
        try:
            refresh(home, catalog)
        except EnvironmentProblem as error:
            if error.code != "catalog-damaged":
                raise
            catalog.close()
            damaged_file = replace_damaged(home.index)
            catalog = open_catalog(home)
            catalog.damaged_file = damaged_file
            refresh(home, catalog)
        if catalog.damaged_file is not None:
            click.echo(
                f"The catalog was damaged and has been built anew from the records; "
                f"the old file is {catalog.damaged_file}.",
                err=True,
            )
        yield home, catalog
    finally:
        catalog.close()


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))


def local_time(iso: str | None) -> str:
    """Return a time of the JSON forms in this place's time, to the second."""
    if iso is None:
        return "-"
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}"


def lasted(started: str | None, ended: str | None) -> str:
    """Return how long something took, of the JSON forms' times."""
    if started is None or ended is None:
        return "-"
    return format_duration((datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds())


def number_text(value: Any) -> str:
    """Return a number with six significant digits, whole numbers as they are."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
