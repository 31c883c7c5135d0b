"""Who writes a record: this process, named so that a reused pid is not taken for it."""

from __future__ import annotations

import os
import socket
import time

from gscalar.base.version import __version__
from gscalar.model.events import RECORD_VERSION, Header


def own_header(run: str, writer: str, *, attempt: int = 0, rank: int = -1, world: int = 0) -> Header:
    """Return the header of a record file that this process writes now."""
    import psutil  # readers of records do without, and would wait for it

    return Header(
        version=RECORD_VERSION,
        run=run,
        attempt=attempt,
        rank=rank,
        world=world,
        writer=writer,
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_start=psutil.Process().create_time(),
        time_ns=time.time_ns(),
        gscalar=__version__,
    )
