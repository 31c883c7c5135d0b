"""Builds traces as PyTorch's profiler writes them, of today and of 2021, a few events long.

Times are microseconds, as in the file. Events are written in the order in which they are added.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Event = dict[str, Any]

_OLD_CATEGORIES: Final = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
_PROCESS: Final = 4242


@dataclass
class KinetoTrace:
    """A trace in the making. `is_old` gives the dialect of 2021, which does not know of ranks."""

    is_old: bool = False
    rank: int | None = None
    world: int | None = None
    base_ns: int | None = None  # what times count from; None: from the epoch
    groups: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _num_launches: int = 0

    def event(self, category: str, name: str, start_us: float, duration_us: float, **fields: Any) -> Event:
        """Add any event of a duration, and return it."""
        added: Event = {
            "ph": "X",
            "cat": _OLD_CATEGORIES.get(category, category) if self.is_old else category,
            "name": name,
            "pid": _PROCESS,
            "tid": str(_PROCESS) if self.is_old else _PROCESS,
            "ts": start_us,
            "dur": duration_us,
            **fields,
        }
        self.events.append(added)
        return added

    def step(self, number: int, start_us: float, duration_us: float) -> Event:
        """Add a step."""
        return self.event("user_annotation", f"ProfilerStep#{number}", start_us, duration_us)

    def loader(self, start_us: float, duration_us: float, *, workers: bool = False) -> Event:
        """Add the training's wait for a batch."""
        kind = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
        return self.event("user_annotation", f"enumerate(DataLoader)#{kind}.__next__", start_us, duration_us)

    def kernel(
        self,
        name: str,
        start_us: float,
        duration_us: float,
        *,
        launch_us: float | None = None,
        device: int = 0,
        stream: int = 7,
        category: str = "kernel",
        **arguments: Any,
    ) -> Event:
        """Add an operation of a device, and its launch where it is said when that was."""
        self._num_launches += 1
        number = self._num_launches
        if launch_us is not None:
            called = {"kernel": "cudaLaunchKernel", "gpu_memset": "cudaMemsetAsync"}.get(category, "cudaMemcpyAsync")
            self.event("cuda_runtime", called, launch_us, 5, args={"cbid": 211, "correlation": number})
        external = "external id" if self.is_old else "External id"
        args = {"device": device, "stream": stream, "correlation": number, external: 9000 + number, **arguments}
        tid = f"stream {stream}" if self.is_old else stream
        return self.event(category, name, start_us, duration_us, pid=device, tid=tid, args=args)

    def copy(self, start_us: float, duration_us: float, *, to_device: bool = True, **more: Any) -> Event:
        """Add a copy from the host to a device, or back."""
        name = "Memcpy HtoD (Pinned -> Device)" if to_device else "Memcpy DtoH (Device -> Pageable)"
        return self.kernel(name, start_us, duration_us, category="gpu_memcpy", **more)

    def collective(
        self, start_us: float, duration_us: float, *, word: str = "allreduce", group: str = "0",
        ranks: tuple[int, ...] = (), num_elements: int = 1000, name: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        **more: Any,
    ) -> Event:  # fmt: skip
        """Add a kernel of a collective, with what torch says beside it."""
        said = {"Collective name": word, "Process Group Name": group, "In msg nelems": num_elements, "dtype": "Float"}
        if ranks:
            said |= {"Process Group Ranks": json.dumps(list(ranks)), "Group size": len(ranks)}
        return self.kernel(name, start_us, duration_us, **{"stream": 20, **said, **more})

    def document(self) -> dict[str, Any]:
        """Return the trace as the object that is written."""
        about: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Toy"}]}
        if self.rank is not None:
            about["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
            if self.groups:
                about["distributedInfo"]["pg_config"] = self.groups
        after: dict[str, Any] = {"traceName": "/tmp/trace.json", "host_name": "toy"}
        if self.base_ns is not None:
            after["baseTimeNanoseconds"] = self.base_ns
        return {**about, "traceEvents": self.events, **({} if self.is_old else after)}

    def text(self, indent: int | None = None) -> str:
        """Return the trace as JSON."""
        return json.dumps(self.document(), indent=indent)

    def write(self, path: Path) -> Path:
        """Write the trace, compressed where the name ends with .gz."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path


def data_parallel_trace(
    rank: int, world: int, *, num_steps: int = 4, num_collectives: int = 3, base_ns: int = 0, late_us: float = 0.0
) -> KinetoTrace:
    """Return one rank's trace of a training whose ranks meet in every step.

    A step takes 1000 us and ends with its collectives, which begin 10 us apart and end at once on all ranks: at 880,
    900, 920, ... A rank that is late begins its own later.
    """
    trace = KinetoTrace(rank=rank, world=world, base_ns=base_ns)
    for number in range(num_steps):
        begin = 1000.0 * number
        trace.step(number, begin, 1000)
        trace.kernel("gemm", begin + 100, 500, launch_us=begin + 50)
        for at in range(num_collectives):
            start, end = begin + 800 + 10 * at + late_us, begin + 880 + 20 * at
            trace.collective(
                start, end - start, launch_us=begin + 60 + at, ranks=tuple(range(world)), stream=20 + at
            )  # fmt: skip
    return trace
