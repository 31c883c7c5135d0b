"""Two causes in the loading of data: all ranks wait for batches, or one of them does and holds the others up.

Formula: the share of the step that ranks wait for a batch (xprof: 5 % moderate, 20 % high) with an empty queue, which
is the decisive evidence, or with the training's own process loading; a wait alone can come from elsewhere. One
reader is slow where its wait stands out among the ranks' and is most of what all wait for.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import ms, percent, ranks_named
from gscalar.diagnosis.seen import Seen, lower_median
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Floats, Signal
from gscalar.prediction.edits import labels_scaled, readers_evened
from gscalar.prediction.forecast import Proposal

LEAST_SHARE: Final = 0.05
LEAST_EMPTY: Final = 0.5
OUTSTANDING: Final = 3.0  # times the median wait of the others
LEAST_PERSISTENCE: Final = 0.5  # of the steps, in which its wait exceeds the others' by
OF_EXCESS: Final = 0.25  # of what it exceeds them by on average


def slow_readers(seen: Seen) -> tuple[int, ...]:
    """Return the indices of ranks whose wait for data stands out, lastingly, at most at half of the ranks."""
    waits = _waits(seen)
    if len(waits) < 2:
        return ()
    mean_s = waits.mean(axis=1)
    usual_s = float(lower_median(mean_s[None])[0])
    stands_out = (mean_s > OUTSTANDING * usual_s) & (mean_s - usual_s > LEAST_SHARE * seen.step_s)
    lasting = (waits > np.median(waits, axis=0) + OF_EXCESS * (mean_s[:, None] - usual_s)).mean(
        axis=1
    ) >= LEAST_PERSISTENCE
    found = np.nonzero(stands_out & lasting)[0]
    return tuple(int(at) for at in found) if 2 * len(found) <= len(waits) else ()


def examine_reader(seen: Seen) -> Hypothesis:
    """Hold "one reader is slow" against what was seen."""
    if Signal.DATA_WAIT in seen.timeline.unknown or seen.timeline.is_pipeline:
        return unknown(Cause.SLOW_READER, seen.timeline.unknown.get(Signal.DATA_WAIT, "no loader is seen"))
    if seen.timeline.num_ranks < 2:
        return rejected(Cause.SLOW_READER, "one rank is seen")
    found = slow_readers(seen)
    if not found:
        return rejected(Cause.SLOW_READER, "no rank's wait for data stands out")
    waits = _waits(seen).mean(axis=1)
    ranks = tuple(seen.timeline.ranks[at].rank for at in found)
    others = np.delete(waits, found)
    fix = reader_fix(seen, found)
    return Hypothesis(
        cause=Cause.SLOW_READER, status=Status.SUPPORTED, ranks=ranks, removal=fix.likely,
        evidence_for=(
            f"{ranks_named(ranks)}: {ms(float(waits[list(found)].mean()))} of waiting for data a step, "
            f"the others {ms(float(np.median(others)))}",
        ),
        proposals=(fix,),
    )  # fmt: skip


def reader_fix(seen: Seen, found: tuple[int, ...]) -> Proposal:
    """Return the fix of slow readers, which are indices of ranks."""
    edit = readers_evened(found)
    ranks = ranks_named([seen.timeline.ranks[at].rank for at in found])
    return Proposal(
        name="reader", knob=f"move or re-stripe the data of {ranks}", likely=edit, ceiling=edit, uncertainty=0.1
    )


def examine_input(seen: Seen) -> Hypothesis:
    """Hold "the training waits for its loaders" against what was seen."""
    if Signal.DATA_WAIT in seen.timeline.unknown or seen.accounts["data_wait"] is None:
        return unknown(Cause.INPUT_BOUND, seen.timeline.unknown.get(Signal.DATA_WAIT, "no loader is seen"))
    if slow_readers(seen):
        return rejected(Cause.INPUT_BOUND, "only some ranks wait for data")
    share = seen.share("data_wait")
    if share < LEAST_SHARE:
        return rejected(Cause.INPUT_BOUND, f"ranks wait {percent(share)} of a step for data")
    loading = seen.timeline.loading
    supporting = [f"the training waits {ms(share * seen.step_s)} a step for a batch, {percent(share)} of the step"]
    doubts = 0
    if loading is not None and loading.num_workers == 0:
        supporting.append("batches are made in the training's own process")
    elif loading is not None and np.isfinite(loading.queue_empty).any():
        empty = float(np.nanmean(loading.queue_empty))
        if empty < LEAST_EMPTY:
            return rejected(Cause.INPUT_BOUND, f"the queue was empty at {percent(empty)} of the waits only")
        supporting.append(f"the queue was empty at {percent(empty)} of the waits")
    else:
        doubts = 1
    return Hypothesis(
        cause=Cause.INPUT_BOUND, status=Status.SUPPORTED, evidence_for=tuple(supporting), doubts=doubts,
        evidence_against=("the loader's queue is not seen",) if doubts else (),
        removal=labels_scaled("data_wait", by=0.0),
    )  # fmt: skip


def _waits(seen: Seen) -> Floats:
    waits: Floats = seen.steps.durations[seen.steps.labelled("data_wait")].sum(axis=0)
    return waits
