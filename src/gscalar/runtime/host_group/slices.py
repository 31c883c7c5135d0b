"""Sums of arrays over ranks of one host, through memory that they share.

Every rank owns one slice of the buffer and adds it up over all ranks, in the order of ranks; the others read the
result. A rank needs to show others only what they own, so each number is written once, read once by its owner and
its sum read once by everybody else. Buffers are taken in pieces that stay in the processors' caches and bound the
memory, whatever is summed: a container often has 64 MB of /dev/shm.

The memory is a table of slots (rank, owner): `slot[r, o]` is what rank r shows the owner o, and `slot[o, o]` is o's
result. Ranks wait for one another twice a piece, by a few bytes through sockets: after all have shown theirs, and
after all have added. So results are not overwritten before they are read: a rank writes the next result only when
all have shown their next piece, which they do after reading.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gscalar.runtime.host_group.arrays import part
from gscalar.runtime.host_group.links import Links

_PIECE_BYTES: Final = 4 * 1024 * 1024
_MAX_BYTES: Final = 32 * 1024 * 1024
_ALIGNMENT: Final = 64  # a cache line; a multiple of every number's size


def memory_bytes(world: int) -> int:
    """Return how much memory the ranks share."""
    return world * world * _slot_bytes(world)


class SharedSum:
    """Sums through the memory, one at a time."""

    def __init__(self, memory: mmap.mmap, links: Links, rank: int, world: int) -> None:
        self._slots = np.frombuffer(memory, np.uint8).reshape(world, world, -1)
        self._links = links
        self._rank, self._world = rank, world
        self._others = [other for other in range(world) if other != rank]

    def add_up(self, buffer: NDArray[Any], tag: int) -> None:
        """Put the sum over all ranks into the buffer, which is contiguous and flat."""
        slots = self._slots.view(buffer.dtype)
        step = slots.shape[2] * self._world
        for begin in range(0, max(buffer.size, 1), step):
            self._add_piece(slots, buffer[begin : begin + step], tag)

    def _add_piece(self, slots: NDArray[Any], piece: NDArray[Any], tag: int) -> None:
        parts = [piece[part(piece.size, self._world, owner)] for owner in range(self._world)]
        own = parts[self._rank]
        for other in self._others:
            slots[self._rank, other, : parts[other].size] = parts[other]
        self._meet(tag)
        shown = [own if rank == self._rank else slots[rank, self._rank, : own.size] for rank in range(self._world)]
        total = slots[self._rank, self._rank, : own.size]
        np.add(shown[0], shown[1], out=total)
        for further in shown[2:]:
            np.add(total, further, out=total)
        own[:] = total
        self._meet(tag)
        for other in self._others:
            parts[other][:] = slots[other, other, : parts[other].size]

    def _meet(self, tag: int) -> None:
        self._links.compare(tag, to=self._others, of=self._others)


def _slot_bytes(world: int) -> int:
    piece = min(_PIECE_BYTES, _MAX_BYTES // world)
    return max(piece // world // _ALIGNMENT, 1) * _ALIGNMENT
