"""Whether the process that owns a run still lives.

A process is known by host, pid and start time, so that a reused pid is not taken for it. Only processes of
this host can be judged: an owner on another host counts as alive until its record says that the run has
ended. Limit: two containers with one host name and process tables of their own cannot be told apart.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

import psutil

# Start times are computed from the boot time, which moves a little when the clock is corrected.
_TOLERANCE_S: Final = 2.0


def is_alive(owner: Mapping[str, Any]) -> bool:
    """Tell whether the owner `{host, pid, pid_start}` may still be there."""
    if not owner["pid"]:
        return False  # nobody knows who it was: the head of its record is damaged
    if owner["host"] != socket.gethostname():
        return True
    try:
        process = psutil.Process(owner["pid"])
        same = abs(process.create_time() - owner["pid_start"]) < _TOLERANCE_S
        # A killed process stays a zombie until its parent has taken note.
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
