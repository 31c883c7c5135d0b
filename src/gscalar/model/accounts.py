"""The exclusive shares of a step's time: every moment of a rank's step is in exactly one account.

A step reaches from the end of the step before (the first: from the first batch that was asked for) to
its own end, without the evaluation in between. So its accounts sum to its duration.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

# In the order in which they lie in `Step.accounts`. A new one goes to the end.
ACCOUNTS: Final[dict[str, str]] = {
    "compute": "forward and backward: from the batch to `step`, and the backward but for what follows in this table",
    "exposed_communication": "waiting for a collective while nothing is computed",
    "data_wait": "waiting for the next batch",
    "h2d": "copying the batch to the device",
    "optimizer": "clipping, the update, the schedule, zeroing the gradient",
    "checkpoint": "the training's wait for a checkpoint: the copy, and what is left of the write before",
    "gc": "Python's garbage collection, wherever it struck",
    "host_gap": "the script's own work between a step and the next batch, such as logging",
    "other": "what is left: Scalar's own work, and whatever nothing else explains",
}
_PACKED: Final = struct.Struct(f"<{len(ACCOUNTS)}d")


def pack_accounts(seconds: dict[str, float]) -> bytes:
    """Return the accounts of one step as a `Step` event carries them: little-endian float64, absent ones 0."""
    return _PACKED.pack(*(seconds.get(name, 0.0) for name in ACCOUNTS))


def pack_nanoseconds(accounts_ns: Sequence[int]) -> bytes:
    """Return the accounts, given in the order of `ACCOUNTS` in nanoseconds, as a `Step` event carries them."""
    return _PACKED.pack(*(ns / 1e9 for ns in accounts_ns))


def unpack_accounts(packed: bytes) -> dict[str, float]:
    """Return seconds by account; empty where the step's writer did not measure them.

    A record of an older version may hold fewer accounts, one of a newer version more: the known ones count.
    """
    num = min(len(packed) // 8, len(ACCOUNTS))
    return dict(zip(ACCOUNTS, struct.unpack_from(f"<{num}d", packed), strict=False))
