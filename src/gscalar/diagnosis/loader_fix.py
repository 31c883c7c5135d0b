"""The loader fix: more loaders, so that a batch is ready when it is asked for; what they hand over still costs."""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.seen import Seen
from gscalar.prediction.edits import labels_scaled, waits_set
from gscalar.prediction.forecast import Proposal
from gscalar.prediction.loading import LoadedSteps, predict_loader

_NUMBERS: Final = (4, 8, 16)  # of loaders that are tried
_ENOUGH: Final = 0.02  # of the step: a wait that is not worth more loaders


def loader_proposal(seen: Seen) -> Proposal | None:
    """Return the fix of more loaders, of as few as will do, or of many; None where no wait for data is seen."""
    loading = seen.timeline.loading
    if loading is None or not seen.accounts["data_wait"]:
        return None
    now = loading.num_workers
    numbers = [each for each in _NUMBERS if each > now] or [2 * now]
    tried = ((num, _loaded(seen, num)) for num in numbers)
    num, loaded = next(found for found in tried if found[0] == numbers[-1] or _is_enough(seen, found[1]))
    return Proposal(
        name="loader", knob=f"num_workers={num}", likely=waits_set(loaded.wait_s),
        ceiling=labels_scaled("data_wait", by=0.0), uncertainty=0.05, extra_s=loaded.residue_sd_s,
    )  # fmt: skip


def _is_enough(seen: Seen, loaded: LoadedSteps) -> bool:
    return float(np.nanmean(loaded.wait_s - loaded.residue_s)) <= _ENOUGH * seen.step_s


def _loaded(seen: Seen, num_workers: int) -> LoadedSteps:
    timeline, loading = seen.timeline, seen.timeline.loading
    assert loading is not None
    # The steps that are replayed are some of those that were seen.
    steps = np.searchsorted(timeline.steps, seen.steps.steps)
    # As it is replayed: a rank whose wait is not seen keeps none.
    wait_s = np.nan_to_num(timeline.account("data_wait")[:, steps])
    return predict_loader(
        timeline.step_s[:, steps], wait_s, loading.work_s[:, steps], loading.copy_s[:, steps], loading.batch_bytes,
        loading.num_workers, num_workers,
    )  # fmt: skip
