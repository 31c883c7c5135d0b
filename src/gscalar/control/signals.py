"""The signals that ask a supervisor to stop, collected for its loop."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final

_CAUGHT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Catches SIGINT, SIGTERM and SIGHUP (a closed terminal) while it is entered; main thread only.

    The handler only appends: a lock (that of an Event, say) which the interrupted code holds would never
    be given back. A SIGHUP that was ignored on entry (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for signum in _CAUGHT:
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue
            self._previous[signum] = signal.signal(signum, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def take(self) -> list[int]:
        """Return the signals since the last call, in order; SIGHUP counts as SIGTERM."""
        pending, self._pending = self._pending, []
        return [signal.SIGTERM if signum == signal.SIGHUP else signum for signum in pending]

    def _catch(self, signum: int, frame: FrameType | None) -> None:
        self._pending.append(signum)
