"""The loader fix: more loaders, so that a batch is ready when it is asked for; what they hand over still costs."""

from __future__ import annotations

from gscalar.diagnosis.seen import Seen
from gscalar.prediction.edits import labels_scaled
from gscalar.prediction.forecast import Proposal


def loader_proposal(seen: Seen) -> Proposal | None:
    """Return the fix of more loaders; None where no wait for data is seen."""
    if not seen.accounts["data_wait"]:
        return None
    edit = labels_scaled("data_wait", by=0.0)
    return Proposal(name="loader", knob="num_workers=4", likely=edit, ceiling=edit, uncertainty=0.3)
