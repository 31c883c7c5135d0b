"""The ranks of one launch, talking through sockets and shared memory without any training framework.

Small messages go through rank 0 (`post`, `roundtable`). Arrays are summed in memory that the ranks of one host share
(`slices`), or around a ring where there are several hosts or no memory to share (`rings`). Either way one rank adds up
a part of the arrays and all others copy its result, so that all ranks have the same bits. On one host the order of
addition is that of ranks; around the ring it depends on the place in the arrays only. Two ranks have a + b.

A rank that dies is noticed by rank 0 at once, and told to all: what waits for it, or for anything else, raises
`peer-lost`. One that stands still is noticed after the time-out. Processes forked from a rank (workers that load
data) close their handles, or a rank's end could not be seen while they live.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from gscalar.base.errors import EnvironmentProblem, Retryable, ScalarError
from gscalar.runtime.host_group.arrays import Buffers, Flat, flatten
from gscalar.runtime.host_group.lane import Lane
from gscalar.runtime.host_group.links import Broken, Links
from gscalar.runtime.host_group.post import Post
from gscalar.runtime.host_group.rendezvous import Late, Met, link, meet, ports_of
from gscalar.runtime.host_group.rings import RingSum
from gscalar.runtime.host_group.roundtable import Kind, pack, unpack
from gscalar.runtime.host_group.slices import SharedSum, memory_bytes
from gscalar.runtime.launch import Launch
from gscalar.runtime.shared_memory import FOLDER, share

Arrays = list[NDArray[Any]]

_LOOK_EVERY_S: Final = 0.5
_THREAD_ENDS_WITHIN_S: Final = 5.0
_open_groups: weakref.WeakSet[HostGroup] = weakref.WeakSet()


class _ArraySum(Protocol):
    def add_up(self, buffer: NDArray[Any], tag: int) -> None: ...


class HostGroup:
    """All ranks of a launch. Owns its sockets, its threads and its part of the shared memory.

    Small messages and arrays may be under way at once; each kind in the same order on every rank.

    Raises:
        Retryable: `rendezvous-failed`.
        EnvironmentProblem: `launcher-unclear`, when the launcher names no port.
    """

    def __init__(self, launch: Launch, timeout_s: float, folder: Path = FOLDER) -> None:
        self._world = launch.world
        self._lane = Lane("gscalar-arrays")
        self._links = Links({}, timeout_s)
        self._array_sum: _ArraySum | None = None
        self._buffers = Buffers()
        self._closed = False
        if launch.world == 1:
            self._post = Post(0, 1, {}, timeout_s)
            return
        self._join(launch, timeout_s, folder)
        _open_groups.add(self)

    @property
    def shares_memory(self) -> bool:
        """Whether arrays are summed in shared memory."""
        return isinstance(self._array_sum, SharedSum)

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin the sum over all ranks (float64, added in the order of ranks) and return a function that waits for it.

        Raises:
            Retryable: `peer-lost`, as do all methods.
            TrainingError: `ranks-differ`, as do all methods.
        """
        if self._world == 1:
            same = [float(value) for value in values]
            return lambda: same
        number = self._post.begin(Kind.SUM, pack(list(values)))
        return lambda: unpack(self._post.wait(Kind.SUM, number))

    def broadcast(self, payload: bytes) -> bytes:
        """Return rank 0's payload."""
        return self._post.wait(Kind.BROADCAST, self._post.begin(Kind.BROADCAST, payload))

    def await_broadcast(self, look: Callable[[], None]) -> bytes:
        """Return rank 0's payload, however long it takes; for a rank that only looks now and then meanwhile."""
        number = self._post.begin(Kind.BROADCAST, b"")
        while not self._post.is_there(number, _LOOK_EVERY_S):
            look()
        return self._post.wait(Kind.BROADCAST, number)

    def ask_to_stop(self) -> None:
        """Tell rank 0 that this process was told to stop."""
        self._post.tell(Kind.STOP)

    def when_asked_to_stop(self, act: Callable[[], None]) -> None:
        """Call this on rank 0, in a thread of the group, when another rank was told to stop."""
        self._post.on_stop = act

    def gather(self, payload: bytes) -> list[bytes]:
        """Return all payloads in rank order on rank 0, and an empty list elsewhere, where nothing is waited for."""
        number = self._post.begin(Kind.GATHER, payload)
        if not self._post.collects:
            return []
        return msgspec.msgpack.decode(self._post.wait(Kind.GATHER, number), type=list[bytes])

    def sum_arrays(self, arrays: Sequence[NDArray[Any]]) -> Arrays:
        """Return the sums over all ranks, in the same data types and shapes and with the same bits on every rank.

        They are views of buffers that are used again once no view is held; in a world of one, the arrays given.
        """
        if self._lane.is_idle and self._world > 1:
            return self._add_up(flatten(arrays, self._buffers))
        return self.start_sum_arrays(arrays)()

    def start_sum_arrays(self, arrays: Sequence[NDArray[Any]]) -> Callable[[], Arrays]:
        """Begin `sum_arrays` in a thread and return a function that waits for it. The arrays may change meanwhile."""
        if self._world == 1:
            same = [np.asarray(array) for array in arrays]
            return lambda: same
        flat = flatten(arrays, self._buffers)
        return self._lane.start(lambda: self._add_up(flat))

    def close(self) -> None:
        """Leave the group, whoever else is there or waits."""
        if self._closed:
            return
        self._closed = True
        _open_groups.discard(self)
        self._post.close()
        self._links.break_off()
        self._lane.close(_THREAD_ENDS_WITHIN_S)
        self._links.close()
        self._array_sum = None  # and with it the memory

    def drop(self) -> None:
        """Close this process's handles, and nothing else: for a process forked from a rank."""
        self._post.drop()
        self._links.close()

    def _add_up(self, flat: Flat) -> Arrays:
        self._post.check()
        if self._array_sum is None:
            raise RuntimeError("the group is closed")
        try:
            for buffer in flat.buffers:
                self._array_sum.add_up(buffer, flat.tag)
        except Broken as broken:
            error = self._post.report(broken.failure)
            self._links.break_off()
            raise error from broken
        except BaseException:  # such as an interrupt: the links stand in the middle of a message
            self._links.break_off()
            raise
        return flat.arrays()

    def _join(self, launch: Launch, timeout_s: float, folder: Path) -> None:
        """Find the others, link to them, and share memory where all are on one host."""
        if not launch.master_port:
            raise EnvironmentProblem(
                code="launcher-unclear",
                what="MASTER_PORT is 0, at which no rank can reach another.",
                value=launch.master_port,
                next_step="Give a port at which nothing else listens.",
            )
        # torchrun's agent listens at that port for the whole launch.
        ports = ports_of(launch, store_listens=os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true")
        deadline_s = time.monotonic() + timeout_s
        met = None
        try:
            met = meet(launch, ports, deadline_s)
            self._post = Post(launch.rank, launch.world, met.posts, timeout_s)
            self._link(launch, met, deadline_s, timeout_s, folder)
        except (Late, OSError, Retryable) as error:
            if met is not None:
                self.close()
            raise _failed(launch, error) from error
        except BaseException:
            if met is not None:
                self.close()
            raise
        finally:
            if met is not None:
                met.door.close()

    def _link(self, launch: Launch, met: Met, deadline_s: float, timeout_s: float, folder: Path) -> None:
        rank, world = launch.rank, launch.world
        one_host = launch.local_world == world
        peers = set(range(world)) - {rank} if one_host else {(rank + 1) % world, (rank - 1) % world}
        self._links = Links(link(launch, met, peers, deadline_s, self._post.check), timeout_s)
        self._post.on_failure = self._links.break_off
        memory = share(self, launch, memory_bytes(world), folder) if one_host else None
        self.start_sum([])()  # all are linked: from now on a rank that is waited for has come
        self._array_sum = (
            RingSum(self._links, rank, world) if memory is None else SharedSum(memory, self._links, rank, world)
        )


def _failed(launch: Launch, error: Exception) -> ScalarError:
    reason = error.what if isinstance(error, ScalarError) else str(error)
    return Retryable(
        code="rendezvous-failed",
        what=f"Rank {launch.rank} of {launch.world} did not reach the others: {reason}",
        value=f"{launch.master_addr}:{launch.master_port}",
        next_step="See whether all workers started, and whether they reach that address.",
    )


def _let_go() -> None:
    for group in list(_open_groups):
        group.drop()


os.register_at_fork(after_in_child=_let_go)
