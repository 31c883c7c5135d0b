"""How `gscalar run` looks: a live line on a terminal, a plain line now and then elsewhere.

Rank 0's lines are data and go to stdout (on a terminal above the live line); all else goes to
stderr. A reader that has gone (a closed pipe or terminal) ends the display and not the training.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from gscalar.base.units import format_count, format_duration
from gscalar.control.display import Notice
from gscalar.control.progress import Progress, Shares

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLAIN_EVERY_S: Final = 5.0
_LIVE_EVERY_S: Final = 0.25


def open_display(out: TextIO | None = None, err: TextIO | None = None) -> PlainDisplay | LiveDisplay:
    """Return the display for this process's streams."""
    out, err = out or sys.stdout, err or sys.stderr
    if err.isatty() and os.environ.get("TERM", "") != "dumb":
        return LiveDisplay(out, err)
    return PlainDisplay(out, err)


def describe(progress: Progress) -> str:
    """Return the figures as one line: `step 120/400 · 7.81 steps/s · ... · 36.2 s to go`."""
    if not progress.step:
        return progress.phase
    of = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = [f"step {progress.step}{of}"]
    if progress.phase not in ("training", "finished"):
        parts.append(progress.phase)
    if progress.steps_per_s is not None:
        parts.append(f"{_rate(progress.steps_per_s)} steps/s")
    if progress.tokens_per_s is not None:
        parts.append(f"{format_count(progress.tokens_per_s)} tokens/s")
    elif progress.samples_per_s is not None:
        parts.append(f"{format_count(progress.samples_per_s)} samples/s")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.lr is not None:
        parts.append(f"lr {progress.lr:.2e}")
    if progress.eta_s:
        parts.append(f"{format_duration(progress.eta_s)} to go")
    return " · ".join(parts)


def describe_shares(shares: Shares) -> str:
    """Return where the time of a step goes: `data 3 % · compute 71 % · exposed communication 18 % · ...`."""
    parts = [
        f"data {shares.data:.0%}",
        f"compute {shares.compute:.0%}",
        f"exposed communication {shares.exposed_communication:.0%}",
    ]
    if shares.slowest_rank is not None:
        parts.append(f"slowest: rank {shares.slowest_rank}")
    return " · ".join(parts).replace("%", " %")


class PlainDisplay:
    """Lines for files, pipes and dumb terminals. Implements `gscalar.control.display.Display`."""

    def __init__(self, out: TextIO, err: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out: TextIO | None = out
        self._err: TextIO | None = err
        self._clock = clock
        self._said_s = clock()
        self._said = ""

    def progress(self, progress: Progress) -> None:
        """Say the figures every few seconds, if they have changed."""
        now_s = self._clock()
        if now_s - self._said_s < _PLAIN_EVERY_S:
            return
        self._said_s = now_s
        line = describe(progress)
        if progress.shares is not None:
            line += f" · {describe_shares(progress.shares)}"
        if line != self._said:
            self._said = line
            self._say(line)

    def output(self, lines: Sequence[str]) -> None:
        """Pass rank 0's lines on."""
        if self._out is not None and not _write(self._out, "".join(f"{line}\n" for line in lines)):
            self._out = None

    def notice(self, notice: Notice) -> None:
        """Say what happened."""
        mark = {"info": "", "warning": "warning: ", "failure": ""}[notice.level]
        detail = f"\n{notice.detail.rstrip()}" if notice.detail else ""
        self._say(f"gscalar: {mark}{notice.text}{detail}")

    def close(self) -> None:
        """Nothing is left to do."""

    def _say(self, text: str) -> None:
        if self._err is not None and not _write(self._err, f"{text}\n"):
            self._err = None


class LiveDisplay:
    """Two lines at the foot of a terminal. Implements `gscalar.control.display.Display`."""

    def __init__(self, out: TextIO, err: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._drawn_s = -_LIVE_EVERY_S
        self._plain = PlainDisplay(out, err, clock)
        self._out_is_terminal = out.isatty()
        self._console = Console(file=err, highlight=False, markup=False, emoji=False)
        # No thread: it is drawn when there are new figures.
        self._live: Live | None = Live(console=self._console, auto_refresh=False, transient=True)
        self._guard(lambda live: live.start())

    def progress(self, progress: Progress) -> None:
        """Draw the line anew, a few times a second."""
        now_s = self._clock()
        if now_s - self._drawn_s >= _LIVE_EVERY_S:
            self._drawn_s = now_s
            self._guard(lambda live: live.update(_line(progress), refresh=True))

    def output(self, lines: Sequence[str]) -> None:
        """Print rank 0's lines above the line, or to where stdout goes."""
        if not self._out_is_terminal:
            self._plain.output(lines)
        else:
            self._guard(lambda live: live.console.print("\n".join(lines), soft_wrap=True))

    def notice(self, notice: Notice) -> None:
        """Print what happened above the line."""
        from rich.text import Text

        # A style given to print() would colour the live line too.
        told = Text(notice.text, style={"info": "cyan", "warning": "yellow", "failure": "red"}[notice.level])
        if notice.detail:
            told.append(f"\n{notice.detail.rstrip()}", style="dim")
        self._guard(lambda live: live.console.print(told, soft_wrap=True))

    def close(self) -> None:
        """Take the line away."""
        self._guard(lambda live: live.stop())
        self._live = None

    def _guard(self, draw: Callable[..., None]) -> None:
        if self._live is None:
            return
        try:
            draw(self._live)
        except (OSError, ValueError):
            self._live = None


def _line(progress: Progress) -> RenderableType:
    """Return what stands at the foot: a bar where the length is known, the figures, and where a step's time goes."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    first: RenderableType = Text(describe(progress), no_wrap=True, overflow="ellipsis")
    if progress.total_steps:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=progress.total_steps, completed=progress.step, width=20), first)
        first = grid
    if progress.shares is None:
        return first
    return Group(first, Text(describe_shares(progress.shares), style="dim", no_wrap=True, overflow="ellipsis"))


def _rate(per_s: float) -> str:
    return f"{per_s:.2f}" if per_s < 100 else format_count(per_s)


def _write(stream: TextIO, text: str) -> bool:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        # The reader has gone. What is still in the buffer must not fail again at the interpreter's end.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
