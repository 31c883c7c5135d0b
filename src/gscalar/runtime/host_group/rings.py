"""The ring all-reduce: sums of arrays over ranks of several hosts, each of which sends to the next one only.

The buffer is cut into as many chunks as there are ranks. In `world - 1` rounds a chunk's sum goes around and is added
to at every rank, until one rank has it whole; in as many rounds more the whole sums go around and are copied. A rank
sends and receives `2 (world - 1) / world` of the buffer. A chunk's order of addition starts at the rank of its number
and follows the ring, and one rank's result is copied to all: all ranks have the same bits. With two ranks that is
a + b.

Chunks travel in pieces. What a rank sends in a round is what it received in the round before, so a piece is sent on
as soon as it has been added, while the next one arrives: no round waits for the one before to end.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gscalar.runtime.host_group.arrays import part
from gscalar.runtime.host_group.links import Links

_PIECE_BYTES: Final = 1024 * 1024


class RingSum:
    """Sums around the ring, one at a time."""

    def __init__(self, links: Links, rank: int, world: int) -> None:
        self._links = links
        self._rank, self._world = rank, world
        self._after, self._before = (rank + 1) % world, (rank - 1) % world

    def add_up(self, buffer: NDArray[Any], tag: int) -> None:
        """Put the sum over all ranks into the buffer, which is contiguous and flat."""
        self._links.compare(tag, to=[self._after], of=[self._before])
        route = Route(self._rank, self._world, buffer)
        scratch = np.empty(route.longest, buffer.dtype)
        sent, received = 0, route.num_pieces  # both count along the same route
        sent_bytes = received_bytes = 0
        while sent < route.last_sent or received < route.length:
            outgoing = _bytes(route.piece(sent)) if sent < min(received, route.last_sent) else None
            whole = route.piece(received) if received < route.length else None
            adds = received < route.first_copied
            incoming = None if whole is None else _bytes(scratch[: whole.size] if adds else whole)
            num_sent, num_received = self._links.move(
                self._after,
                None if outgoing is None else outgoing[sent_bytes:],
                self._before,
                None if incoming is None else incoming[received_bytes:],
            )
            sent_bytes += num_sent
            received_bytes += num_received
            if outgoing is not None and sent_bytes == len(outgoing):
                sent, sent_bytes = sent + 1, 0
            if whole is not None and incoming is not None and received_bytes == len(incoming):
                if adds:
                    np.add(scratch[: whole.size], whole, out=whole)
                received, received_bytes = received + 1, 0


class Route:
    """The pieces of a buffer in the order in which they pass one rank.

    The rank's own chunk comes first, then the one before it, and so on, nearly twice around. Piece `i` is received
    (but for those of the first chunk), and piece `i` is sent (but for those of the last chunk): after it was received.
    """

    def __init__(self, rank: int, world: int, buffer: NDArray[Any]) -> None:
        self._rank, self._world, self._buffer = rank, world, buffer
        self._chunks = [part(buffer.size, world, number) for number in range(world)]
        longest = max(chunk.stop - chunk.start for chunk in self._chunks)
        self.num_pieces = max(1, -(-longest * buffer.itemsize // _PIECE_BYTES))  # of every chunk
        self.longest = -(-longest // self.num_pieces)
        self.length = (2 * world - 1) * self.num_pieces
        self.last_sent = self.length - self.num_pieces
        self.first_copied = world * self.num_pieces  # pieces before it are added to, from it on they are whole

    def piece(self, index: int) -> NDArray[Any]:
        """Return a piece of the buffer as a view; it may be empty."""
        leg, number = divmod(index, self.num_pieces)
        chunk: NDArray[Any] = self._buffer[self._chunks[(self._rank - leg) % self._world]]
        piece: NDArray[Any] = chunk[part(chunk.size, self.num_pieces, number)]
        return piece


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data
