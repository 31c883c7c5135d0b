"""The steps of one rank as columns, and the collectives of many as one dense table.

Spans and collectives are rows of whole microseconds from their step's begin. Those of all steps of a rank are
joined and looked at together: a Python object for each of them would cost more than reading the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gscalar.model.accounts import ACCOUNTS, unpack_accounts
from gscalar.model.events import Clock, Collectives, Spans
from gscalar.model.spans import CollectiveKind, SpanKind
from gscalar.model.timeline import Floats, Ints
from gscalar.observation.clocks import to_rank0_time
from gscalar.observation.collectives import HOST_SUMS
from gscalar.views.record_ends import RecordEnd

Bools = npt.NDArray[np.bool_]
# A process tells of its clock once a minute, and at once where it has moved. Farther from what it told, clocks may run
# apart as fast as they are taken to do at most (`gscalar.observation.clocks`).
_TOLD_FOR_S: Final = 60.0
_MOST_DRIFT: Final = 1e-3
_SPAN_FIELDS: Final = 4
_COLLECTIVE_FIELDS: Final = 7


class Rows(NamedTuple):
    """Rows of whole numbers with the place of each one's step, `(num_rows,)` and `(num_rows, num_fields)`."""

    step: Ints
    fields: Ints

    def where(self, chosen: Bools) -> Rows:
        """Return the chosen rows."""
        return Rows(self.step[chosen], self.fields[chosen])

    def of_steps(self, kept: Bools) -> Rows:
        """Return the rows of the kept steps, which are numbered anew."""
        chosen = kept[self.step]
        return Rows((np.cumsum(kept) - 1)[self.step[chosen]], self.fields[chosen])


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The chosen steps of one rank, `(num_steps,)` each; times in ns of rank 0's clock."""

    begin_ns: Ints  # what spans and collectives count from
    end_ns: Ints
    duration_ns: Ints  # what the accounts sum to: without evaluation
    accounts: Floats  # (num_steps, num_accounts); NaN where they are not recorded
    own: dict[str, Floats]  # tokens, weight, samples
    spans: Rows  # kind, start, duration, value
    collectives: Rows  # kind, group, sequence, num_bytes, ready, start, end
    offset_s: float  # what was added to the rank's own times
    error_s: float  # they are wrong by at most this; NaN: nobody knows

    def keep(self, kept: Bools) -> Columns:
        """Return the columns of the kept steps alone."""
        return replace(
            self,
            begin_ns=self.begin_ns[kept],
            end_ns=self.end_ns[kept],
            duration_ns=self.duration_ns[kept],
            accounts=self.accounts[kept],
            own={name: column[kept] for name, column in self.own.items()},
            spans=self.spans.of_steps(kept),
            collectives=self.collectives.of_steps(kept),
        )


def read_columns(end: RecordEnd, steps: Sequence[int], clocks: Sequence[Clock] | None) -> Columns:
    """Return these steps of a rank; without any knowledge of its clock (None) its own times."""
    events = [end.steps[step] for step in steps]
    duration_ns = _nanoseconds([each.duration_s for each in events])
    span_rows = _join([end.spans.get(step) for step in steps], _SPAN_FIELDS)
    told = [end.spans[step].time_ns if step in end.spans else None for step in steps]
    own_ns = np.array(
        [
            each.time_ns - int(duration) if begin_ns is None else begin_ns
            for each, duration, begin_ns in zip(events, duration_ns, told, strict=True)
        ],
        np.int64,
    )
    begin_ns = np.array([to_rank0_time(int(each), clocks or ()) for each in own_ns], np.int64)
    return Columns(
        begin_ns=begin_ns,
        end_ns=begin_ns + duration_ns + _outside_ns(span_rows, len(steps)),
        duration_ns=duration_ns,
        accounts=_accounts([each.accounts for each in events]),
        own={
            "tokens": np.array([each.own_tokens for each in events]),
            "weight": np.array([each.own_weight for each in events]),
            "samples": np.array([each.own_samples for each in events]),
        },
        spans=span_rows,
        collectives=_join([end.collectives.get(step) for step in steps], _COLLECTIVE_FIELDS),
        offset_s=float((begin_ns[-1] - own_ns[-1]) / 1e9) if len(steps) else 0.0,
        error_s=float("nan") if clocks is None else max((_error_s(int(each), clocks) for each in own_ns), default=0.0),
    )


def choose_clocks(end: RecordEnd, rank: int, first_host: str, newest: Clock | None) -> list[Clock] | None:
    """Return how a rank's clock stands to rank 0's, by time: empty where it is the same, None where nobody knows.

    `newest` is an estimate that the ends of the record may lack. Processes of one host have one clock, unless what
    was measured excludes that: two machines may have one name.
    """
    if rank == 0:
        return []
    measured = sorted({*end.clocks, *([newest] if newest is not None else [])}, key=lambda each: each.time_ns)
    same = bool(first_host) and end.host == first_host
    if same and all(abs(each.offset_s) <= each.bound_s for each in measured):
        return []
    return measured or None


