"""Verbs and flags are frozen: scripts depend on them, and a flag is easier to add than to take away.

To change them on purpose, write the file anew and read its difference:

    .venv/bin/python tests/architecture/test_cli_surface.py > tests/architecture/cli_surface.txt
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gscalar.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("cli_surface.txt")
# Verbs that only read, each of which has --json.
READS = ("runs", "show", "metrics", "compare", "diagnose", "whatif", "scaling", "logs", "doctor")


def surface(command: click.Command, name: str = "gscalar") -> Iterator[str]:
    """Yield a line for each command: its name, arguments and flags."""
    arguments = [each.make_metavar(click.Context(command)) for each in command.params if is_argument(each)]
    flags = sorted(flag for each in command.params if not is_argument(each) for flag in long_names(each))
    yield " ".join([name, *arguments, *flags])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in sorted(command.list_commands(context)):
            child = command.get_command(context, verb)
            assert child is not None, f"{name} lists {verb} and cannot load it"
            yield from surface(child, f"{name} {verb}")


def is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def long_names(option: click.Parameter) -> list[str]:
    return ["/".join([*option.opts, *option.secondary_opts])]


def test_verbs_and_flags_are_the_frozen_ones() -> None:
    got, want = list(surface(cli)), FROZEN.read_text().splitlines()
    assert got == want, "verbs or flags changed; see the docstring of this test"


def verbs() -> list[str]:
    return cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_documented(verb: str) -> None:
    assert f"\n## gscalar {verb}\n" in (ROOT / "docs/commands.md").read_text()


@pytest.mark.parametrize("verb", [verb for verb in READS if verb in verbs()])
def test_every_reading_verb_has_json(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert any("--json" in each.opts for each in command.params)


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help_and_every_option_says_what_it_does(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert command.help
    mute = [each.name for each in command.params if isinstance(each, click.Option) and not each.help]
    assert not mute


if __name__ == "__main__":
    print("\n".join(surface(cli)))
