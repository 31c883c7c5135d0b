"""The twelve causes that are looked for, each held against what was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gscalar.diagnosis.hypotheses import (
    exposed_communication,
    launch_bound,
    loading,
    memory_bandwidth,
    noise,
    slow_link,
    slow_worker,
    stage_imbalance,
    stalls,
    work_imbalance,
)
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, unknown

_ALWAYS: Final[dict[Cause, Callable[[Seen], Hypothesis]]] = {
    Cause.EXPOSED_COMMUNICATION: exposed_communication.examine,
    Cause.LAUNCH_BOUND: launch_bound.examine,
    Cause.MEMORY_BANDWIDTH: memory_bandwidth.examine,
}
_OF_STEPS: Final[dict[Cause, Callable[[Seen], Hypothesis]]] = {
    Cause.SLOW_WORKER: slow_worker.examine,
    Cause.WORK_IMBALANCE: work_imbalance.examine,
    Cause.STAGE_IMBALANCE: stage_imbalance.examine,
    Cause.SLOW_LINK: slow_link.examine,
    Cause.INPUT_BOUND: loading.examine_input,
    Cause.SLOW_READER: loading.examine_reader,
    Cause.CHECKPOINT_STALL: stalls.examine_checkpoints,
    Cause.GARBAGE_COLLECTION: stalls.examine_collections,
    Cause.NOISE: noise.examine,
}
_OF_COMPUTE: Final = (Cause.SLOW_WORKER, Cause.WORK_IMBALANCE, Cause.NOISE)


def examine_all(seen: Seen) -> list[Hypothesis]:
    """Return all hypotheses, held against what was seen."""
    found = [examine(seen) for examine in _ALWAYS.values()]
    if seen.replay is None:
        return found + [unknown(cause, seen.why_no_replay) for cause in _OF_STEPS]
    not_seen = () if seen.knows_compute else _OF_COMPUTE
    return found + [
        unknown(cause, seen.why_no_compute) if cause in not_seen else examine(seen)
        for cause, examine in _OF_STEPS.items()
    ]
