"""Keeping the catalog close behind the record while a run goes on, in a thread of its own.

The catalog may lie on a slow disk or be locked by another process, and the supervisor must see a
killed worker all the same.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

from gscalar.control.indexer import Indexer
from gscalar.observation.threads import start_thread
from gscalar.state.home import Home

_LOOK_EVERY_S: Final = 0.5
_JOIN_S: Final = 10.0


class BackgroundIndex:
    """Refreshes the catalog's rows of one run about once a second while it is entered, and at the end."""

    def __init__(self, home: Home, run_id: str) -> None:
        self._indexer = Indexer(home, run_id)
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BackgroundIndex:
        self._thread = start_thread(self._run, "gscalar-index")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
            self._indexer.tick()
        self._indexer.close()
