"""What the accounts of steps, the hardware samples and the clocks of a run come to.

    mean   over ranks, of each rank's mean
    max    over ranks, of each rank's mean

The means are of the newest attempt that has measured any, as throughput is, and without its first step, which
warms up. Hardware samples are few, and are of all attempts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gscalar.control.indexing.readings import FileReading, Readings, Workers
from gscalar.control.indexing.sums import Usage, join_usage
from gscalar.model.accounts import ACCOUNTS
from gscalar.observation.slowest import find_slowest


def accounts(ranks: Mapping[int, FileReading]) -> dict[str, dict[str, float]] | None:
    """Return mean and max of each account in seconds a step; None where no step carries any."""
    means = [[total / each.num_accounted for total in each.accounts_s] for each in ranks.values()]
    if not means:
        return None
    found = {}
    for place, name in enumerate(ACCOUNTS):
        values = [row[place] for row in means]
        found[name] = {"mean": math.fsum(values) / len(values), "max": max(values)}
    return found


def slowest(ranks: Mapping[int, FileReading]) -> dict[str, float] | None:
    """Return the rank that the others wait for, as `gscalar.observation.slowest` finds it; None where there is none."""
    exposed = list(ACCOUNTS).index("exposed_communication")
    busy_s = {
        rank: (math.fsum(each.accounts_s) - each.accounts_s[exposed]) / each.num_accounted
        for rank, each in ranks.items()
    }
    found = find_slowest(busy_s)
    return None if found is None else {"rank": found.rank, "busy_s": found.busy_s, "median_s": found.median_s}


def newest_accounted(workers: Workers) -> dict[int, FileReading]:
    """Return the ranks of the newest attempt whose steps carry accounts; empty where none does."""
    for ranks in reversed(workers.values()):
        found = {rank: each for rank, each in ranks.items() if each.num_accounted}
        if found:
            return found
    return {}


def hardware(readings: Readings) -> dict[str, Any] | None:
    """Return mean, max and last of each counter, of the host and of each worker; None where none was sampled."""
    merged: dict[int, dict[str, Usage]] = {}
    for reading in sorted(readings.values(), key=lambda each: each.last_time_ns):
        for rank, usages in reading.hardware.items():
            known = merged.setdefault(rank, {})
            for name, usage in usages.items():
                known[name] = join_usage(known.get(name, Usage()), usage)
    if not merged:
        return None
    told = {rank: {name: _told(usages[name]) for name in sorted(usages)} for rank, usages in sorted(merged.items())}
    return {"host": told.pop(-1, {}), "workers": {str(rank): usages for rank, usages in told.items()}}


def clocks(ranks: Mapping[int, FileReading]) -> dict[str, Any]:
    """Return how each rank's clock stands to rank 0's, by rank; a rank of which nobody knows is left out.

    Without a measurement, ranks on one host have one clock.
    """
    hosts = {rank: each.header.host for rank, each in ranks.items()}
    found = {}
    for rank, each in ranks.items():
        clock = each.clock
        if clock is not None:
            found[str(rank)] = {
                "offset_s": clock.offset_s,
                "drift": clock.drift,
                "bound_s": clock.bound_s,
                "time_ns": clock.time_ns,
            }
        elif hosts[rank] and hosts[rank] == hosts.get(0):
            found[str(rank)] = {"offset_s": 0.0, "drift": 0.0, "bound_s": 0.0, "time_ns": each.header.time_ns}
    return found


def _told(usage: Usage) -> dict[str, float]:
    return {"mean": usage.total / usage.count, "max": usage.greatest, "last": usage.last}
