"""How a worker's process ends, seen from inside: exceptions, SIGTERM, Ctrl-C, the interpreter's end.

SIGTERM only raises a flag while a training loop is running; the loop acts on it at the next step
border, where all ranks can. A second SIGTERM, or one outside a loop, ends the process as it always
would, so that nobody is trapped in a script that never reaches a border. Ctrl-C in a terminal is treated
alike, but for notebooks, where it has to stop the cell, and for scripts with a handler of their own.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final

from gscalar.runtime.own_frames import shown_traceback

SignalHandler = signal.Handlers | Callable[[int, FrameType | None], object] | int | None
ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

# torchrun passes on the Ctrl-C that the terminal has sent to all its children already.
_SAME_CTRL_C_S: Final = 0.5


class ExitWatch:
    """Owns the process's exception hook, signal handlers and exit hook while a run is open."""

    def __init__(
        self,
        *,
        on_failure: Callable[[BaseException], None],
        on_exit: Callable[[int], None],
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.stop_requested = False
        self._told = False  # by a signal of its own
        self.interrupted = False  # by Ctrl-C, which a training loop obeys
        self.terminated = False  # by a SIGTERM that no training loop was there to obey
        self.in_loop = False
        self._on_failure = on_failure
        self._on_exit = on_exit
        self._on_interrupt = on_interrupt
        self._interrupted_s = -math.inf
        self._takes_interrupts = False
        self._exit_code = 0
        self._installed = False
        self._pid = os.getpid()
        self._previous_hook: ExceptHook = sys.excepthook
        self._previous_exit = sys.exit
        self._previous_signal: SignalHandler = None

    def install(self) -> None:
        """Take the hooks; signals only from the main thread, where Python allows it."""
        self._installed = True
        self._previous_hook = sys.excepthook
        sys.excepthook = self._excepthook
        # Python tells an exit hook nothing of the exit code, and a script that says sys.exit(1)
        # must not be recorded as completed.
        self._previous_exit = sys.exit
        sys.exit = self._exit  # type: ignore[assignment]  # the same signature, typed NoReturn there
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._previous_signal = _alive(signal.signal(signal.SIGTERM, self._on_sigterm))
            interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
            if not interactive and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._takes_interrupts = True
                signal.signal(signal.SIGINT, self._on_sigint)

    def request_stop(self) -> None:
        """Note that another process was told to stop, which is for all."""
        self.stop_requested = True

    def take_back(self) -> None:
        """Take SIGTERM back from a trainer that has put its own handler in front: one of the two must decide."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def remove(self) -> None:
        """Give the hooks back. Safe to call twice."""
        if not self._installed:
            return
        self._installed = False
        if sys.excepthook == self._excepthook:
            sys.excepthook = self._previous_hook
        if sys.exit == self._exit:
            sys.exit = self._previous_exit
        atexit.unregister(self._at_exit)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and self._previous_signal is not None and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._previous_signal)
        if in_main and self._takes_interrupts and signal.getsignal(signal.SIGINT) == self._on_sigint:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def note_exit(self, code: object) -> None:
        """Remember the code of a SystemExit that was seen on its way out."""
        self._exit_code = 0 if code is None else code if isinstance(code, int) else 1

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._installed:
            self._on_failure(error)
        self._previous_hook(kind, error, shown_traceback(error, trace))

    def _exit(self, code: object = None, /) -> None:
        self.note_exit(code)
        self._previous_exit(code)  # type: ignore[arg-type]  # whatever the script gave

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._on_exit(self._exit_code)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        # Somebody who came after us, and is gone, gave the signal back to us; or this is a forked child, such
        # as one of a multiprocessing.Pool, whose parent waits for it to die.
        if not self._installed or os.getpid() != self._pid:
            signal.signal(signum, self._previous_signal or signal.SIG_DFL)
            signal.raise_signal(signum)
            return
        first = not self._told
        self.stop_requested = self._told = True
        if first and callable(self._previous_signal):
            self._previous_signal(signum, frame)
        if not first or not self.in_loop:
            self.terminated = True
            self._exit_code = 128 + signum
            raise SystemExit(128 + signum)

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        if not self._installed or os.getpid() != self._pid:
            signal.default_int_handler(signum, frame)
        now_s = time.monotonic()
        if now_s - self._interrupted_s < _SAME_CTRL_C_S:
            return
        if self._told or not self.in_loop:
            signal.default_int_handler(signum, frame)
        self._interrupted_s = now_s
        self.stop_requested = self._told = self.interrupted = True
        self._on_interrupt()


def _alive(handler: SignalHandler) -> SignalHandler:
    """Return the handler, or the one before it where it is of a run that is over: a trainer may have put it back."""
    watch = getattr(handler, "__self__", None)
    if isinstance(watch, ExitWatch) and not watch._installed:
        return _alive(watch._previous_signal)
    return handler
