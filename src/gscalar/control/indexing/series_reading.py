"""Reading a run's series as they are in its records by now.

Where no record file has changed, nothing is loaded but the store's reader: what reads records takes as long to import
as reading the store takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from gscalar.base.errors import EnvironmentProblem
from gscalar.control.indexing.freshness import are_current
from gscalar.state.home import Home
from gscalar.state.series import SeriesReader, open_series, reset_damaged

_T = TypeVar("_T")


def open_current(home: Home, run_id: str, read: Callable[[SeriesReader], _T]) -> tuple[SeriesReader, _T]:
    """Return the run's series, open and up to the records, and what `read` makes of them.

    A store that then turns out to be damaged is set aside and filled anew first. Raises as `SeriesIndex.catch_up` does.
    """
    for last_try in (False, True):
        try:
            return _open_current(home, run_id, read)
        except EnvironmentProblem as error:
            if error.code != "series-damaged" or last_try:
                raise
            reset_damaged(home, run_id)
    raise AssertionError("one of two tries returns or raises")


def _open_current(home: Home, run_id: str, read: Callable[[SeriesReader], _T]) -> tuple[SeriesReader, _T]:
    with ExitStack() as stack:
        reader = stack.enter_context(open_series(home, run_id))
        if not are_current(home.run(run_id), reader.load_file_times()):
            # The store may be made or replaced by this.
            stack.close()
            _refresh(home, run_id)
            reader = stack.enter_context(open_series(home, run_id))
        found = read(reader)
        stack.pop_all()
    return reader, found


def _refresh(home: Home, run_id: str) -> None:
    from gscalar.control.indexing.series_index import refresh_series

    refresh_series(home, run_id)
