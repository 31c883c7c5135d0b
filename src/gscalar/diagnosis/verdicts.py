"""The words of a diagnosis: causes, how a hypothesis fared, findings, and the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gscalar.prediction.edits import Edit
from gscalar.prediction.forecast import Forecast, Proposal


class Cause(StrEnum):
    """What may hold a training back."""

    SLOW_WORKER = "slow_worker"
    WORK_IMBALANCE = "work_imbalance"
    STAGE_IMBALANCE = "stage_imbalance"
    SLOW_LINK = "slow_link"
    EXPOSED_COMMUNICATION = "exposed_communication"
    INPUT_BOUND = "input_bound"
    SLOW_READER = "slow_reader"
    LAUNCH_BOUND = "launch_bound"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    CHECKPOINT_STALL = "checkpoint_stall"
    GARBAGE_COLLECTION = "garbage_collection"
    NOISE = "noise"
    NONE = "none"
    UNKNOWN = "unknown"


FIX_NAMES: Final = (
    "overlap", "balance", "overlap+balance", "replace_worker", "repartition", "faster_link", "compress", "loader",
    "reader", "larger_batch", "fuse", "checkpoint", "gc", "isolate",
)  # fmt: skip


class Status(StrEnum):
    """How a hypothesis fared."""

    SUPPORTED = "supported"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One cause held against what was seen.

    `removal` is the edit that takes the cause away, by which its cost is simulated; `share` is its cost where nothing
    can be replayed, of the time that was seen. `proposals` are the fixes that it asks for.
    """

    cause: Cause
    status: Status
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    doubts: int = 0  # signals that could have told against it, and are not there
    missing: str = ""  # why its status is unknown
    removal: Edit | None = None
    share: float = 0.0
    proposals: tuple[Proposal, ...] = ()


def rejected(cause: Cause, *against: str) -> Hypothesis:
    """Return a hypothesis that the evidence does not support."""
    return Hypothesis(cause=cause, status=Status.REJECTED, evidence_against=against)


def unknown(cause: Cause, missing: str) -> Hypothesis:
    """Return a hypothesis that nothing is known about, and what is missing."""
    return Hypothesis(cause=cause, status=Status.UNKNOWN, missing=missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause that the evidence supports, and what it costs: a share of the step, by simulation."""

    cause: Cause
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    cost_share: float | None
    confidence: str  # high | medium | low
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What was found. Times are seconds; what is not known is None and named in `unknown`."""

    source: str
    name: str
    step_median_s: float | None
    step_mean_s: float | None
    num_steps: int
    num_ranks: int
    world: int
    slowdown: float | None
    measured_over_ideal: float | None
    replay_error: float | None
    principal: Finding
    findings: tuple[Finding, ...]
    fixes: tuple[Forecast, ...]
    accounts: Mapping[str, float | None]
    exposed_s: float | None
    overlap_ratio: float | None
    devices: tuple[Mapping[str, float | None], ...]
    not_supported: tuple[str, ...]
    unknown: Mapping[str, str]
    unmatched: tuple[str, ...]
    notes: tuple[str, ...]
