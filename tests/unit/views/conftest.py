"""Series made of arrays, past any record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from gscalar.state.home import Home
from gscalar.state.series import SeriesKey, SeriesReader, open_series
from gscalar.state.series.types import FileChange, FileState, NewRows, Source
from gscalar.state.series.writing import SeriesWriter

START_NS = 1_767_323_045_000_000_000
RECORD = "a000-r00000.rec"
FillSeries = Callable[..., SeriesReader]


@pytest.fixture
def fill_series(home: Path) -> Iterator[FillSeries]:
    """Store values of one metric, by default at steps 0, 1, ... and a second apart, and give the open series.

    A second call with the same run adds another metric to it.
    """
    offsets: dict[str, int] = {}
    with ExitStack() as stack:

        def fill(
            values: object, *, run_id: str = "aaaa", name: str = "train/loss", steps: object = None, rank: int = 0
        ) -> SeriesReader:
            numbers = np.asarray(values, "<f8")
            at = np.arange(len(numbers)) if steps is None else np.asarray(steps)
            rows = NewRows(0, Source.LOG, [(SeriesKey("metric", name, rank),)])
            rows.steps.frombytes(at.astype("<i8").tobytes())
            rows.times_ns.frombytes((START_NS + np.arange(len(numbers)) * 1_000_000_000).astype("<i8").tobytes())
            rows.sets.frombytes(bytes(4 * len(numbers)))
            rows.values.append(numbers.tobytes())
            before = offsets.get(run_id, 0)
            offsets[run_id] = before + 1
            writer = SeriesWriter(Home(home), run_id)
            state = FileState(before + 1, 0, 0, 2**62, b"")
            writer.commit({RECORD: before} if before else {}, [FileChange(RECORD, state, False, [rows])])
            writer.close()
            return stack.enter_context(open_series(Home(home), run_id))

        yield fill
