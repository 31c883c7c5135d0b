"""Which samples a rank consumed in a step: ranges of positions in the global order, as the record packs them.

Rows of little-endian int64: data object, epoch, first position, position after the last. A `SampleOrder`
event says which sample a position is. A rank that only took part in a step (padding) has no row for it. For a
stream a position is a batch of the epoch, counted over all ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple


class Share(NamedTuple):
    """One range of positions of one epoch's global order."""

    data: int
    epoch: int
    begin: int
    end: int


_SHARE: Final = struct.Struct("<4q")


def pack_shares(shares: Iterable[Share]) -> bytes:
    """Return the rows as `Step.shares` carries them."""
    return b"".join(_SHARE.pack(*share) for share in shares)


def unpack_shares(packed: bytes) -> Iterator[Share]:
    """Yield the ranges of `Step.shares`; half a row at the end is left out."""
    return (Share(*row) for row in _SHARE.iter_unpack(packed[: len(packed) // _SHARE.size * _SHARE.size]))
