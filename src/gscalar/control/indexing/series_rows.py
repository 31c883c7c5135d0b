"""What the events of one record file add to the run's series.

`Points` are metrics of the file's rank. A `Step` stands for metrics (`step_columns` says which) and has the accounts
of its time. `Hardware` names its own rank, and has a time and no step: it is stored with step -1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, cast

from gscalar.control.indexing.readings import FileReading
from gscalar.model import events
from gscalar.model.accounts import ACCOUNTS
from gscalar.state.records.reader import Damage, Frame
from gscalar.state.series.types import NewRows, SeriesKey, Source

NO_STEP: Final = -1
_STEP_FIXED: Final = struct.Struct("<3d").pack
_RATE: Final = struct.Struct("<d").pack
_INT64: Final = range(-(2**63), 2**63)


def collect(reading: FileReading, items: Iterable[Frame | Damage]) -> list[NewRows]:
    """Take the next items of a file, in order: return their rows, and keep in `reading` what later ones need.

    Of the reading that is who writes the file, its attempts, names and what `find_cuts` asks for.
    """
    batch = _Batch(reading)
    for item in items:
        if isinstance(item, Damage):
            continue
        event = item.event
        kind = type(event)
        # Nearly all events are one of the first two.
        if kind is events.Points:
            batch.add_points(cast("events.Points", event))
        elif kind is events.Step:
            batch.add_step(cast("events.Step", event))
        elif kind is events.Hardware:
            batch.add_hardware(cast("events.Hardware", event))
        elif kind is events.Names:
            names = cast("events.Names", event)
            if reading.names.get(names.names_id) != names.names:
                batch.forget_sets()
            reading.names[names.names_id] = names.names
        elif kind is events.Header:
            # Another process may go on with a file that exists; it counts its names anew.
            reading.header = cast("events.Header", event)
            reading.names.clear()
            batch.forget_sets()
        elif kind is events.AttemptStarted:
            reading.launches = [cast("events.AttemptStarted", event)]
            batch.forget_sets()
        elif kind is events.Resumed:
            reading.resumed = cast("events.Resumed", event)
        elif kind is events.Finished:
            reading.finished = cast("events.Finished", event)
    return list(batch.groups.values())


class _Batch:
    """The rows of one batch of a file, by attempt and source."""

    def __init__(self, reading: FileReading) -> None:
        self.groups: dict[tuple[int, Source], NewRows] = {}
        self._reading = reading
        # Which set of its group a row has, by what tells it apart in the file: (group, id of the names, rank).
        self._sets: dict[tuple[int, ...], tuple[NewRows, int, int]] = {}

    def forget_sets(self) -> None:
        """Look up again which set a row has, since the attempt, the rank or the names are not what they were."""
        self._sets.clear()

    def add_points(self, event: events.Points) -> None:
        """Take one `log` call; its names may have been lost to damage."""
        reading = self._reading
        found = self._sets.get((Source.LOG, event.names_id))
        if found is None:
            names = reading.names.get(event.names_id)
            if names is None:
                return
            keys = tuple([SeriesKey("metric", name, reading.header.rank) for name in names])
            found = self._sets[Source.LOG, event.names_id] = self._find_set(Source.LOG, keys)
        _append(found, event.step, event.time_ns, event.values)

    def add_step(self, event: events.Step) -> None:
        """Take what an optimizer step stands for, and its accounts."""
        self._reading.stepped = True
        values = _STEP_FIXED(event.loss, event.lr, event.duration_s)
        timed = event.duration_s > 0
        with_tokens, with_samples = timed and event.tokens > 0, timed and event.samples > 0
        if with_tokens:
            values += _RATE(event.tokens / event.duration_s)
        if with_samples:
            values += _RATE(event.samples / event.duration_s)
        num_accounts = min(len(event.accounts) // 8, len(ACCOUNTS))
        variant = (Source.STEP, with_tokens, with_samples, num_accounts)
        found = self._sets.get(variant)
        if found is None:
            keys = step_keys(self._reading.header.rank, with_tokens, with_samples, num_accounts)
            found = self._sets[variant] = self._find_set(Source.STEP, keys)
        _append(found, event.step, event.time_ns, values + event.accounts[: num_accounts * 8])

    def add_hardware(self, event: events.Hardware) -> None:
        """Take one look at a host or a process."""
        key = (Source.HARDWARE, event.names_id, event.rank)
        found = self._sets.get(key)
        if found is None:
            names = self._reading.names.get(event.names_id)
            if names is None:
                return
            keys = tuple([SeriesKey("hardware", name, event.rank) for name in names])
            found = self._sets[key] = self._find_set(Source.HARDWARE, keys)
        _append(found, NO_STEP, event.time_ns, event.values)

    def _find_set(self, source: Source, keys: tuple[SeriesKey, ...]) -> tuple[NewRows, int, int]:
        """Return the rows that keys of the source go to, the keys' place among their sets, and the bytes of a row."""
        attempt = self._reading.attempt
        rows = self.groups.setdefault((attempt, source), NewRows(attempt, source))
        if keys not in rows.key_sets:
            rows.key_sets.append(keys)
        return rows, rows.key_sets.index(keys), 8 * len(keys)


def step_keys(rank: int, with_tokens: bool, with_samples: bool, num_accounts: int) -> tuple[SeriesKey, ...]:
    """Return the series that a step has values of, in their order."""
    metrics = ["train/loss", "train/lr", "train/step_s"]
    metrics += ["train/tokens_per_s"] if with_tokens else []
    metrics += ["train/samples_per_s"] if with_samples else []
    accounts = list(ACCOUNTS)[:num_accounts]
    return (
        *(SeriesKey("metric", name, rank) for name in metrics),
        *(SeriesKey("account", name, rank) for name in accounts),
    )


def _append(found: tuple[NewRows, int, int], step: int, time_ns: int, values: bytes) -> None:
    rows, place, num_bytes = found
    if len(values) != num_bytes:
        return  # the names are not those that it was written with: damage has taken the right ones
    try:
        rows.steps.append(step)
    except OverflowError:
        rows.steps.append(max(_INT64[0], min(step, _INT64[-1])))
    rows.times_ns.append(time_ns)
    rows.sets.append(place)
    rows.values.append(values)
