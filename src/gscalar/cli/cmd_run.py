"""`gscalar run`: launch a job and watch it to its end."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, Final

import click

from gscalar.base.errors import UserError
from gscalar.cli.common import common_options, print_json
from gscalar.cli.display import open_display
from gscalar.cli.summary import print_summary
from gscalar.control.commands import default_name
from gscalar.control.indexer import refresh
from gscalar.control.launching import resume_run, start_run
from gscalar.control.supervisor import Outcome
from gscalar.engines.local.engine import LocalEngine
from gscalar.model.parsing import json_schema, load_spec, override_spec
from gscalar.model.status import Status
from gscalar.state.catalog import open_catalog
from gscalar.state.catalog.resolving import resolve_run
from gscalar.state.catalog.storing import load_state
from gscalar.state.home import Home, locate_home, open_home

_COMMAND: Final = "gscalar.command"
JOB_FILE: Final = "job.yaml"


class _RunCommand(click.Command):
    """Keeps what stands after `--` apart: click would mix it with PATH."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND] = args[place + 1 :]
            args = args[:place]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" in error.message and _COMMAND not in ctx.meta:
                hint = "A command goes after `--`: gscalar run [OPTIONS] -- python train.py"
                raise click.UsageError(f"{error.message} {hint}", ctx) from None
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "PATH | -- COMMAND..."]


@click.command(cls=_RunCommand)
@click.argument("path", metavar="PATH", required=False)
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set a key of the spec (repeatable).")
@click.option("--name", metavar="TEXT", help="The run's name.")
@click.option("--project", metavar="TEXT", help="The project that the run belongs to.")
@click.option("--workers", metavar="N", type=int, help="Worker processes.")
@click.option("--resume", metavar="RUN", help="Go on with a run that has ended, from its last checkpoint.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of a job spec, for editors.")
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: str | None,
    overrides: tuple[str, ...],
    resume: str | None,
    schema: bool,
    home: str | None,
    **named: Any,
) -> int:
    """Train: launch a job's workers, record them, and restart them after failures.

    PATH is a job spec or a folder with job.yaml. Without a spec, give the command itself:

        gscalar run --workers 2 -- python train.py --lr 3e-4

    Exit codes: 0 done, 1 failed, 2 wrong usage or spec, 3 a problem of this machine, 75 stopped and
    resumable, 130 interrupted.
    """
    if schema:
        print_json(json_schema())
        return 0
    words = ctx.meta.get(_COMMAND)
    _check_usage(path, words, resume)
    place = locate_home(home)
    display = open_display()
    try:
        if resume is not None:
            outcome = _resume(place, resume, overrides, named, display)
        else:
            outcome = _start(place, path, words, overrides, named, display)
    finally:
        display.close()
    print_summary(place, outcome)
    return outcome.exit_code


def _check_usage(path: str | None, words: list[str] | None, resume: str | None) -> None:
    given = [name for name, value in (("PATH", path), ("-- COMMAND", words), ("--resume", resume)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} exclude each other.")
    if words == []:
        raise click.UsageError("A command is missing after `--`.")
    if not given:
        raise click.UsageError("Give a job spec, a folder with job.yaml, or a command after `--`.")


def _start(
    place: Home,
    path: str | None,
    words: list[str] | None,
    overrides: tuple[str, ...],
    named: dict[str, Any],
    display: Any,
) -> Outcome:
    if path is None:
        assert words is not None
        resolved = load_spec(None, "", overrides, os.environ, {**named, "command": words})
        folder, name = _current_folder(), default_name(words)
    else:
        file = find_spec(Path(path))
        resolved = load_spec(_read(file), str(file), overrides, os.environ, named)
        folder = file.absolute().parent
        name = folder.name if file.name == JOB_FILE else file.stem
    return start_run(place, resolved, folder=folder, name=name, engine=LocalEngine(), display=display)


def _resume(place: Home, reference: str, overrides: tuple[str, ...], named: dict[str, Any], display: Any) -> Outcome:
    open_home(place.path)
    with open_catalog(place) as catalog:
        refresh(place, catalog)
        run_id = resolve_run(catalog, reference)
        with catalog.read() as connection:
            state = load_state(connection, run_id)
    changed = bool(overrides) or any(value is not None for value in named.values())
    if state is not None and state.status == Status.COMPLETED and not changed:
        raise UserError(
            code="run-completed",
            what="The run is completed, and going on with it would do nothing new.",
            value=run_id,
            next_step="Say what is new, such as --set config.steps=2000, or begin another run.",
        )
    return resume_run(
        place,
        run_id,
        engine=LocalEngine(),
        display=display,
        override=(lambda resolved: override_spec(resolved, overrides, named)) if changed else None,
    )


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise click.UsageError("The current folder has been removed. Go to another one first.") from None


def find_spec(path: Path) -> Path:
    """Return the spec's file.

    Raises:
        UserError: `spec-not-found`.
    """
    file = path / JOB_FILE if path.is_dir() else path
    if file.is_file():
        return file
    what = f"The folder has no {JOB_FILE}." if path.is_dir() else "There is no such file or folder."
    raise UserError(
        code="spec-not-found",
        what=what,
        value=str(path),
        next_step=f"Give a job spec, a folder with {JOB_FILE}, or a command: gscalar run -- python train.py",
    )


def _read(file: Path) -> bytes:
    if file.suffix == ".py":
        raise UserError(
            code="spec-not-found",
            what="A Python script is no job spec.",
            value=str(file),
            next_step=f"To run it: gscalar run -- python {shlex.quote(str(file))}",
        )
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            code="spec-not-found",
            what=f"The job spec cannot be read: {error.strerror}.",
            value=str(file),
            next_step="Look at the file's permissions.",
        ) from error
