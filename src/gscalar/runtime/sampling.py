"""The hardware sampler of a worker that has no supervisor: alone, under torchrun, srun, mpirun or JobSet.

The worker with local rank 0 samples for its host. It knows its own process; the others of the host it
finds in their records, whose headers name host and process: the ranks that follow its own, as every
launcher numbers the processes of a host by default. Limit: where ranks are dealt out in turn over
hosts (srun --distribution=cyclic), only the workers found among those are covered, at least its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from gscalar.model.events import Header
from gscalar.observation.sampling import sample_hardware
from gscalar.runtime.opening import Opened
from gscalar.state.records import Frame, read_record

# After so many looks, a worker that has no record on this host will have none.
_LOOKS_FOR_OTHERS: Final = 120


def start_sampling(opened: Opened) -> Callable[[], None]:
    """Sample this host from now on, where that is this worker's part; return how to stop."""
    if opened.supervised or opened.gang.local_rank != 0:
        return lambda: None
    return sample_hardware(opened.writer, HostWorkers(opened).find)


class HostWorkers:
    """The processes of this launch on this host, by rank. Found bit by bit: others may start later."""

    def __init__(self, opened: Opened) -> None:
        launch = opened.gang
        self._found = {launch.rank: os.getpid()}
        self._missing = {
            rank: opened.folder.worker_record(opened.attempt, rank)
            for rank in range(launch.rank + 1, min(launch.rank + launch.local_world, launch.world))
        }
        self._looks_left = _LOOKS_FOR_OTHERS

    def find(self) -> Mapping[int, int]:
        """Return the processes that are known by now."""
        if self._missing and self._looks_left:
            self._looks_left -= 1
            for rank, path in list(self._missing.items()):
                try:
                    first = next(iter(read_record(path)), None)
                except OSError:
                    continue  # not there yet
                if not isinstance(first, Frame) or not isinstance(first.event, Header):
                    continue
                del self._missing[rank]
                if first.event.host == socket.gethostname():
                    self._found[rank] = first.event.pid
        return self._found
