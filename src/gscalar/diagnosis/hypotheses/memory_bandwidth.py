"""Operations are bound by the memory's bandwidth: bytes a second near the ceiling, arithmetic far below it.

Formula: the roofline; xprof calls it bound where HBM is above 70 % and compute below 50 %. It takes counters of bytes
moved, which neither our record nor a trace has: without them nothing is said, for or against.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import percent
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Signal

LEAST_BANDWIDTH: Final = 0.7
MOST_COMPUTE: Final = 0.5
BANDWIDTH: Final = "memory_bandwidth_ratio"  # of the ceiling, by rank
ARITHMETIC: Final = "arithmetic_ratio"


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    counters = seen.timeline.counters
    if BANDWIDTH not in counters or ARITHMETIC not in counters or not np.isfinite(counters[BANDWIDTH]).any():
        return unknown(Cause.MEMORY_BANDWIDTH, seen.timeline.unknown.get(Signal.MEMORY_BANDWIDTH, "no counters"))
    moved, computed = float(np.nanmean(counters[BANDWIDTH])), float(np.nanmean(counters[ARITHMETIC]))
    text = f"memory at {percent(moved)} of its ceiling, arithmetic at {percent(computed)}"
    if moved < LEAST_BANDWIDTH or computed > MOST_COMPUTE:
        return rejected(Cause.MEMORY_BANDWIDTH, text)
    return Hypothesis(cause=Cause.MEMORY_BANDWIDTH, status=Status.SUPPORTED, evidence_for=(text,), share=0.0)
