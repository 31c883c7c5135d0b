"""What traces of devices have in common: from each device's operations to a timeline.

In a step an account is exclusive: what a device computes counts first, then what it communicates, copies from the
host and copies otherwise, then the wait for the next batch. `host_gap` is what nothing covers: the device idle for any
reason of the host. Where the wait is not known, it is part of that gap. Of several devices of a rank an account is
the mean, so that accounts sum to the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.importers.device_use import device_use
from gscalar.importers.layers import NOTHING, Intervals, covered, layered, merged
from gscalar.importers.operation_names import collective_kind, communicates
from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    NONE,
    Activity,
    DeviceUse,
    Floats,
    Ints,
    Lane,
    Loading,
    Rank,
    Signal,
    Spans,
    StepTimeline,
)

Bools = npt.NDArray[np.bool_]

_LANES: Final = {
    Activity.COMPUTE: Lane.COMPUTE,
    Activity.COMMUNICATION: Lane.COMMUNICATION,
    Activity.H2D: Lane.COPY,
    Activity.COPY: Lane.COPY,
    Activity.SET: Lane.COPY,
    Activity.DATA_WAIT: Lane.COMPUTE,
}
_LANE_OF: Final = np.array([_LANES.get(each, Lane.HOST) for each in Activity], np.int64)
# Copies and sets of drivers; kernels of one's own have such names too ("memcpy32_post").
_COPY_NAME: Final = re.compile(r"memcpy ?([hdpa](?:2|to)[hdpa]|other|of kind \d+)?\b", re.IGNORECASE)
_SET_NAME: Final = re.compile(r"memset\b", re.IGNORECASE)
_COPIES: Final = (Activity.H2D, Activity.COPY, Activity.SET)
# Layers of a step, the first counting first, and the account of each.
_LAYERS: Final[tuple[tuple[str, tuple[Activity, ...]], ...]] = (
    ("compute", (Activity.COMPUTE,)),
    ("exposed_communication", (Activity.COMMUNICATION,)),
    ("h2d", (Activity.H2D,)),
    ("other", (Activity.COPY, Activity.SET)),
    ("data_wait", (Activity.DATA_WAIT,)),
)
_REST: Final = "host_gap"
_NO_DEVICE: Final = {
    Signal.DEVICE: "the trace has no operations of a device",
    Signal.COMPUTE: "the trace has no device, and does not tell which of the host's threads compute",
    Signal.COMMUNICATION: "the trace has no device, and does not tell what its host communicates",
}
_BETWEEN: Final = 0.05  # of the time from the first step to the last; more between the steps is worth a note


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOperations:
    """All that one device did, sorted by start; `(num_operations,)` each."""

    rank: int  # index into the timeline's ranks
    device: int
    start_s: Floats
    end_s: Floats
    activity: Ints
    name: Ints
    names: Mapping[int, str]
    num_bytes: Floats
    launch_s: Floats | None = None  # when the host issued each; NaN: not known

    @classmethod
    def of(
        cls,
        *,
        rank: int,
        device: int,
        intervals: Intervals,
        name: Ints,
        names: Mapping[int, str],
        activities: Mapping[int, Activity],
        num_bytes: Floats | None = None,
        launch_s: Floats | None = None,
    ) -> DeviceOperations:
        """Return operations whose activity is that of their name, where `activities` do not say otherwise."""
        known = {number: activities.get(number, _activity_of(text)) for number, text in names.items()}
        numbers, where = np.unique(name, return_inverse=True)
        activity = np.array([known[number] for number in numbers.tolist()], np.int64)[where]
        start_s, end_s = intervals
        order = np.argsort(start_s, kind="stable")
        return cls(
            rank=rank, device=device, start_s=start_s[order], end_s=end_s[order], activity=activity[order],
            name=name[order], names=names,
            num_bytes=np.full(len(order), np.nan) if num_bytes is None else num_bytes[order],
            launch_s=None if launch_s is None else launch_s[order],
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.start_s)

    def chosen(self, *activities: Activity) -> Bools:
        """Return which operations do one of these."""
        return np.isin(self.activity, activities)

    def intervals(self, *activities: Activity) -> Intervals:
        """Return when the device did one of these."""
        chosen = self.chosen(*activities)
        return self.start_s[chosen], self.end_s[chosen]

    @property
    def only_waits(self) -> bool:
        """Whether there is nothing but waits for data."""
        return bool(self.chosen(Activity.DATA_WAIT).all())

    def use(self) -> DeviceUse:
        """Return what the device did over its whole span; a wait for data is none of its operations."""
        works = ~self.chosen(Activity.DATA_WAIT)
        return device_use(
            self.rank,
            self.device,
            compute=self.intervals(Activity.COMPUTE),
            communication=self.intervals(Activity.COMMUNICATION),
            copies=self.intervals(*_COPIES),
            launch_s=None if self.launch_s is None else self.launch_s[works],
        )


@dataclass(frozen=True, slots=True)
class Windows:
    """Steps of one rank, sorted by number; `(num_steps,)` each."""

    numbers: Ints
    begin_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, places: Mapping[int, tuple[float, float]]) -> Windows:
        """Return the steps of these numbers, which begin and end so."""
        numbers = sorted(places)
        begin_s, end_s = np.array([places[number] for number in numbers], np.float64).reshape(-1, 2).T
        return cls(np.array(numbers, np.int64), begin_s, end_s)

    def holding(self, moments: Floats) -> Ints:
        """Return the place among the steps of the one that holds each moment, NONE where none does."""
        if not self.numbers.size:
            return np.full(len(moments), NONE)
        order = np.argsort(self.begin_s)
        at = order[np.maximum(np.searchsorted(self.begin_s[order], moments, side="right") - 1, 0)]
        inside = (self.begin_s[at] <= moments) & (moments < self.end_s[at])
        return np.where(inside, at, NONE)

    def sums(self, moments: Floats, values: Floats) -> Floats:
        """Return the sum of the values whose moments are in each step."""
        at = self.holding(moments)
        return np.bincount(at[at != NONE], values[at != NONE], minlength=len(self.numbers)).astype(np.float64)


def as_timeline(
    *,
    source: str,
    name: str,
    ranks: Sequence[Rank],
    operations: Sequence[DeviceOperations],
    steps: Sequence[Windows],
    waits: Sequence[Sequence[Intervals]],
    unknown: Mapping[Signal, str],
    notes: tuple[str, ...] = (),
) -> StepTimeline:
    """Return the timeline of devices; `steps` and `waits` for a batch are of each rank.

    Waits are known where a rank has any, or `unknown` does not say that they are not.
    """
    operations = [each for each in operations if len(each)]
    known_waits = Signal.DATA_WAIT not in unknown
    numbers = np.unique(np.concatenate([each.numbers for each in steps])).astype(np.int64)
    shape = (len(ranks), len(numbers))
    begin_s, end_s = np.full(shape, np.nan), np.full(shape, np.nan)
    accounts = np.full((*shape, len(ACCOUNT_NAMES)), np.nan)
    loading = _no_loading(shape)
    for rank, windows in enumerate(steps):
        places = np.searchsorted(numbers, windows.numbers)
        begin_s[rank, places], end_s[rank, places] = windows.begin_s, windows.end_s
        devices = [each for each in operations if each.rank == rank]
        accounts[rank, places] = _accounts(windows, devices, waits[rank], known_waits)
        _add_loading(loading, rank, places, windows, devices, waits[rank] if known_waits else None)
    loading.exposed_wait_s[:] = accounts[:, :, ACCOUNT_NAMES.index("data_wait")]
    missing = dict(unknown) if operations else {**_NO_DEVICE, **unknown}
    spans, names = _spans(operations, steps, waits, numbers)
    return StepTimeline(
        source=source, name=name, ranks=tuple(ranks), steps=numbers, begin_s=begin_s, end_s=end_s, accounts=accounts,
        spans=spans, names=names, devices=tuple(each.use() for each in operations if not each.only_waits),
        loading=_with_bytes(loading, operations, steps) if _says_anything(loading) else None, unknown=missing,
        unmatched=_unmatched(operations), notes=(*notes, *_between(steps)),
    )  # fmt: skip


def _activity_of(name: str) -> Activity:
    copy = _COPY_NAME.match(name)
    if copy:
        return Activity.H2D if copy[1] and copy[1].lower() in ("h2d", "htod") else Activity.COPY
    if _SET_NAME.match(name):
        return Activity.SET
    return Activity.COMMUNICATION if communicates(name) else Activity.COMPUTE


def _accounts(
    windows: Windows, devices: Sequence[DeviceOperations], waits: Sequence[Intervals], known_waits: bool
) -> Floats:
    """Return the accounts of a rank's steps, `(num_steps, len(ACCOUNT_NAMES))`: the mean over its devices."""
    accounts = np.full((len(windows.numbers), len(ACCOUNT_NAMES)), np.nan)
    if not devices:
        if known_waits:
            waited_s = covered(windows.begin_s, windows.end_s, merged(*_joined(waits)))
            accounts[:, ACCOUNT_NAMES.index("data_wait")] = waited_s
        return accounts
    shares = np.zeros((len(_LAYERS) + 1, len(windows.numbers)))
    for device in devices:
        layers = [device.intervals(*activities) for _, activities in _LAYERS[:-1]]
        layers.append(_joined([*waits, device.intervals(Activity.DATA_WAIT)]))
        shares += np.array(layered(windows.begin_s, windows.end_s, layers)) / len(devices)
    for (account, _), share in zip(_LAYERS, shares, strict=False):
        accounts[:, ACCOUNT_NAMES.index(account)] = share
    accounts[:, ACCOUNT_NAMES.index(_REST)] = shares[-1]
    if not known_waits:
        accounts[:, ACCOUNT_NAMES.index("data_wait")] = np.nan
    return accounts


