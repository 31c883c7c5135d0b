"""Slurm's short forms written out: `node[01-03,7]` is four hosts, `2(x3),1` is four task counts.

The grammar is that of scontrol(1) `show hostnames` and of srun(1) SLURM_TASKS_PER_NODE.
"""

from __future__ import annotations

import itertools
import re

from gscalar.base.errors import EnvironmentProblem

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a Slurm node list in order; numbers keep their leading zeros.

    Raises:
        EnvironmentProblem: `launcher-unclear`.
    """
    return [host for name in _split(text) for host in _expand_name(name, text)]


def expand_task_counts(text: str) -> list[int]:
    """Return the number of tasks of each node.

    Raises:
        EnvironmentProblem: `launcher-unclear`.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise _unreadable("task counts", text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    return [name for name in re.split(r",(?![^\[]*\])", text.strip()) if name]


def _expand_name(name: str, text: str) -> list[str]:
    # Literal parts and bracket contents take turns: "a[1-2]b[3]" is a, 1-2, b, 3, "".
    parts = _BRACKETS.split(name)
    if any(mark in part for part in parts for mark in "[]"):
        raise _unreadable("node list", text)
    choices = [_numbers(part, text) if at % 2 else [part] for at, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _unreadable("node list", text)
        first, last = match[1], match[2] or match[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _unreadable(what: str, text: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        code="launcher-unclear",
        what=f"Slurm's {what} cannot be read.",
        value=text,
        next_step="Set MASTER_ADDR and MASTER_PORT, and RANK and WORLD_SIZE for each process.",
    )
