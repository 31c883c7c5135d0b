"""What a run's workers wrote to stdout and stderr, as the supervisor kept it: whole lines, in each worker's order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError
from gscalar.control.output import OutputTail
from gscalar.state.home import Home, RunFolder

_ATTEMPT: Final = re.compile(r"a(\d+)")
_RANK: Final = re.compile(r"rank-(\d+)\.log")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of one worker, without its end."""

    attempt: int
    rank: int
    text: str


def read_logs(
    home: Home,
    run_id: str,
    *,
    attempt: int | None = None,
    rank: int | None = None,
    wait: Callable[[], bool] | None = None,
) -> Iterator[LogLine]:
    """Yield the lines of the newest attempt, or of one attempt, or of one rank.

    With `wait` the logs are followed: it is called when there is nothing new, waits a little, and returns
    whether the run is still going. Later attempts follow too, unless one is named.

    Raises:
        UserError: `no-logs`, nothing is there that could be read.
    """
    folder = home.run(run_id)
    tails: dict[Path, tuple[int, int, OutputTail]] = {}
    first = newest_attempt(folder) if attempt is None else attempt
    going = True
    while True:
        for found_attempt, found_rank, path in find_logs(folder):
            wanted = found_attempt == attempt if attempt is not None else found_attempt >= (first or 0)
            if wanted and rank in (None, found_rank) and path not in tails:
                tails[path] = (found_attempt, found_rank, OutputTail(path))
        if not tails and (wait is None or not going):
            raise _no_logs(folder, run_id, attempt, rank)
        new = False
        for found_attempt, found_rank, tail in tails.values():
            for text in _lines(tail, last=wait is None or not going):
                new = True
                yield LogLine(attempt=found_attempt, rank=found_rank, text=text)
        if wait is None or not going:
            return
        if not new:
            # What was written before the end is read once more after it.
            going = wait()


def _lines(tail: OutputTail, *, last: bool) -> Iterator[str]:
    """Yield the lines that have become whole; with `last`, what is left without an end too."""
    while lines := tail.poll():
        yield from lines
    if last:
        yield from tail.rest()


def find_logs(folder: RunFolder) -> list[tuple[int, int, Path]]:
    """Return attempt, rank and path of each log, in this order."""
    found = []
    for path in folder.logs.glob("a*/rank-*.log"):
        attempt, rank = _ATTEMPT.fullmatch(path.parent.name), _RANK.fullmatch(path.name)
        if attempt and rank:
            found.append((int(attempt[1]), int(rank[1]), path))
    return sorted(found)


def newest_attempt(folder: RunFolder) -> int | None:
    """Return the newest attempt that has logs."""
    return max((attempt for attempt, _, _ in find_logs(folder)), default=None)


def _no_logs(folder: RunFolder, run_id: str, attempt: int | None, rank: int | None) -> UserError:
    present = find_logs(folder)
    if not present:
        return UserError(
            code="no-logs",
            what="The run has no captured output: its workers were not started by `gscalar run`, or not yet.",
            value=run_id,
            next_step="Look where the script was started; `gscalar show` has its metrics and failures.",
        )
    attempts = sorted({each[0] for each in present})
    ranks = sorted({each[1] for each in present if attempt in (None, each[0])})
    asked = ", ".join(
        f"{name} {number}" for name, number in (("attempt", attempt), ("rank", rank)) if number is not None
    )
    return UserError(
        code="no-logs",
        what="The run has no output of this attempt or rank.",
        value=asked,
        next_step=f"It has attempts {_span(attempts)}" + (f" and ranks {_span(ranks)}." if ranks else "."),
    )


def _span(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