def _joined(intervals: Sequence[Intervals]) -> Intervals:
    starts, ends = zip(*(intervals or [NOTHING]), strict=True)
    return np.concatenate(starts), np.concatenate(ends)


def _no_loading(shape: tuple[int, int]) -> Loading:
    wait_s, work_s, exposed_wait_s, copy_s, queue_empty = (np.full(shape, np.nan) for _ in range(5))
    return Loading(
        wait_s=wait_s, work_s=work_s, exposed_wait_s=exposed_wait_s, copy_s=copy_s, queue_empty=queue_empty
    )  # fmt: skip


def _add_loading(
    loading: Loading,
    rank: int,
    places: Ints,
    windows: Windows,
    devices: Sequence[DeviceOperations],
    waits: Sequence[Intervals] | None,
) -> None:
    if devices:
        copied = [
            windows.sums(each.start_s[h2d], (each.end_s - each.start_s)[h2d])
            for each in devices
            for h2d in [each.chosen(Activity.H2D)]
        ]
        loading.copy_s[rank, places] = np.mean(copied, axis=0)
    if waits is not None:
        of_devices = [each.intervals(Activity.DATA_WAIT) for each in devices]
        waited = merged(*_joined([*waits, *of_devices]))
        loading.wait_s[rank, places] = covered(windows.begin_s, windows.end_s, waited)


