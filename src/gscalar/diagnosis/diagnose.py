"""From a timeline to a verdict: one principal cause, what else was found, and what each fix is worth.

Principal is the cause whose removal gains most by simulation, never the largest share of the time: what a share holds
may be hidden behind another. A finding must be worth 2 % of the step. Where nothing is, the answer is `none`; where
signals are missing that most of the time hangs on, it is `unknown`, and says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gscalar.diagnosis.fixes import proposals_for
from gscalar.diagnosis.hypotheses import examine_all
from gscalar.diagnosis.hypotheses.launch_bound import LONG_OPERATION_S
from gscalar.diagnosis.hypotheses.words import percent
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Diagnosis, Finding, Hypothesis, Status
from gscalar.model.timeline import DeviceUse, Floats, Signal, StepTimeline
from gscalar.prediction.edits import transfers, without_transfers
from gscalar.prediction.forecast import Forecast

LEAST_COST: Final = 0.02
MOST_REPLAY_ERROR: Final = 0.05
ENOUGH_STEPS: Final = 10
_FEWEST_STEPS: Final = 3
_MOST_DOUBTS: Final = 2
MOST_UNEXPLAINED: Final = 0.15  # of a device's time


def diagnose(timeline: StepTimeline) -> Diagnosis:
    """Return what holds a training back, what each fix is worth, and what could not be known."""
    seen = Seen.of(timeline)
    return diagnose_seen(seen, examine_all(seen))


def diagnose_seen(seen: Seen, hypotheses: Sequence[Hypothesis]) -> Diagnosis:
    """Return the diagnosis of hypotheses that were held against what was seen."""
    timeline, replay = seen.timeline, seen.replay
    costs = _costs(seen, hypotheses)
    findings = sorted(
        (
            _finding(seen, each, cost)
            for each, cost in zip(hypotheses, costs, strict=True)
            if each.status is Status.SUPPORTED and cost >= LEAST_COST
        ),
        key=lambda each: -(each.cost_share or 0.0),
    )
    unknown = _unknown(seen, hypotheses)
    fixes = _fixes(seen, hypotheses)
    return Diagnosis(
        source=timeline.source,
        name=timeline.name,
        step_median_s=float(np.median(replay.measured.frame_s)) if replay else _or_none(timeline.step_s, np.nanmedian),
        step_mean_s=seen.step_s if replay else _or_none(timeline.step_s, np.nanmean),
        num_steps=timeline.num_steps,
        num_ranks=timeline.num_ranks,
        world=seen.world,
        slowdown=replay.slowdown if replay else None,
        measured_over_ideal=replay.measured_over_ideal if replay else None,
        replay_error=replay.error if replay else None,
        principal=findings[0] if findings else _no_finding(seen, unknown),
        findings=tuple(findings),
        fixes=fixes,
        accounts=seen.accounts if timeline.num_steps else _device_accounts(timeline.devices),
        exposed_s=_exposed_s(seen),
        overlap_ratio=_overlap_ratio(seen),
        devices=tuple(_device(each, timeline) for each in timeline.devices),
        not_supported=tuple(
            each.cause.value
            for each, cost in zip(hypotheses, costs, strict=True)
            if each.status is Status.REJECTED or (each.status is Status.SUPPORTED and cost < LEAST_COST)
        ),
        unknown=unknown,
        unmatched=timeline.unmatched,
        notes=timeline.notes + (replay.measured.notes if replay else ()) + _replay_notes(seen),
    )


def _costs(seen: Seen, hypotheses: Sequence[Hypothesis]) -> list[float]:
    """Return what each cause costs, as a share of the step: by simulation, else of the time that was seen."""
    if seen.replay is None:
        return [each.share for each in hypotheses]
    removable = [each.removal for each in hypotheses if each.removal is not None]
    frames = iter(seen.replay.edited_s(removable))
    whole_s = float(seen.replay.replayed_s.mean())
    return [
        max(0.0, 1 - float(next(frames).mean()) / whole_s) if each.removal is not None else each.share
        for each in hypotheses
    ]


def _finding(seen: Seen, hypothesis: Hypothesis, cost: float) -> Finding:
    return Finding(
        cause=hypothesis.cause, ranks=hypothesis.ranks, stages=hypothesis.stages, cost_share=cost,
        confidence=_confidence(seen, hypothesis), evidence_for=hypothesis.evidence_for,
        evidence_against=hypothesis.evidence_against,
    )  # fmt: skip


def _confidence(seen: Seen, hypothesis: Hypothesis) -> str:
    doubts = hypothesis.doubts
    if seen.replay is None or abs(seen.replay.error) > MOST_REPLAY_ERROR:
        doubts += 1
    doubts += seen.timeline.world > seen.timeline.num_ranks  # a rank that is not seen may be what others wait for
    if seen.timeline.is_cut:
        doubts += _MOST_DOUBTS
    num_steps = seen.timeline.num_steps
    doubts += (num_steps < ENOUGH_STEPS) + (num_steps < _FEWEST_STEPS)
    return ("high", "medium", "low")[min(doubts, _MOST_DOUBTS)]


def _no_finding(seen: Seen, unknown: Mapping[str, str]) -> Finding:
    """Return that nothing is wrong, or that nobody can say."""
    judged = bool(seen.timeline.devices) or (seen.replay is not None and Signal.COMPUTE not in seen.timeline.unknown)
    cause = Cause.NONE if judged and "idle" not in unknown else Cause.UNKNOWN
    decisive = ("idle", Signal.COMPUTE, Signal.DEVICE, Signal.STEPS, "replay")
    nothing = f"no cause that could be looked for is supported and costs {percent(LEAST_COST)} of the time"
    missing = tuple(f"{what}: {unknown[what]}" for what in decisive if what in unknown)
    supporting, against = ((nothing,), ()) if cause is Cause.NONE else ((), missing)
    enough = (
        seen.replay is not None
        and abs(seen.replay.error) <= MOST_REPLAY_ERROR
        and seen.timeline.num_steps >= ENOUGH_STEPS
    )
    return Finding(
        cause=cause, ranks=(), stages=(), cost_share=None,
        confidence="low" if cause is Cause.UNKNOWN or seen.timeline.is_cut else "high" if enough else "medium",
        evidence_for=supporting, evidence_against=against,
    )  # fmt: skip


def _unknown(seen: Seen, hypotheses: Sequence[Hypothesis]) -> dict[str, str]:
    """Return what is not known, with the reason: signals of the source, idle time, and causes."""
    timeline = seen.timeline
    found = {signal.value: why for signal, why in timeline.unknown.items()}
    if not timeline.num_steps:
        found.setdefault(Signal.STEPS.value, "the source has no steps: what was seen is one window of time")
    elif seen.replay is None:
        found["replay"] = seen.why_no_replay
    for each in hypotheses:
        if each.status is Status.UNKNOWN:
            found.setdefault(each.cause.value, each.missing)
    found |= _unknown_fixes(seen)
    idle = _unexplained_idle(seen)
    if idle > MOST_UNEXPLAINED:
        found["idle"] = f"{percent(idle)} of the devices' time is idle, and nothing that is seen explains it"
    return found


def _unknown_fixes(seen: Seen) -> dict[str, str]:
    """Return which of the standing fixes nobody can price, with the reason."""
    if seen.replay is None:
        return {}
    timeline, reasons = seen.timeline, {}
    if Signal.COMMUNICATION in timeline.unknown and not transfers(seen.steps).any():
        reasons["overlap"] = timeline.unknown[Signal.COMMUNICATION]
    if not seen.knows_compute:
        reasons["balance"] = seen.why_no_compute
    elif not (seen.knows_arrivals or timeline.is_pipeline or seen.world == 1):
        why = timeline.unknown.get(Signal.ARRIVALS, f"{timeline.num_ranks} of {seen.world} ranks are seen")
        reasons["balance"] = f"what balance gains hangs on ranks that are not seen: {why}"
    return reasons


def _unexplained_idle(seen: Seen) -> float:
    """Return the share of the devices' time that is idle without late launches of short operations, or a stall.

    A launch is late behind a stall too, so that the larger of the two counts. A late launch after long operations is
    no fault of their number: something holds the host up, and what that is must be seen.
    """
    devices = seen.timeline.devices
    span_s = sum(each.span_s for each in devices)
    if span_s <= 0:
        return 0.0
    late_s = sum(
        each.idle_launch_s
        for each in devices
        if np.isfinite(each.idle_launch_s) and each.median_operation_s <= LONG_OPERATION_S
    )
    stalled = sum(seen.share(account) for account in ("data_wait", "checkpoint", "gc"))
    idle = sum(each.idle_s for each in devices) / span_s
    if seen.replay is not None:
        # A device's span ends with its last operation, and a step may last longer.
        idle = max(idle, seen.share("host_gap"))
    return idle - max(late_s / span_s, stalled)


def _fixes(seen: Seen, hypotheses: Sequence[Hypothesis]) -> tuple[Forecast, ...]:
    if seen.replay is None:
        return _window_fixes(seen)
    found = seen.replay.forecast(proposals_for(seen, hypotheses), clock_error_s=seen.clock_error_s)
    unknown = set(_unknown_fixes(seen))
    return tuple(_not_known(each.name, each.knob) if unknown & set(each.name.split("+")) else each for each in found)


def _not_known(name: str, knob: str) -> Forecast:
    """Return a fix of which nobody can say what it is worth."""
    nothing = math.nan
    return Forecast(
        name=name, knob=knob, predicted_step_s=nothing, low_s=nothing, high_s=nothing, predicted_mean_s=nothing,
        gain=nothing, ceiling=nothing,
    )  # fmt: skip


def _window_fixes(seen: Seen) -> tuple[Forecast, ...]:
    """Price the standing fixes where there is one window of time and no steps: a ceiling of overlap, and no more."""
    devices = seen.timeline.devices
    span_s, exposed_s = sum(each.span_s for each in devices), sum(each.exposed_s for each in devices)
    spare_s = sum(min(each.exposed_s, max(0.0, each.compute_s - each.overlap_s)) for each in devices)
    nothing = math.nan
    ceiling = span_s / (span_s - exposed_s) if span_s > exposed_s else nothing
    gain = span_s / (span_s - spare_s) if span_s > spare_s else nothing
    overlap = replace(_not_known("overlap", "plan.overlap.buckets_mb=auto"), gain=gain, ceiling=ceiling)
    return (
        overlap,
        _not_known("balance", "plan.balance.kind=cost"),
        _not_known("overlap+balance", f"{overlap.knob} plan.balance.kind=cost"),
    )


def _exposed_s(seen: Seen) -> float | None:
    if seen.timeline.num_steps:
        return seen.accounts["exposed_communication"]
    return sum(each.exposed_s for each in seen.timeline.devices) if seen.timeline.devices else None


def _overlap_ratio(seen: Seen) -> float | None:
    """Return how much of the communication something is computed beside; None where none is seen."""
    devices = seen.timeline.devices
    moved_s = sum(each.communication_s for each in devices)
    if moved_s > 0:
        return sum(each.overlap_s for each in devices) / moved_s
    if seen.replay is None or seen.timeline.is_pipeline or not transfers(seen.steps).any() or seen.transfer_s <= 0:
        return None
    exposed_s = float((seen.replay.replayed_s - seen.replay.edited_s([without_transfers])[0]).mean())
    return min(1.0, max(0.0, 1 - exposed_s / seen.transfer_s))


def _device_accounts(devices: Sequence[DeviceUse]) -> dict[str, float | None]:
    """Return what devices did in the window, in seconds over all of them."""
    if not devices:
        return {}
    sums = {
        "compute": sum(each.compute_s for each in devices),
        "exposed_communication": sum(each.exposed_s for each in devices),
        "idle": sum(each.idle_s for each in devices),
        "idle_launch": sum(each.idle_launch_s for each in devices),
        "idle_queued": sum(each.idle_queued_s for each in devices),
        "idle_other": sum(each.idle_other_s for each in devices),
    }
    return {name: seconds if math.isfinite(seconds) else None for name, seconds in sums.items()}


def _device(use: DeviceUse, timeline: StepTimeline) -> dict[str, float | None]:
    moved_s = use.communication_s
    values = {
        "rank": timeline.ranks[use.rank].rank, "device": use.device, "span_s": use.span_s, "busy_s": use.busy_s,
        "compute_s": use.compute_s, "communication_s": moved_s, "exposed_s": use.exposed_s, "idle_s": use.idle_s,
        "idle_launch_s": use.idle_launch_s, "idle_queued_s": use.idle_queued_s, "idle_other_s": use.idle_other_s,
        "overlap_ratio": use.overlap_s / moved_s if moved_s > 0 else math.nan,
        "overlap_with_copies_ratio": use.overlap_with_copies_s / moved_s if moved_s > 0 else math.nan,
    }  # fmt: skip
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _replay_notes(seen: Seen) -> tuple[str, ...]:
    if seen.replay is None or abs(seen.replay.error) <= MOST_REPLAY_ERROR:
        return ()
    return (f"the replay of the measured steps is off by {percent(abs(seen.replay.error))}: predictions are rough",)


def _or_none(values: Floats, reduce: Callable[[Floats], float]) -> float | None:
    return float(reduce(values)) if np.isfinite(values).any() else None
