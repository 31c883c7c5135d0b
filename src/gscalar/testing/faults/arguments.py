"""The words of `python -m gscalar.testing.faults`: a fault, then what is said about it, then the next fault.

    RUN --kill 1 --at-step 20 --slow any --factor 2 --after 5-30 --for 60

`--kill`, `--stop` and so on each begin a fault; the options that follow are about it, until the next one begins.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gscalar.testing.faults.plan import (
    AfterS,
    AtStep,
    BetweenS,
    BetweenSteps,
    Corrupt,
    Delay,
    Fault,
    FaultPlan,
    FillDisk,
    Kill,
    Slow,
    SlowLoader,
    Stop,
    Trigger,
)

# What begins a fault: how it is made, and which word its own value is.
_KINDS: Final[dict[str, tuple[Callable[..., Fault], str]]] = {
    "kill": (Kill, "target"),
    "stop": (Stop, "rank"),
    "slow": (Slow, "rank"),
    "delay": (Delay, "rank"),
    "slow_loader": (SlowLoader, "rank"),
    "fill_disk": (FillDisk, "path"),
    "corrupt": (Corrupt, "file"),
}
_EPILOG: Final = """\
Each of --kill, --stop, --slow, --delay, --slow-loader, --fill-disk and --corrupt begins a fault, and the options after
it are about that fault. A RANK of `any` is drawn from the seed, and so is a step or second between two, as in
--at-step 10-50. Without --at-step and --after, a fault begins at once. What was done is printed as one JSON object a
line."""


class _Word(argparse.Action):
    """Keeps options in the order in which they were given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        value = self.const if self.nargs == 0 else values
        namespace.words = [*namespace.words, (option_string, self.dest, value)]


def parse_arguments(words: Sequence[str] | None = None) -> tuple[argparse.Namespace, FaultPlan]:
    """Return the options (run, home, seed) and the plan; leaves with exit code 2 where they make no sense."""
    parser = _parser()
    options = parser.parse_args(words)
    faults: list[tuple[str, dict[str, Any]]] = []
    for option, name, value in options.words:
        if name in _KINDS:
            faults.append((name, {_KINDS[name][1]: value, "when": AfterS(0.0)}))
        elif not faults:
            parser.error(f"{option} is about no fault: begin with one, such as --kill 1")
        else:
            faults[-1][1][name] = value
    if not faults:
        parser.error("give at least one fault, such as --kill 1 --at-step 20")
    return options, FaultPlan(tuple(_make(parser, *each) for each in faults), options.seed)


def _make(parser: argparse.ArgumentParser, name: str, values: dict[str, Any]) -> Fault:
    try:
        return _KINDS[name][0](**values)
    except TypeError as error:
        option = f"--{name.replace('_', '-')}"
        parser.error(f"{option}: {str(error).partition('() ')[2] or error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gscalar.testing.faults",
        description="Inject faults into a run that goes on, to see what it, or a diagnosis, makes of them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(words=[])
    parser.add_argument("run", metavar="RUN", help="id, unique prefix of one, or name (the newest)")
    parser.add_argument("--home", metavar="DIR", help="where the run lives (default: GSCALAR_HOME or ~/.gscalar)")
    parser.add_argument("--seed", type=int, default=0, help="decides what is left open (default: 0)")

    def word(group: Any, option: str, help_text: str, **settings: Any) -> None:
        group.add_argument(option, action=_Word, help=help_text, default=argparse.SUPPRESS, **settings)

    kinds = parser.add_argument_group("faults")
    word(kinds, "--kill", "SIGKILL for a rank, `supervisor` or `all`", metavar="RANK", type=_target)
    word(kinds, "--stop", "SIGSTOP for a rank, then SIGCONT; needs --for", metavar="RANK", type=_rank)
    word(kinds, "--slow", "divide a rank's speed; needs --factor", metavar="RANK", type=_rank)
    word(kinds, "--delay", "hold a rank after its steps; needs --seconds", metavar="RANK", type=_rank)
    word(kinds, "--slow-loader", "divide the speed of a rank's DataLoader processes", metavar="RANK", type=_rank)
    word(kinds, "--fill-disk", "fill the file system mounted at PATH", metavar="PATH", type=Path)
    word(kinds, "--corrupt", "damage a file, named from the run's folder; needs --how", metavar="FILE")
    about = parser.add_argument_group("about the fault before")
    word(about, "--at-step", "begin when the rank has done this step", metavar="N[-M]", type=_steps, dest="when")
    word(about, "--after", "begin so many seconds from now", metavar="S[-T]", type=_seconds, dest="when")
    word(about, "--for", "end after so many seconds (default: with the run)", metavar="S", type=float, dest="for_s")
    word(about, "--factor", "divide the speed by this", metavar="F", type=float)
    word(about, "--seconds", "how long a delay holds", metavar="S", type=float, dest="delay_s")
    word(about, "--every", "delay after every so many steps", metavar="N", type=int, dest="every_steps")
    word(about, "--children", "a stop is for what the rank has started too", nargs=0, const=True)
    word(about, "--no-children", "a slow rank's children are not", nargs=0, const=False, dest="children")
    word(about, "--how", "flip, truncate or zero", choices=("flip", "truncate", "zero"))
    word(about, "--bytes", "how many bytes are damaged", metavar="N", type=int, dest="num_bytes")
    word(about, "--leave", "how many bytes stay free", metavar="N", type=int, dest="leave_bytes")
    return parser


def _rank(word: str) -> int | None:
    return None if word == "any" else int(word)


def _target(word: str) -> int | str | None:
    return word if word in ("supervisor", "all") else _rank(word)


def _steps(word: str) -> Trigger:
    first, dash, last = word.partition("-")
    return BetweenSteps(int(first), int(last)) if dash else AtStep(int(first))


def _seconds(word: str) -> Trigger:
    first, dash, last = word.partition("-")
    return BetweenS(float(first), float(last)) if dash else AfterS(float(first))