def _says_anything(loading: Loading) -> bool:
    return bool(np.isfinite(loading.wait_s).any() or np.isfinite(loading.copy_s).any())


def _with_bytes(loading: Loading, operations: Sequence[DeviceOperations], steps: Sequence[Windows]) -> Loading:
    """Return the loading with the usual bytes that a device gets from its host in a step, where they are known."""
    seen = []
    for each in operations:
        h2d = each.chosen(Activity.H2D)
        if h2d.any() and np.isfinite(each.num_bytes[h2d]).all():
            seen.append(steps[each.rank].sums(each.start_s[h2d], each.num_bytes[h2d]))
    total = float(np.median(np.concatenate(seen))) if seen else np.nan
    return Loading(
        wait_s=loading.wait_s, work_s=loading.work_s, exposed_wait_s=loading.exposed_wait_s, copy_s=loading.copy_s,
        queue_empty=loading.queue_empty, batch_bytes=total if total > 0 else np.nan,
    )  # fmt: skip


def _spans(
    operations: Sequence[DeviceOperations],
    steps: Sequence[Windows],
    waits: Sequence[Sequence[Intervals]],
    numbers: Ints,
) -> tuple[Spans, tuple[str, ...]]:
    """Return all operations and waits as spans, and the table of their names."""
    names: dict[str, int] = {}
    parts: list[dict[str, npt.NDArray[np.generic]]] = []
    for each in operations:
        keys, where = np.unique(each.name, return_inverse=True)
        place = np.array([names.setdefault(each.names[key], len(names)) for key in keys.tolist()], np.int64)
        lanes = _LANE_OF[each.activity]
        parts.append(
            {"rank": np.full(len(each), each.rank), "start_s": each.start_s, "end_s": each.end_s, "lane": lanes,
             "activity": each.activity, "name": place[where], "num_bytes": each.num_bytes,
             "device": np.full(len(each), each.device), "step": _step_of(steps[each.rank], each.start_s, numbers)}
        )  # fmt: skip
    for rank, of_rank in enumerate(waits):
        starts, ends = _joined(of_rank)
        wait = np.full(len(starts), names.setdefault("wait for a batch", len(names)) if len(starts) else 0)
        parts.append(
            {"rank": np.full(len(starts), rank), "start_s": starts, "end_s": ends, "name": wait,
             "lane": np.full(len(starts), Lane.HOST), "activity": np.full(len(starts), Activity.DATA_WAIT),
             "num_bytes": np.full(len(starts), np.nan), "device": np.full(len(starts), NONE),
             "step": _step_of(steps[rank], starts, numbers)}
        )  # fmt: skip
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return Spans.of(len(columns["start_s"]), **columns), tuple(names)


def _step_of(windows: Windows, moments: Floats, numbers: Ints) -> Ints:
    at = windows.holding(moments)
    return np.where(at == NONE, NONE, np.searchsorted(numbers, windows.numbers[at]) if windows.numbers.size else NONE)


def _unmatched(operations: Sequence[DeviceOperations]) -> tuple[str, ...]:
    named = {
        each.names[key]
        for each in operations
        for key in np.unique(each.name[each.chosen(Activity.COMMUNICATION)]).tolist()
    }
    return tuple(sorted(name for name in named if collective_kind(name) is None))


def _between(steps: Sequence[Windows]) -> list[str]:
    """Say how much time lies between the steps, which is in none of them."""
    spans_s = sum(float(np.ptp(np.r_[each.begin_s, each.end_s])) for each in steps if each.numbers.size)
    steps_s = sum(float((each.end_s - each.begin_s).sum()) for each in steps)
    share = 1 - steps_s / spans_s if spans_s > 0 else 0.0
    return [f"{share:.0%} of the time lies between the steps, and is in none of them"] if share > _BETWEEN else []
