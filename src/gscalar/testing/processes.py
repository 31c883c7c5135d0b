"""Watching real processes from a test: who is alive, and waiting for something with a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def marked(mark: str) -> list[int]:
    """Return the living processes (zombies are dead) whose command line holds `mark`, but this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "cmdline").read_bytes() and _state(entry) not in "ZX":
                found.append(int(entry.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return _state(Path(f"/proc/{pid}")) not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], limit_s: float, what: str = "") -> float:
    """Return the seconds until the condition held; fail as an assertion after `limit_s`."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < limit_s, f"not within {limit_s} s: {what or condition}"
        time.sleep(0.01)
    return time.monotonic() - started


def kill_marked(mark: str) -> None:
    """Kill what a test left, so that a failing test leaves nothing."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _state(entry: Path) -> str:
    text = (entry / "stat").read_text()
    return text[text.rindex(")") + 2]
