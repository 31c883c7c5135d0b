"""Sums over the ranks of one host through memory that they share, in place of messages.

The step engine sums eight numbers over all ranks in every step. Through a socket that costs ten changes of thread
and a millisecond of the system's time, on cores that the training needs. Here each rank writes its numbers where
all can read them, and reads what the others wrote. After an exchange of gradients they have been written already, so
nobody waits; elsewhere a rank looks again and again, at growing intervals.

A slot holds a number that counts the sums, the values, and a checksum of both: a slot that is half written, or whose
bytes become visible in another order, is looked at once more. There are eight slots a rank and at most four sums
under way, so nobody overwrites what another has yet to read. Values are added in the order of ranks, so that all
have the same sum.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from gscalar.base.errors import Retryable, TrainingError
from gscalar.runtime.framework import Group
from gscalar.runtime.launch import Launch
from gscalar.runtime.processes import is_running, process_name
from gscalar.runtime.shared_memory import FOLDER, share

_MAX_VALUES: Final = 12
_NUM_SLOTS: Final = 8
_MAX_UNDER_WAY: Final = 4
_HEAD: Final = struct.Struct("<QQ")  # which sum, how many values
_CHECKSUM: Final = struct.Struct("<Q")
_SLOT_BYTES: Final = 128  # two cache lines: 16 of head, 96 of values, 8 of checksum
_LOOKS_AT_ONCE: Final = 50
_FIRST_PAUSE_S: Final = 50e-6
_LAST_PAUSE_S: Final = 2e-3
_LOOK_FOR_PEERS_EVERY_S: Final = 0.5


def sum_in_memory(group: Group, launch: Launch, timeout_s: float, folder: Path = FOLDER) -> Group:
    """Return the group with its small sums through shared memory, where all its ranks can share some.

    Every rank calls it at the same place of the program. Where one cannot, all keep the group as it is.
    """
    if launch.world == 1 or launch.local_world != launch.world:
        return group
    peers = _peers(group, launch)
    size = launch.world * _NUM_SLOTS * _SLOT_BYTES
    memory = share(group, launch, size, folder, willing=all(is_running(name) for name in peers))
    if memory is None:
        return group
    return LocalGroup(group, memory, launch.rank, peers, timeout_s)


class LocalGroup:
    """A group of ranks on one host. Owns the memory that they share."""

    def __init__(self, group: Group, memory: mmap.mmap, rank: int, peers: Sequence[str], timeout_s: float) -> None:
        self._group = group
        self._memory = memory
        self._rank = rank
        self._peers = tuple(peers)  # names of the ranks' processes
        self._timeout_s = timeout_s
        self._num_begun = 0
        self._num_under_way = 0

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin the sum over all ranks."""
        if len(values) > _MAX_VALUES or self._num_under_way >= _MAX_UNDER_WAY:
            return self._group.start_sum(values)
        self._num_begun += 1
        self._num_under_way += 1
        number, count = self._num_begun, len(values)
        written = _HEAD.pack(number, count) + struct.pack(f"<{count}d", *values)
        at = self._place(self._rank, number)
        self._memory[at : at + len(written) + _CHECKSUM.size] = written + _CHECKSUM.pack(zlib.crc32(written))

        def wait() -> list[float]:
            totals = [0.0] * count
            for rank in range(len(self._peers)):
                for index, value in enumerate(self._read(rank, number, count)):
                    totals[index] += value
            self._num_under_way -= 1
            return totals

        return wait

    def broadcast(self, payload: bytes) -> bytes:
        """Return rank 0's payload."""
        return self._group.broadcast(payload)

    def gather(self, payload: bytes) -> list[bytes]:
        """Return all payloads in rank order on rank 0, and an empty list elsewhere."""
        return self._group.gather(payload)

    def close(self) -> None:
        """Leave the group and the memory."""
        self._memory.close()
        self._group.close()

    def _place(self, rank: int, number: int) -> int:
        return (rank * _NUM_SLOTS + number % _NUM_SLOTS) * _SLOT_BYTES

    def _read(self, rank: int, number: int, count: int) -> tuple[float, ...]:
        """Return a rank's values of a sum, once it has written them."""
        at = self._place(rank, number)
        num_looks, pause_s, began_s = 0, _FIRST_PAUSE_S, time.monotonic()
        looked_for_peers_s = began_s
        while True:
            values = _values_of(self._memory[at : at + _SLOT_BYTES], number)
            if values is not None and len(values) == count:
                return values
            if values is not None:
                self._refuse(rank, len(values), count)
            num_looks += 1
            if num_looks < _LOOKS_AT_ONCE:
                os.sched_yield()
                continue
            now_s = time.monotonic()
            if now_s - looked_for_peers_s >= _LOOK_FOR_PEERS_EVERY_S:
                looked_for_peers_s = now_s
                self._check(rank, now_s - began_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _refuse(self, rank: int, theirs: int, ours: int) -> NoReturn:
        raise TrainingError(
            code="ranks-differ",
            what=f"Rank {rank} makes another call than rank {self._rank}: a sum of {theirs} numbers, not {ours}.",
            next_step="Let every worker build the same model and make the same calls in the same order.",
        )

    def _check(self, rank: int, waited_s: float) -> None:
        if waited_s < self._timeout_s and is_running(self._peers[rank]):
            return
        raise Retryable(
            code="peer-lost",
            what=f"Rank {self._rank} waited {waited_s:.0f} s for rank {rank}, whose process has ended or stands still.",
            next_step=f"See the output of rank {rank}: gscalar logs RUN --rank {rank}.",
        )


def _values_of(slot: bytes, number: int) -> tuple[float, ...] | None:
    """Return the values of a sum that a slot holds; None where they are not there yet, or not wholly."""
    theirs, count = _HEAD.unpack_from(slot)
    if theirs != number or count > _MAX_VALUES:
        return None
    size = _HEAD.size + 8 * count
    if zlib.crc32(slot[:size]) != _CHECKSUM.unpack_from(slot, size)[0]:
        return None
    return struct.unpack_from(f"<{count}d", slot, _HEAD.size)


def _peers(group: Group, launch: Launch) -> list[str]:
    """Return the names of all ranks' processes."""
    names = group.gather(process_name(os.getpid()).encode())
    told = group.broadcast(msgspec.json.encode([name.decode() for name in names]))
    peers: list[str] = msgspec.json.decode(told, type=list[str])
    assert len(peers) == launch.world
    return peers
