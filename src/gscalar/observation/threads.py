"""Background threads that can be told apart from outside: `top -H` and `ps -L` show their names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

# The kernel keeps 15 bytes of a thread's name.
_MAX_NAME_BYTES: Final = 15


def start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Return a started daemon thread; `name` is cut to 15 bytes where the system shows it."""

    def named() -> None:
        with contextlib.suppress(OSError):  # a name is a convenience
            own = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            own.write_bytes(name.encode()[:_MAX_NAME_BYTES])
        work()

    thread = threading.Thread(target=named, name=name, daemon=True)
    thread.start()
    return thread
