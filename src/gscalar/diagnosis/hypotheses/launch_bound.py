"""The host cannot keep the device busy: operations are so short, or the script so slow, that the device waits for it.

Formula: the share of the time in which the device stood still and the next operation had not been issued yet (HTA: host
wait). xprof calls 3 % moderate and 15 % high. Idle time before operations that had been issued is not the host's fault.
Where no device is seen, the script's own work between two steps (`host_gap`) stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import ms, percent
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import DeviceUse, Signal
from gscalar.prediction.edits import labels_scaled
from gscalar.prediction.forecast import Proposal

LEAST_SHARE: Final = 0.15  # of a device's time
LEAST_HOST_SHARE: Final = 0.05  # of a step
LEAST_OF_IDLE: Final = 0.5  # what the host is to blame for must be most of the idle time
LONG_OPERATION_S: Final = 1e-3
LIKELY: Final = 0.5  # of the gaps goes where operations are half as many


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    devices = [each for each in seen.timeline.devices if np.isfinite(each.idle_launch_s) and each.span_s > 0]
    if devices:
        return _of_devices(seen, devices)
    if Signal.DEVICE not in seen.timeline.unknown and seen.timeline.devices:
        return unknown(Cause.LAUNCH_BOUND, seen.timeline.unknown.get(Signal.LAUNCHES, "launches are not seen"))
    if seen.replay is None or seen.accounts["host_gap"] is None:
        return unknown(Cause.LAUNCH_BOUND, seen.timeline.unknown.get(Signal.LAUNCHES, "launches are not seen"))
    share = seen.share("host_gap")
    if share < LEAST_HOST_SHARE:
        return rejected(Cause.LAUNCH_BOUND, f"the script's own work between steps is {percent(share)} of a step")
    text = f"the script works {ms(share * seen.step_s)} between two steps, {percent(share)} of a step"
    return _supported(seen, (text,), share)


def _of_devices(seen: Seen, devices: Sequence[DeviceUse]) -> Hypothesis:
    span_s = sum(each.span_s for each in devices)
    late_s, idle_s = sum(each.idle_launch_s for each in devices), sum(each.idle_s for each in devices)
    share = late_s / span_s
    median_s = float(np.median([each.median_operation_s for each in devices]))
    if share < LEAST_SHARE or late_s < LEAST_OF_IDLE * idle_s:
        return rejected(
            Cause.LAUNCH_BOUND,
            f"devices stand still for a late launch {percent(share)} of the time, of {percent(idle_s / span_s)} idle",
        )
    supporting = (
        f"devices stand still {percent(share)} of the time because the next operation was not issued yet",
        f"half of the operations take less than {ms(median_s)}",
    )
    if median_s > LONG_OPERATION_S:
        return rejected(Cause.LAUNCH_BOUND, f"operations are long (median {ms(median_s)})")
    # Waiting for data is no launch: what the loader explains is taken out.
    explained = seen.share("data_wait") if seen.replay is not None else 0.0
    if seen.replay is not None and explained >= share / 2:
        return rejected(Cause.LAUNCH_BOUND, f"the loader explains {percent(explained)} of the step")
    return _supported(seen, supporting, share, blamed=min(1.0, late_s / idle_s))


def _supported(seen: Seen, supporting: tuple[str, ...], share: float, blamed: float = 1.0) -> Hypothesis:
    """Return the hypothesis supported; `blamed` is the share of the gaps that late launches explain."""
    return Hypothesis(
        cause=Cause.LAUNCH_BOUND, status=Status.SUPPORTED, evidence_for=supporting,
        removal=labels_scaled("host_gap", by=1 - blamed), share=share,
        proposals=launch_fixes(blamed) if seen.replay is not None else (),
    )  # fmt: skip


def launch_fixes(blamed: float = 1.0) -> tuple[Proposal, ...]:
    """Return the fixes of what the host does between operations: a half of what late launches explain is likely."""
    likely, ceiling = (labels_scaled("host_gap", by=1 - part * blamed) for part in (LIKELY, 1.0))
    return (
        Proposal(
            name="fuse", knob="torch.compile, fused optimizers, fewer and larger operations", likely=likely,
            ceiling=ceiling, uncertainty=0.5,
        ),
        Proposal(
            name="larger_batch", knob="twice the batch size (step for the same samples)", likely=likely,
            ceiling=ceiling, uncertainty=0.3,
        ),
    )  # fmt: skip
