"""Operations are bound by the memory's bandwidth: bytes a second near the ceiling, arithmetic far below it.

Formula: the roofline; xprof calls it bound where HBM is above 70 % and compute below 50 %. At m of the bandwidth and
a of the arithmetic, computes that moved no bytes would take a / m of their time: what that gains is a ceiling. It takes
counters of bytes moved, which neither our record nor a trace has: without them nothing is said, for or against.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import percent
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Signal
from gscalar.prediction.edits import COMPUTES, scaled

LEAST_BANDWIDTH: Final = 0.7
MOST_COMPUTE: Final = 0.5
BANDWIDTH: Final = "memory_bandwidth_ratio"  # of the ceiling, by rank
ARITHMETIC: Final = "arithmetic_ratio"


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    counters = seen.timeline.counters
    if not all(name in counters and np.isfinite(counters[name]).any() for name in (BANDWIDTH, ARITHMETIC)):
        return unknown(Cause.MEMORY_BANDWIDTH, seen.timeline.unknown.get(Signal.MEMORY_BANDWIDTH, "no counters"))
    moved, computed = float(np.nanmean(counters[BANDWIDTH])), float(np.nanmean(counters[ARITHMETIC]))
    text = f"memory at {percent(moved)} of its ceiling, arithmetic at {percent(computed)}"
    if moved < LEAST_BANDWIDTH or computed > MOST_COMPUTE:
        return rejected(Cause.MEMORY_BANDWIDTH, text)
    devices = seen.timeline.devices
    span_s, compute_s = sum(each.span_s for each in devices), sum(each.compute_s for each in devices)
    return Hypothesis(
        cause=Cause.MEMORY_BANDWIDTH, status=Status.SUPPORTED, evidence_for=(text,),
        removal=scaled(*COMPUTES, by=computed / moved) if seen.replay is not None else None,
        share=(1 - computed / moved) * compute_s / span_s if span_s > 0 else 0.0,
    )  # fmt: skip
