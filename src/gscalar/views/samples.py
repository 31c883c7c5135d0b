"""Which samples a run has consumed, read from its record: the proof that an epoch met each of them once.

Every step of every rank says which positions of the global order it took; `SampleOrder` says which sample a
position is. What an attempt did after the checkpoint from which a later one went on does not count: those
steps were done again. A rank that was killed may have told of one step less than another.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gscalar.base.errors import Damaged
from gscalar.model.events import Resumed, SampleOrder, Step
from gscalar.model.shares import Share, unpack_shares
from gscalar.runtime.cursor import Permutation
from gscalar.state.home import RunFolder
from gscalar.state.records import Damage, read_record

_WORKER_RECORD: Final = re.compile(r"a(\d+)-r(\d+)\.rec")


@dataclass(slots=True)
class _Told:
    """What one worker's record tells of its samples."""

    resumed: int | None = None  # the step from which it went on
    orders: dict[int, SampleOrder] = field(default_factory=dict)
    steps: list[tuple[int, bytes]] = field(default_factory=list)


def consumed_samples(folder: RunFolder, epoch: int, data: int = 0) -> Counter[int]:
    """Return how often each sample of an epoch was consumed, over all ranks and attempts.

    `data` is the number of the data object, in the order of first use. For data that a sampler of the user's orders
    the keys are positions in what it listed, and for a stream they are batches.

    Raises:
        Damaged: `record-damaged`, the count would not be the truth.
    """
    attempts = _read_attempts(folder)
    counts: Counter[int] = Counter()
    last_step: float = float("inf")
    for attempt in sorted(attempts, reverse=True):
        for told in attempts[attempt]:
            rows = [share for step, shares in told.steps if step <= last_step for share in unpack_shares(shares)]
            counts.update(_samples([row for row in rows if (row.data, row.epoch) == (data, epoch)], told.orders))
        began_at = [told.resumed for told in attempts[attempt] if told.resumed is not None]
        if began_at or any(told.steps for told in attempts[attempt]):
            last_step = min(last_step, began_at[0] if began_at else 0)
    return counts


def _samples(rows: list[Share], orders: dict[int, SampleOrder]) -> list[int]:
    """Return the samples at the positions of these rows, which are of one data object and epoch."""
    if not rows:
        return []
    positions: NDArray[np.int64] = np.concatenate([np.arange(row.begin, row.end, dtype=np.int64) for row in rows])
    order = orders[rows[0].data]
    if order.shuffle:
        positions = Permutation(order.size, order.seed, rows[0].epoch).at(positions)
    return [int(position) for position in positions]


def _read_attempts(folder: RunFolder) -> dict[int, list[_Told]]:
    """Return what the ranks of each attempt tell."""
    attempts: dict[int, list[_Told]] = {}
    for path in sorted(folder.records.iterdir()):
        if match := _WORKER_RECORD.fullmatch(path.name):
            attempts.setdefault(int(match[1]), []).append(_read_worker(path))
    return attempts


def _read_worker(path: Path) -> _Told:
    told = _Told()
    for item in read_record(path):
        if isinstance(item, Damage):
            raise Damaged(
                code="record-damaged",
                what=f"Bytes {item.offset} to {item.end} of a record are damaged, so its steps cannot be counted.",
                value=item.reason,
                where=str(path),
                next_step="Count another epoch, or look at the record with `gscalar doctor`.",
            )
        event = item.event
        if isinstance(event, Step):
            told.steps.append((event.step, event.shares))
        elif isinstance(event, SampleOrder):
            told.orders[event.data] = event
        elif isinstance(event, Resumed):
            told.resumed = event.step
    return told
