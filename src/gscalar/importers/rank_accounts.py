"""Where one rank's steps went, by what its devices and its host show.

On a device an account is exclusive, and what comes first in this list has the time that several share: kernels that
compute (`compute`; forward, backward and optimizer alike, so `optimizer` is not known), kernels that communicate
(`exposed_communication`), copies from the host (`h2d`), other copies and sets (`other`). While the device does
nothing, the training's wait for a batch (`data_wait`), saving (`checkpoint`), garbage collection (`gc`) and exchanges
of the host (`exposed_communication` again) explain it where the trace has their spans; `host_gap` is what is left:
the device waits for a launch, or for another rank. The known ones sum to the step; NaN is what the trace does not
show, and is then in what is left. Of several devices a step's accounts are the mean.

A step is what its host calls one. Work that was issued in it and runs after its end counts for the next.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.importers.device_use import device_use, joined
from gscalar.importers.layers import Intervals, covered, layered, merged
from gscalar.importers.rank_trace import HostSpans, Operations, RankTrace
from gscalar.model.timeline import ACCOUNT_NAMES, Activity, DeviceUse, Floats, Ints, Signal

_COPIES: Final = (Activity.H2D, Activity.COPY, Activity.SET)
_OF_DEVICE: Final[tuple[tuple[str, tuple[Activity, ...]], ...]] = (
    ("compute", (Activity.COMPUTE,)),
    ("exposed_communication", (Activity.COMMUNICATION,)),
    ("h2d", (Activity.H2D,)),
    ("other", (Activity.COPY, Activity.SET)),
)
_OF_HOST: Final[tuple[tuple[str, Activity], ...]] = (
    ("data_wait", Activity.DATA_WAIT),
    ("checkpoint", Activity.CHECKPOINT),
    ("gc", Activity.GC),
    ("exposed_communication", Activity.COMMUNICATION),
)
_NOT_KNOWN: Final = {
    "data_wait": Signal.DATA_WAIT,
    "checkpoint": Signal.CHECKPOINTS,
    "gc": Signal.GC,
    "exposed_communication": Signal.COMMUNICATION,
}
_REST: Final = "host_gap"


def step_accounts(trace: RankTrace) -> Floats:
    """Return seconds by step and account, `(num_steps, len(ACCOUNT_NAMES))`."""
    accounts = np.full((len(trace.steps), len(ACCOUNT_NAMES)), np.nan)
    devices = np.unique(trace.operations.device)
    if not len(devices):
        for account in ("data_wait", "checkpoint", "gc"):
            activity = dict(_OF_HOST)[account]
            accounts[:, ACCOUNT_NAMES.index(account)] = host_s(trace, activity)
    else:
        order = (*(name for name, _ in _OF_DEVICE), *(name for name, _ in _OF_HOST), _REST)
        totals = {name: np.zeros(len(trace.steps)) for name in order}
        host = [spans_of(trace.host_spans, activity) for _, activity in _OF_HOST]
        for device in devices.tolist():
            layers = [intervals_of(trace.operations, device, *activities) for _, activities in _OF_DEVICE]
            shares = layered(trace.begin_s, trace.end_s, [*layers, *host])
            for name, share in zip(order, shares, strict=True):
                totals[name] += share / len(devices)
        for name, seconds in totals.items():
            accounts[:, ACCOUNT_NAMES.index(name)] = seconds
    for name, signal in _NOT_KNOWN.items():
        if signal in trace.unknown:
            accounts[:, ACCOUNT_NAMES.index(name)] = np.nan
    return accounts


def host_s(trace: RankTrace, activity: Activity) -> Floats:
    """Return how long the host did this in each step, `(num_steps,)`."""
    return covered(trace.begin_s, trace.end_s, merged(*spans_of(trace.host_spans, activity)))


def copies_of_batches(trace: RankTrace) -> tuple[Floats, Floats]:
    """Return seconds and bytes that are copied from the host in each step, `(num_steps,)` each; NaN: not known."""
    operations, nothing = trace.operations, np.full(len(trace.steps), np.nan)
    if not len(operations):
        return nothing, nothing
    chosen = np.flatnonzero(operations.chosen(Activity.H2D))
    # The step in which it was issued: that is the step which waits for it.
    issued_s = np.where(np.isfinite(operations.launch_s), operations.launch_s, operations.start_s)[chosen]
    at = step_of(trace, issued_s)
    inside = at >= 0
    num_devices = len(np.unique(operations.device))
    seconds, num_bytes = (
        np.bincount(at[inside], column[chosen][inside], minlength=len(trace.steps)) / num_devices
        for column in (operations.end_s - operations.start_s, operations.num_bytes)
    )
    return seconds, num_bytes


def step_of(trace: RankTrace, moments_s: Floats) -> Ints:
    """Return the index of the step that each moment is in; -1 where it is in none."""
    if not len(trace.steps):
        return np.full(len(moments_s), -1)
    order = np.argsort(trace.begin_s, kind="stable")
    at = order[np.maximum(np.searchsorted(trace.begin_s[order], moments_s, side="right") - 1, 0)]
    inside = (trace.begin_s[at] <= moments_s) & (moments_s < trace.end_s[at])
    return np.where(inside, at, -1)


def device_uses(trace: RankTrace, rank: int) -> tuple[DeviceUse, ...]:
    """Return what each device did over its whole span; `rank` is the index of the trace's rank."""
    operations = trace.operations
    uses = []
    for device in np.unique(operations.device).tolist():
        uses.append(
            device_use(
                rank,
                device,
                compute=intervals_of(operations, device, Activity.COMPUTE),
                communication=intervals_of(operations, device, Activity.COMMUNICATION),
                copies=intervals_of(operations, device, *_COPIES),
                launch_s=operations.launch_s[operations.device == device],
            )
        )
    return tuple(uses)


def intervals_of(operations: Operations, device: int, *activities: Activity) -> Intervals:
    """Return when a device did one of these."""
    chosen = operations.chosen(*activities) & (operations.device == device)
    return operations.start_s[chosen], operations.end_s[chosen]


def spans_of(spans: HostSpans, *activities: Activity) -> Intervals:
    """Return when the host did one of these."""
    chosen = spans.chosen(*activities)
    return joined((spans.start_s[chosen], spans.end_s[chosen]))
