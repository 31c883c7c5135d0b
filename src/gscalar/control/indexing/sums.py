"""Folds step accounts and hardware samples into sums.

A worker writes the accounts of every step, so an interpreted step for each would show in the indexer's cost: they
are joined, and each account is a strided slice that is summed at once. The sum goes value by value in the
order of the file (and not pairwise or compensated), so that reading piece by piece gives what reading at once gives.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

import msgspec

from gscalar.model.accounts import ACCOUNTS


class Usage(msgspec.Struct, array_like=True):
    """What the samples of one counter come to; NaN counts in none of it."""

    count: int = 0
    total: float = 0.0
    greatest: float = -math.inf
    last: float = math.nan


def add_accounts(sums_s: Sequence[float], packed: Iterable[bytes]) -> list[float]:
    """Return the sums with the accounts of more steps added, in the order of `ACCOUNTS`."""
    sums = [*sums_s, *[0.0] * (len(ACCOUNTS) - len(sums_s))]
    for num_bytes, rows in groupby(packed, key=len):
        # A writer of another version may know fewer accounts, or more.
        num = num_bytes // 8
        values = array("d", b"".join([row[: 8 * num] for row in rows]))
        if sys.byteorder == "big":
            values.byteswap()
        for place in range(min(num, len(sums))):
            sums[place] = deque(accumulate(values[place::num], initial=sums[place]), maxlen=1)[0]
    return sums


def add_usage(usages: dict[str, Usage], names: Sequence[str], packed: bytes) -> None:
    """Add one sample of some counters."""
    for name, value in zip(names, struct.unpack(f"<{len(names)}d", packed), strict=True):
        if value != value:
            continue
        usage = usages.setdefault(name, Usage())
        usage.count += 1
        usage.total += value
        usage.greatest = max(usage.greatest, value)
        usage.last = value


def join_usage(first: Usage, later: Usage) -> Usage:
    """Return the usage of these samples followed by later ones."""
    return Usage(
        first.count + later.count,
        first.total + later.total,
        max(first.greatest, later.greatest),
        later.last if later.count else first.last,
    )
