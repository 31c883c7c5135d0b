"""The root of the command line: which verbs there are, and how an error becomes an exit code.

A verb's module is imported when the verb is used, so `gscalar --help` stays fast.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

from gscalar.base.errors import ScalarError
from gscalar.base.version import __version__
from gscalar.cli.streams import drop_output, open_streams
from gscalar.model.status import Exit

VERBS: Final[dict[str, str]] = {
    "run": "Train: launch a job's workers, record them, restart them after failures.",
    "cancel": "Stop a run at its next step border, with a checkpoint.",
    "runs": "List runs.",
    "show": "Show one run: values, attempts, metrics, checkpoints, digests.",
    "metrics": "Show what runs measured: tables, charts, all points.",
    "compare": "Compare runs: configuration, metrics, where the time went, the first step that differs.",
    "diagnose": "Say what holds a training back, of a run or of traces, and what each fix is worth.",
    "whatif": "Predict the step with some fixes, more workers, another link or batch.",
    "scaling": "Predict a run's step, speed and efficiency on other numbers of workers.",
    "logs": "Print what a run's workers wrote.",
    "tag": "Set or remove tags of a run.",
    "delete": "Delete a run and free its disk.",
    "doctor": "Say what this machine has and lacks, and repair the catalog.",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"gscalar.cli.cmd_{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS:
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The default imports every verb for its help line.
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gscalar")
def cli() -> None:
    """Run, record, resume and explain model training, from a laptop to a cluster."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if argv is None:
        open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_text(words)
        code = cli.main(args=words, prog_name="gscalar", standalone_mode=False)
    except ScalarError as error:
        if _debug(argv):
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except OSError as error:
        return _fail_on_system(error, debug=_debug(argv))
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return int(code) if isinstance(code, int) else Exit.DONE


def _check_text(words: Sequence[str]) -> None:
    """Refuse bytes that are no UTF-8: neither a record nor the catalog can hold them."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"An argument is not UTF-8 text: {word!r}") from None


def _fail_on_system(error: OSError, *, debug: bool) -> int:
    """Say what the system refused, such as a write to a full disk that stdout goes to."""
    if debug:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        click.echo(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
    if error.errno == errno.ENOSPC:
        drop_output()
    return Exit.ENVIRONMENT


def _debug(argv: Sequence[str] | None) -> bool:
    return "--debug" in (sys.argv if argv is None else argv)
