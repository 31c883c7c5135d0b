"""A background thread's name is what the system shows."""

from __future__ import annotations

import threading
from pathlib import Path

from gscalar.observation.threads import start_thread


def test_the_system_shows_the_name_cut_to_what_it_keeps() -> None:
    shown: list[str] = []

    def work() -> None:
        shown.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())

    thread = start_thread(work, "gscalar-sampler-of-host")
    thread.join(10)
    assert shown == ["gscalar-sampler"]
    assert (thread.name, thread.daemon) == ("gscalar-sampler-of-host", True)
