"""One of two processes that compare their clocks over UDP; rank 1's clock is set as OFFSETS says.

OFFSETS: seconds by which rank 1's clock is ahead of this host's, one after the other; it goes to the next one
once the one before was estimated. Rank 1 prints its `Clock` events and its notes as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping

from gscalar.model.events import Clock, Event, Note
from gscalar.runtime.clock_sync import start_clock_sync
from gscalar.runtime.launch import read_launch
from gscalar.testing.processes import wait_until
from gscalar.testing.toy import ToyGroup


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def log(self, step: int, time_ns: int, values: Mapping[str, float]) -> None:
        raise AssertionError

    def sample(self, time_ns: int, rank: int, values: Mapping[str, float]) -> None:
        raise AssertionError

    def seal(self, reason: str) -> None:
        raise AssertionError


offsets = [float(word) for word in os.environ["OFFSETS"].split()]
ahead_s = [offsets[0]]
launch, sink = read_launch(os.environ), Kept()
group = ToyGroup(launch, 60.0)
stop = start_clock_sync(
    group,
    launch,
    sink,
    now_ns=lambda: time.time_ns() + (round(ahead_s[0] * 1e9) if launch.rank == 1 else 0),
    every_s=0.05,
)
if launch.rank == 1:
    for place, offset in enumerate(offsets):
        ahead_s[0] = offset
        wait_until(lambda place=place: len(sink.events) > place, 60.0, f"an estimate of {offset}")
group.start_sum([1.0])()
stop()
num_events = len(sink.events)
time.sleep(0.2)
assert len(sink.events) == num_events, "written after the stop"
group.close()
clocks = [[event.offset_s, event.bound_s, event.num_pings] for event in sink.events if isinstance(event, Clock)]
notes = [event.text for event in sink.events if isinstance(event, Note)]
json.dump({"rank": launch.rank, "clocks": clocks, "notes": notes}, sys.stdout)
