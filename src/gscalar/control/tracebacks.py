"""Finding the exception in what a Python program printed last.

For workers that end before, or without, `gscalar.init`: their record holds no failure, but their
log ends with a traceback. Understood are chained exceptions ("During handling ..."), exception
groups, syntax errors of the script itself (which have no "Traceback" line), and the `[rank0]: ` that
torch puts before each line once a process group exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_HEADER: Final = re.compile(r"(  \+ Exception Group )?Traceback \(most recent call last\):$")
_RANK_PREFIX: Final = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_EXCEPTION: Final = re.compile(r"(?:  \| )?([A-Za-z_][\w.]*)(?:: (.*))?$")
_BARE_FILE: Final = re.compile(r'  File "[^"]+", line \d+$')
_LINKS: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_MAX_LINES: Final = 200
_MAX_LINES_AFTER: Final = 30  # of a message that goes on


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundError:
    """An exception as Python printed it. `kind` is the type's name without its module."""

    kind: str
    message: str
    traceback: str


def find_error(text: str) -> FoundError | None:
    """Return the last exception in the text, with the chain it ends, or None."""
    lines = _RANK_PREFIX.sub("", text).splitlines()
    headers = [place for place, line in enumerate(lines) if _HEADER.match(line)]
    start = headers[-1] if headers else _bare_start(lines)
    if start is None:
        return None
    end = _exception_line(lines, start + 1)
    if end is None:
        return None
    match = _EXCEPTION.match(lines[end])
    assert match is not None
    first = _chain_start(lines, headers, start)
    kept = lines[first : end + 1 + _MAX_LINES_AFTER][-_MAX_LINES:]
    return FoundError(
        kind=match[1].rpartition(".")[2], message=match[2] or "", traceback="\n".join(kept).rstrip() + "\n"
    )


def last_lines(text: str, count: int = 15) -> str:
    """Return the last lines of a log that are not blank, for where there is no traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def _bare_start(lines: list[str]) -> int | None:
    places = [place for place, line in enumerate(lines) if _BARE_FILE.match(line)]
    return places[-1] if places else None


def _exception_line(lines: list[str], start: int) -> int | None:
    for place in range(start, len(lines)):
        line = lines[place]
        if line.strip() and (not line.startswith(" ") or line.startswith("  | ")) and _EXCEPTION.match(line):
            # Inside a group every line has the bar; the frames are indented further.
            if line.startswith("  |   "):
                continue
            return place
    return None


def _chain_start(lines: list[str], headers: list[int], start: int) -> int:
    """Walk back over "During handling of the above exception" to the first of the chain."""
    for header in reversed(headers[:-1]):
        between = [line.strip() for line in lines[header:start]]
        if not any(between[-back] in _LINKS for back in range(1, min(4, len(between)) + 1)):
            break
        start = header
    return start
