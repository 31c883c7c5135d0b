"""Which ranges that a script marked are its steps, and which its waits for a batch, by their names.

NVTX has no word for a step, so the list below is conservative: a step that is not found is said to be unknown, and
one that is none would make all figures wrong. Ranges count as steps where one thread has at least two of one name (or
of one name and numbers) and they do not overlap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from gscalar.importers.device_trace import Windows
from gscalar.importers.layers import Intervals

_NO_NUMBER: Final = -1
_WAIT: Final = ""  # the family of a wait for a batch
_NUMBER: Final = r"[ _:#=\[(-]*(?P<number>\d+)?[\])]?"
# Names of ranges that are one step each. Parts of a step ("optimizer_step", "forward") are not, and neither is what may
# be a micro-batch ("batch" without a number).
_STEP_NAMES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:(?:profiler|global|train|training)[ _-]?)?(?:step|iteration|iter){_NUMBER}",
        rf"(?:train|training)[ _-]?batch{_NUMBER}",
        r"batch[ _:#=-]*(?P<number>\d+)",
    )
)
_WAIT_NAMES: Final = re.compile(
    r"enumerate\(DataLoader\)\S*__next__|data[ _-]?load(?:ing|er)?|data[ _-]?wait"
    r"|(?:get|next|load|fetch)[ _-](?:the[ _-])?(?:next[ _-])?(?:batch|data)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Range:
    """A marked range of one thread; `family` is the name of a step without its number, and empty for a wait."""

    start_ns: int
    end_ns: int
    thread: int
    family: str
    number: int = _NO_NUMBER


def recognised(text: str) -> tuple[str, int] | None:
    """Return the family and the number of a step (-1: without one) or a wait for a batch; None of anything else."""
    text = text.strip()
    for pattern in _STEP_NAMES:
        match = pattern.fullmatch(text)
        if match and match["number"] is not None:
            return text[: match.start("number")], int(match["number"])
        if match:
            return text, _NO_NUMBER
    return (_WAIT, _NO_NUMBER) if _WAIT_NAMES.fullmatch(text) else None


def marked(of_rank: Sequence[Sequence[Range]], origin_ns: int) -> tuple[list[Windows], list[list[Intervals]], str]:
    """Return the steps and the waits for batches of each rank, and why there are no steps where there are none.

    Ranges are sorted by start. Waits are those of the thread that steps, if there are steps: loaders' own threads wait
    for nothing of a step.
    """
    steps, waits, reasons = [], [], []
    for ranges in of_rank:
        chosen, reason = choose_steps([each for each in ranges if each.family != _WAIT])
        reasons.append(reason)
        threads = {each.thread for each in chosen.values()}
        waited = [each for each in ranges if each.family == _WAIT and (not threads or each.thread in threads)]
        steps.append(Windows.of({number: _seconds(each, origin_ns) for number, each in chosen.items()}))
        places = np.array([_seconds(each, origin_ns) for each in waited]).reshape(-1, 2)
        waits.append([(places[:, 0], places[:, 1])] if waited else [])
    return steps, waits, "" if any(each.numbers.size for each in steps) else next(iter(reasons), "")


def choose_steps(ranges: Sequence[Range]) -> tuple[dict[int, Range], str]:
    """Return a rank's steps by number: those of the thread and family that has most of them; none with the reason.

    They have the numbers of their names where each has its own, else those of their order.
    """
    families: dict[tuple[int, str], list[Range]] = {}
    for each in ranges:
        families.setdefault((each.thread, each.family), []).append(each)
    if not families:
        return {}, "no range of NVTX is named like a step"
    candidates = sorted(families.values(), key=len, reverse=True)
    if len(candidates[0]) < 2:
        return {}, f"only one range of NVTX is named like a step ({candidates[0][0].family!r})"
    for family in candidates:
        if len(family) > 1 and all(before.end_ns <= after.start_ns for before, after in pairwise(family)):
            numbers = {each.number for each in family}
            own = len(numbers) == len(family) and _NO_NUMBER not in numbers
            return {each.number if own else at: each for at, each in enumerate(family)}, ""
    return {}, f"ranges of NVTX that are named like a step overlap ({candidates[0][0].family!r})"


def _seconds(range_: Range, origin_ns: int) -> tuple[float, float]:
    return (range_.start_ns - origin_ns) / 1e9, (range_.end_ns - origin_ns) / 1e9
