"""The thread that samples a host once a second, beside a training and never in its way.

There is one a host: in the supervisor under `gscalar run`, else in the worker with local rank 0. It
writes `Hardware` events (the host's with rank -1) and `ClockJumped` where the host's wall clock was
set. What goes wrong is told once, in a `Note`, and the thread goes on. `stop` never waits for a look:
a driver may hang, and a training's end must not. Nothing is written after it.

Cost: some dozens of small files a look; tests/integration/observation holds the thread under 1 % of a
core.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from gscalar.model.events import ClockJumped, Event, Note
from gscalar.model.sink import Sink
from gscalar.observation.clocks import JumpWatch, read_both_clocks
from gscalar.observation.gpu_counters import GpuCounters, has_driver, open_gpu_counters
from gscalar.observation.hardware import HardwareSampler
from gscalar.observation.threads import start_thread

EVERY_S: Final = 1.0
FindPids = Callable[[], Mapping[int, int]]  # the workers' processes on this host, by rank


def sample_hardware(sink: Sink, find_pids: FindPids, every_s: float = EVERY_S) -> Callable[[], None]:
    """Sample this host in a thread of its own from now on; return how to stop it."""
    sampling = HostSampling(sink, find_pids)
    with contextlib.suppress(RuntimeError):  # the system gives no more threads: go without
        start_thread(lambda: sampling.run(every_s), "gscalar-host")
    return sampling.stop


class HostSampling:
    """What the thread does. `run` is the thread's, `stop` anybody's."""

    def __init__(self, sink: Sink, find_pids: FindPids, *, sampler: HardwareSampler | None = None) -> None:
        self._sink = sink
        self._find_pids = find_pids
        self._sampler = sampler  # made by the first look: a driver takes its time to open
        self._gpus: GpuCounters | None = None
        self._jumps = JumpWatch()
        self._told: set[str] = set()
        self._stopped = threading.Event()
        self._writing = threading.Lock()

    def run(self, every_s: float) -> None:
        """Look at the host until stopped. Looks that could not be made in time are left out."""
        due_s = time.monotonic()
        while not self._stopped.wait(max(0.0, due_s - time.monotonic())):
            self.look()
            due_s = max(due_s + every_s, time.monotonic())
        if self._gpus is not None:
            self._gpus.close()

    def look(self) -> None:
        """Look once. Nothing is raised."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the thread's boundary: it must not harm a training
            self._tell("warning", "hardware-unread", f"the hardware could not be looked at: {error!r}")

    def stop(self) -> None:
        """Write nothing from now on, and end the thread when it next can."""
        with self._writing:
            self._stopped.set()

    def _look(self) -> None:
        wall_ns, monotonic_ns, doubt_ns = read_both_clocks()
        by_s = self._jumps.look(wall_ns, monotonic_ns, doubt_ns)
        if by_s is not None:
            self._emit(ClockJumped(wall_ns, by_s))
        if self._sampler is None:
            self._gpus = self._open_gpus()
            self._sampler = HardwareSampler(gpus=self._gpus)
        found = self._sampler.look(time.monotonic(), self._find_pids())
        with self._writing:
            for rank, values in found.items():
                if not self._stopped.is_set():
                    self._sink.sample(wall_ns, rank, values)
        for index in self._gpus.lost if self._gpus is not None else ():
            self._tell("warning", "gpu-lost", f"the driver has lost GPU {index}; its counters end here")

    def _open_gpus(self) -> GpuCounters | None:
        if not has_driver():
            return None
        try:
            return open_gpu_counters()
        except ImportError:
            text = "the GPUs' counters are not recorded: install the package nvidia-ml-py (pip install 'gscalar[gpu]')"
            self._tell("info", "gpu-unread", text)
        except OSError as error:
            self._tell("warning", "gpu-unread", f"the GPUs' counters are not recorded: {error}")
        return None

    def _tell(self, level: str, code: str, text: str) -> None:
        # Once a code, but for devices, of which each is told.
        key = text if code == "gpu-lost" else code
        if key not in self._told:
            self._told.add(key)
            self._emit(Note(time.time_ns(), level, code, text))

    def _emit(self, event: Event) -> None:
        with self._writing:
            if not self._stopped.is_set():
                self._sink.emit(event)
