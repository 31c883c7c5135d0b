"""Tables and text on stdout: colour only on a terminal, and what users and programs wrote is shown as it is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Sequence[str] = ()) -> None:
    """Print a plain table to stdout; the columns named in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


def make_console() -> Console:
    """Return a console on stdout, as wide as need be where that is no terminal."""
    # What users and programs wrote is shown as it is: "[/x]" is no markup and ":100:" no emoji.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = 10_000
    return console
