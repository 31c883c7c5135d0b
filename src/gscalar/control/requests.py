"""Where requests to stop arrive: signals, the file that `gscalar cancel` writes, a worker's own stop."""

from __future__ import annotations

import time
from typing import Final

from gscalar.control.display import Display, Notice
from gscalar.control.signals import StopSignals
from gscalar.control.stopping import StopState, on_request, on_signal, on_time
from gscalar.state.home import RunFolder

_LOOK_FOR_FILE_EVERY_S: Final = 1.0
_SAID: Final = {
    "preempted": "asked to stop: the workers write a checkpoint at the next step border",
    "interrupted": "stopping at the next step border, with a checkpoint; press Ctrl-C again to kill now",
    "cancelled": "cancelled: the workers write a checkpoint at the next step border",
}


class StopDesk:
    """Holds the one state of stopping, and tells people when it changes."""

    def __init__(self, folder: RunFolder, signals: StopSignals, display: Display, *, grace_s: float) -> None:
        self.state = StopState()
        self._cancel_file = folder.control / "cancel"
        self._signals = signals
        self._display = display
        self._grace_s = grace_s
        self._looked_s = -_LOOK_FOR_FILE_EVERY_S

    def look(self) -> StopState:
        """Return the state of now."""
        now_s = time.monotonic()
        state = self.state
        for signum in self._signals.take():
            cancelled = self._cancel_file.exists()
            state = on_signal(state, signum, cancelled=cancelled, now_s=now_s, grace_s=self._grace_s)
        # The file alone is enough: a signal does not reach another host.
        if now_s - self._looked_s >= _LOOK_FOR_FILE_EVERY_S:
            self._looked_s = now_s
            if self._cancel_file.exists():
                state = on_request(state, "cancelled", now_s=now_s, grace_s=self._grace_s)
        self._become(on_time(state, now_s))
        return self.state

    def request(self, reason: str) -> StopState:
        """Ask for a stop from within."""
        self._become(on_request(self.state, reason, now_s=time.monotonic(), grace_s=self._grace_s))
        return self.state

    def _become(self, state: StopState) -> None:
        before, self.state = self.state, state
        if state.asked and not before.asked:
            self._display.notice(Notice(level="info", text=_SAID[state.reason]))
        if state.kill and not before.kill:
            self._display.notice(Notice(level="warning", text=f"killing the workers: {state.why_kill}"))
