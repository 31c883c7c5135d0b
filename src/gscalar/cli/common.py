"""Options and output that all commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gscalar.base.canonical import json_text

Command = TypeVar("Command", bound=Callable[..., Any])


def common_options(command: Command) -> Command:
    """Add --home and --debug, which every command has (--debug is read in `main`)."""
    command = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(command)
    return click.option("--home", metavar="DIR", help="Where everything lives (default: GSCALAR_HOME or ~/.gscalar).")(
        command
    )


def json_option(command: Command) -> Command:
    """Add --json, which every reading command has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")(command)


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    click.echo(json_text(value))
