"""The events of a Kineto trace as the few fields that are needed, and their columns.

Of some 75,000 events of six ResNet steps 9,000 are of the device. Host operators are looked at by name once and not
kept; of launches the correlation and the time are. Columns are arrays of the machine's numbers, so that a trace of a
gigabyte takes some 200 bytes an operation of a device.

Two dialects: of 2021 (categories with capitals, `external id`) and since (lower case, `External id`, what a
collective exchanges beside its kernel).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from gscalar.importers import kineto_names as names
from gscalar.importers.rank_trace import ProcessGroup
from gscalar.model.timeline import NONE, Activity

_MOST_NAMES: Final = 100_000  # names of host spans that are remembered as useless
Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # JSON has larger ones, and columns do not


class Arguments(msgspec.Struct, gc=False, rename={
    "external_id": "External id", "old_external_id": "external id", "collective": "Collective name",
    "group": "Process Group Name", "group_ranks": "Process Group Ranks", "group_size": "Group size",
    "num_elements": "In msg nelems",
}):  # fmt: skip
    """What stands in `args` and is of use."""

    correlation: Whole | None = None
    device: Whole | None = None
    bytes: float | None = None
    external_id: Whole | None = None
    old_external_id: Whole | None = None
    collective: str | None = None
    group: str | int | None = None
    group_ranks: str | None = None
    group_size: Whole | None = None
    num_elements: Whole | None = None
    dtype: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of the trace; times are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: Whole | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None


_NO_ARGUMENTS: Final = Arguments()


class Decoder:
    """Decodes runs of events; those of other shapes are read one by one, without `args` where that is what is odd."""

    def __init__(self) -> None:
        self.num_odd = 0
        self._decoder = msgspec.json.Decoder(list[Event])

    def __call__(self, text: bytes) -> list[Event]:
        """Return the events of a JSON array. Raises `msgspec.DecodeError` where it is none."""
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            pass
        events = []
        for each in msgspec.json.decode(text, type=list[msgspec.Raw]):
            event = _lenient(each)
            if event is None:
                self.num_odd += 1
            else:
                events.append(event)
        return events


def _lenient(text: msgspec.Raw) -> Event | None:
    try:
        value = msgspec.json.decode(text)
    except msgspec.ValidationError:  # a number that no float holds
        return None
    for candidate in (value, {**value, "args": None} if isinstance(value, dict) else None):
        try:
            return msgspec.convert(candidate, Event, strict=False)
        except msgspec.ValidationError:
            continue
    return None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the trace says of a collective beside its kernel."""

    collective: str  # torch's word for it
    group: str
    num_bytes: float


