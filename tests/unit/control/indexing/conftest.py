"""Runs that builders write, summed up without a catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gscalar.control.indexing.readings import FileReading, fold, new_reading
from gscalar.control.indexing.run_index import load_job, scan_records
from gscalar.control.indexing.summary import find_cuts, summarize
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.state.records.reader import RecordTail
from gscalar.testing.builders import RunBuilder

Sum = Callable[[Callable[[RunBuilder], object]], RunSummary]


def read(builder: RunBuilder) -> dict[str, FileReading]:
    """Return the readings of a run's files, with their cuts."""
    readings = {name: _read(builder, name) for name in scan_records(builder.folder)}
    return {name: _read(builder, name, cut) for name, cut in find_cuts(readings).items()} | {
        name: each for name, each in readings.items() if not each.is_worker
    }


def _read(builder: RunBuilder, name: str, cut: int | None = None) -> FileReading:
    reading = new_reading(builder.run_id, name)
    if cut is not None:
        reading.cut = cut
    fold(reading, RecordTail(builder.folder.records / name).poll())
    return reading


@pytest.fixture
def summed(home: Path) -> Sum:
    """Return the summary of the run that a function builds; `alone=True` is a script without a supervisor."""

    def sum_up(build: Callable[[RunBuilder], object], *, alone: bool = False, alive: bool = True) -> RunSummary:
        builder = RunBuilder(Home(home), alone=alone)
        build(builder)
        found = summarize(builder.run_id, load_job(builder.folder), read(builder), alive=alive)
        assert found is not None
        builder.abandon()
        return found

    return sum_up  # type: ignore[return-value]  # with options that a Callable cannot name