def _error_s(time_ns: int, clocks: Sequence[Clock]) -> float:
    """Return what the nearest estimate may be wrong by at a rank's own time."""
    if not clocks:
        return 0.0
    nearest = min(clocks, key=lambda each: abs(each.time_ns - time_ns))
    return nearest.bound_s + _MOST_DRIFT * max(0.0, abs(time_ns - nearest.time_ns) / 1e9 - _TOLD_FOR_S)


def _nanoseconds(seconds: list[float]) -> Ints:
    found: Ints = np.rint(np.nan_to_num(np.array(seconds, np.float64), posinf=0.0) * 1e9).astype(np.int64)
    return found


def _accounts(packed: list[bytes]) -> Floats:
    found = np.full((len(packed), len(ACCOUNTS)), np.nan)
    for at, each in enumerate(packed):
        if len(each) == found.itemsize * len(ACCOUNTS):
            found[at] = np.frombuffer(each, "<f8")
        elif each:  # of another version: what it did not tell apart is in another account
            found[at] = [unpack_accounts(each).get(name, 0.0) for name in ACCOUNTS]
    return found


def _join(events: Sequence[Spans | Collectives | None], num_fields: int) -> Rows:
    """Return the rows of all steps; half a row at the end of one is left out."""
    counts = [len(each.rows) // num_fields if each is not None else 0 for each in events]
    flat = itertools.chain.from_iterable(
        each.rows[: count * num_fields] for each, count in zip(events, counts, strict=True) if each is not None
    )
    total = sum(counts)
    fields = np.fromiter(flat, np.int64, total * num_fields).reshape(total, num_fields)
    return Rows(np.repeat(np.arange(len(events)), counts), fields)


def _outside_ns(spans: Rows, num_steps: int) -> Ints:
    """Return how long each step's frame was in no account: evaluation, but for the collections that struck in it."""
    outside = np.zeros(num_steps, np.int64)
    kind, start, duration = spans.fields[:, 0], spans.fields[:, 1], spans.fields[:, 2]
    for at in np.flatnonzero(kind == SpanKind.EVALUATION):
        inside = (kind == SpanKind.GC) & (spans.step == spans.step[at]) & (start >= start[at])
        inside &= start + duration <= start[at] + duration[at]
        outside[spans.step[at]] += 1000 * (duration[at] - duration[inside].sum())
    return outside


class Dense(NamedTuple):
    """Collectives that all ranks have in all kept steps, `(num_ranks, num_kept, num_collectives, num_fields)`.

    Fields are those of the rows: kind, group, sequence, num_bytes, and in ns of rank 0's clock ready, start, end.
    """

    kept: Bools  # which steps
    rows: Ints


def align_collectives(ranks: Sequence[Columns]) -> Dense | None:
    """Return the collectives that make ranks wait for each other; None where most steps have none in common.

    Those are the exchanges of gradients. The small sum that ends a step is sent when a rank has nothing left to
    compute, as its last gradients are: it waits for the same ranks at the same time and adds nothing to a replay. It
    stands in only where no exchange was seen, as on a GPU. What counts is the usual number of collectives in a step.
    """
    has_gradients = any((each.collectives.fields[:, 1] != HOST_SUMS).any() for each in ranks)
    tables = [_in_order(each.collectives, gradients=has_gradients) for each in ranks]
    num_steps = len(ranks[0].begin_ns)
    counts = np.stack([np.bincount(each.step, minlength=num_steps) for each in tables])
    alike = (counts == counts[0]).all(axis=0) & (counts[0] > 0)
    if not alike.any():
        return None
    usual = int(np.bincount(counts[0][alike]).argmax())
    kept = alike & (counts[0] == usual)
    rows = np.stack([each.fields[kept[each.step]].reshape(-1, usual, _COLLECTIVE_FIELDS) for each in tables])
    same = (rows[..., :3] == rows[:1, ..., :3]).all(axis=(0, 2, 3))
    kept[kept] = same
    rows = rows[:, same]
    if 2 * kept.sum() < num_steps:
        return None
    begin_ns = np.stack([each.begin_ns[kept] for each in ranks])
    rows[..., 4:] = rows[..., 4:] * 1000 + begin_ns[:, :, None, None]
    # A group works in order; several are laid out as the first rank issued them.
    issued = np.argsort((rows[0, :, :, 4] - begin_ns[0][:, None]).mean(axis=0), kind="stable")
    return Dense(kept, rows[:, :, issued])


def _in_order(rows: Rows, *, gradients: bool) -> Rows:
    chosen = rows.where(rows.fields[:, 1] != HOST_SUMS) if gradients else rows
    order = np.lexsort((chosen.fields[:, 2], chosen.fields[:, 1], chosen.step))
    return Rows(chosen.step[order], chosen.fields[order])


def kind_name(kind: int, kinds: type[SpanKind] | type[CollectiveKind]) -> str:
    """Return the name of a kind of span or collective in small letters; one of a newer version by its number."""
    names: Mapping[int, str] = {int(each): each.name.lower() for each in kinds}
    return names.get(kind, f"kind {kind}")