class Collector:
    """Sorts events into columns. Times stay as they are written, in microseconds."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        # Of a device: `activity` as the category and the name tell it, `lane` a stream of a device.
        self.start, self.duration, self.num_bytes = array("d"), array("d"), array("d")
        self.name, self.activity, self.device = array("q"), array("b"), array("q")
        self.lane, self.correlation, self.external = array("q"), array("q"), array("q")
        self.exchanges: dict[int, Exchange] = {}  # by operation
        self.announced: dict[int, Exchange] = {}  # by external id
        self.groups: dict[str, ProcessGroup] = {}
        self.lanes: dict[tuple[object, object], int] = {}
        self.device_annotations: list[tuple[int, float, float, str]] = []  # lane, start, end, torch's word
        self.launch_correlation, self.launch_start = array("q"), array("d")
        self.steps: list[tuple[int, float, float]] = []
        self.host_spans: list[tuple[Activity, int, float, float]] = []
        self.num_negative = 0
        self.recognised = False
        self._kernels: dict[str, Activity] = {}
        self._hosts: dict[str, Activity | None] = {}
        self._handlers: dict[str | None, Callable[[Event], None] | None] = {}

    def add(self, events: list[Event]) -> None:
        """Take up events."""
        handlers = self._handlers
        for event in events:
            if event.ph != "X":
                continue
            try:
                handle = handlers[event.cat]
            except KeyError:
                handle = handlers[event.cat] = self._handler(event.cat or "")
            if handle is None:
                continue
            if event.dur < 0:
                self.num_negative += 1
                continue
            handle(event)

    def _handler(self, category: str) -> Callable[[Event], None] | None:
        plain = category.lower()
        found: Callable[[Event], None] | None = {
            "operator": self._add_host,
            "cpu_op": self._add_host,
            "user_annotation": self._add_host,
            "gc": self._add_host,
            "python_gc": self._add_host,
            "gpu_user_annotation": self._add_annotation,
            "kernel": self._add_kernel,
            "gpu_memcpy": self._add_copy,
            "memcpy": self._add_copy,
            "gpu_memset": self._add_set,
            "memset": self._add_set,
        }.get(plain)
        if found is None and plain.endswith(("runtime", "driver")):
            found = self._add_launch
        self.recognised |= found is not None
        return found

    def _add_launch(self, event: Event) -> None:
        if event.args is not None and event.args.correlation:
            self.launch_correlation.append(event.args.correlation)
            self.launch_start.append(event.ts)

    def _add_kernel(self, event: Event) -> None:
        activity = self._kernels.get(event.name)
        if activity is None:
            activity = self._kernels[event.name] = names.kernel_activity(event.name)
        arguments = event.args or _NO_ARGUMENTS
        if arguments.collective is not None:
            activity = Activity.COMMUNICATION
            self.exchanges[len(self.start)] = self._exchange(arguments)
        self._add_operation(event, arguments, activity)

    def _add_copy(self, event: Event) -> None:
        self._add_operation(event, event.args or _NO_ARGUMENTS, names.copy_activity(event.name))

    def _add_set(self, event: Event) -> None:
        self._add_operation(event, event.args or _NO_ARGUMENTS, Activity.SET)

    def _add_operation(self, event: Event, arguments: Arguments, activity: Activity) -> None:
        device = arguments.device
        if device is None:
            device = event.pid if isinstance(event.pid, int) else 0
        external = arguments.external_id or arguments.old_external_id
        self.start.append(event.ts)
        self.duration.append(event.dur)
        self.num_bytes.append(float("nan") if arguments.bytes is None else arguments.bytes)
        self.name.append(self._number(event.name))
        self.activity.append(activity)
        self.device.append(device)
        self.lane.append(self._lane(event))
        self.correlation.append(arguments.correlation or NONE)
        self.external.append(external or NONE)

    def _add_annotation(self, event: Event) -> None:
        word = names.collective_of_annotation(event.name)
        if word is not None:
            self.device_annotations.append((self._lane(event), event.ts, event.ts + event.dur, word))

    def _add_host(self, event: Event) -> None:
        name = event.name
        try:
            activity = self._hosts[name]
        except KeyError:
            step = names.STEP.match(name)
            if step:
                self.steps.append((int(step[1]), event.ts, event.ts + event.dur))
                return
            if len(self._hosts) >= _MOST_NAMES:
                self._hosts.clear()
            activity = self._hosts[name] = names.host_activity(name)
        if activity is not None:
            self.host_spans.append((activity, self._number(name), event.ts, event.ts + event.dur))
        if event.args is not None and event.args.collective is not None and event.args.external_id:
            self.announced[event.args.external_id] = self._exchange(event.args)

    def _number(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _lane(self, event: Event) -> int:
        return self.lanes.setdefault((event.pid, event.tid), len(self.lanes))

    def _exchange(self, arguments: Arguments) -> Exchange:
        group = "" if arguments.group is None else str(arguments.group)
        if group and group not in self.groups:
            self.groups[group] = ProcessGroup(
                size=arguments.group_size or 0, ranks=_ranks(arguments.group_ranks or "")
            )  # fmt: skip
        size = names.element_bytes(arguments.dtype or "")
        known = size is not None and arguments.num_elements is not None
        num_bytes = float(size * arguments.num_elements) if known else float("nan")  # type: ignore[operator]  # known
        return Exchange(arguments.collective or "", group, num_bytes)


def _ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a group as torch writes them; a long list is cut off with dots, and then not known."""
    try:
        ranks = msgspec.json.decode(text, type=list[int]) if text else []
    except msgspec.DecodeError:
        return ()
    return tuple(ranks)
