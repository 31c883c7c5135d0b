"""Keeps the catalog as the records are: `refresh` before a read, `Indexer` while a run goes on.

The indexer keeps the run's series too, which otherwise are brought up to the records only when somebody reads them
(`gscalar.control.indexing.series_index`).

Both are idempotent, and any number of processes may do either at once. The catalog is never more than the
records: `rebuild` drops all of it but the tombstones of deleted runs, and reads every record again, with the
same result. A run that has ended and has not moved for a while costs one `stat`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gscalar.base.errors import EnvironmentProblem, ScalarError
from gscalar.control.indexing.freshness import FileTimes, IsAlive, Need, judge_run, list_runs, mtime_of
from gscalar.control.indexing.run_index import RunIndex
from gscalar.control.liveness import is_alive as process_is_alive
from gscalar.state.catalog import Catalog, open_catalog, storing
from gscalar.state.catalog.catalog import replace_damaged
from gscalar.state.catalog.rows import RunState
from gscalar.state.home import Home
from gscalar.state.sqlite_files import remove_database

if TYPE_CHECKING:
    from gscalar.control.indexing.series_index import SeriesIndex

_TICK_S: Final = 1.0
# Nobody waits for a tick, since whoever reads catches up first; so ticks are as rare as keeps their cost below 1 %
# of a core, up to this.
_SLOW_TICK_S: Final = 5.0
_CPU_SHARE: Final = 1 / 150
# A tick that waits for another writer waits in the supervisor's loop.
_TICK_TIMEOUT_S: Final = 0.25

_log = logging.getLogger(__name__)


def refresh(
    home: Home,
    catalog: Catalog,
    run_id: str | None = None,
    *,
    is_alive: IsAlive = process_is_alive,
    clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Bring the catalog up to the records: of one run, or of all that are there, gone or new.

    Raises:
        EnvironmentProblem: `catalog-damaged`, `home-not-writable`, `disk-full`.
        Retryable: `catalog-busy`.
    """
    with catalog.read() as connection:
        states = storing.load_states(connection)
    present = [run_id] if run_id is not None else list_runs(home)
    if present is None:
        return
    for each in present:
        state = states.get(each)
        if state is not None and state.deleted:
            continue
        try:
            _refresh_run(home, catalog, each, state, is_alive, clock_ns)
        except (OverflowError, UnicodeError) as error:
            # A record that no database can hold must not hide all other runs.
            _log.warning("the run %s cannot be stored: %s", each, error)
    if run_id is None:
        _forget_missing(home, catalog, states, set(present))


def rebuild(home: Home, *, is_alive: IsAlive = process_is_alive) -> int:
    """Drop the catalog and read every record again; return how many runs there are.

    Series are dropped too, and read again when somebody asks for them. A file that is damaged, or of an older version
    and cannot be migrated, is set aside; the tombstones of deleted runs are then lost with it, and their folders are
    gone.

    Raises:
        EnvironmentProblem: `store-newer`, `home-not-writable`, `disk-full`.
    """
    try:
        return _rebuild(home, is_alive)
    except EnvironmentProblem as error:
        if error.code not in ("catalog-damaged", "store-not-migrated"):
            raise
        replace_damaged(home.index, or_older=error.code == "store-not-migrated")
        return _rebuild(home, is_alive)


def _rebuild(home: Home, is_alive: IsAlive) -> int:
    for run_id in list_runs(home) or ():
        remove_database(home.series(run_id))
    with open_catalog(home) as catalog:
        with catalog.write() as connection:
            storing.forget_all(connection)
        refresh(home, catalog, is_alive=is_alive)
        with catalog.read() as connection:
            return storing.count_runs(connection)[0]


class Indexer:
    """Keeps one run's rows and series fresh while it goes on. Never raises: a training does not end for a catalog.

    `problem` says what is wrong with the catalog, or else with the series, or is None.
    """

    def __init__(
        self,
        home: Home,
        run_id: str,
        *,
        is_alive: IsAlive = process_is_alive,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.problem: str | None = None
        self._home = home
        self._run_id = run_id
        self._is_alive = is_alive
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._catalog: Catalog | None = None
        self._index: RunIndex | None = None
        self._series: SeriesIndex | None = None
        self._due = -float("inf")

    def tick(self) -> None:
        """Catch up with the run's records a second after the last time, up to five if that was costly."""
        now = self._clock()
        if now >= self._due:
            cpu_s = self._cpu_clock()
            self._catch_up()
            cpu_s = self._cpu_clock() - cpu_s
            # From now on, so that a slow catalog takes a bounded share of the caller's time.
            pause_s = max(_TICK_S, 10 * (self._clock() - now), min(cpu_s / _CPU_SHARE, _SLOW_TICK_S))
            self._due = now + pause_s

    def close(self) -> None:
        """Catch up for the last time and close the catalog and the series."""
        self._catch_up()
        self._close_catalog()
        if self._series is not None:
            self._series.close()

    def _catch_up(self) -> None:
        known = self.problem
        self.problem = self._try(self._catch_up_catalog) or self._try(self._catch_up_series)
        if self.problem is not None and known is None:
            _log.warning("the catalog falls behind the records: %s", self.problem)

    def _catch_up_catalog(self) -> None:
        # What was read and not stored is read again.
        index, self._index = self._index, None
        if self._catalog is not None and not self._catalog.is_current():
            self._close_catalog()
            index = None
        if self._catalog is None:
            self._catalog = open_catalog(self._home, busy_timeout_s=_TICK_TIMEOUT_S)
        if index is None:
            index = RunIndex(self._home, self._run_id, self._is_alive)
        index.catch_up(self._catalog)
        self._index = index

    def _catch_up_series(self) -> None:
        if self._series is None:
            # NumPy would delay the start of everything else that looks at runs.
            from gscalar.control.indexing.series_index import SeriesIndex

            self._series = SeriesIndex(self._home, self._run_id, busy_timeout_s=_TICK_TIMEOUT_S)
        self._series.catch_up()

    def _try(self, work: Callable[[], None]) -> str | None:
        """Return what went wrong, or None."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - both are only indexes of what is recorded anyway
            return error.what if isinstance(error, ScalarError) else repr(error)
        return None

    def _close_catalog(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = self._index = None


def _refresh_run(
    home: Home,
    catalog: Catalog,
    run_id: str,
    state: RunState | None,
    is_alive: IsAlive,
    clock_ns: Callable[[], int],
) -> None:
    def load_file_times() -> FileTimes:
        with catalog.read() as connection:
            return storing.load_file_times(connection, run_id)

    folder = home.run(run_id)
    mtime_ns = mtime_of(folder.records)
    need = judge_run(folder, mtime_ns, state, load_file_times, is_alive=is_alive, clock_ns=clock_ns)
    if need is Need.READING:
        RunIndex(home, run_id, is_alive).catch_up(catalog)
    elif need is Need.SETTLING:
        with catalog.write() as connection:
            storing.mark_settled(connection, run_id, mtime_ns)


def _forget_missing(home: Home, catalog: Catalog, states: dict[str, RunState], present: set[str]) -> None:
    gone = [each for each, state in states.items() if not state.deleted and each not in present]
    if gone:
        with catalog.write() as connection:
            for each in gone:
                storing.forget_run(connection, each)
        for each in gone:
            remove_database(home.series(each))
