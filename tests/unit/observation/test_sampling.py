"""What the sampling thread records, and that nothing stops it or outlasts its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gscalar.model.events import ClockJumped, Event, Note
from gscalar.observation import sampling
from gscalar.observation.hardware import HOST
from gscalar.observation.sampling import HostSampling


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.samples: list[tuple[int, dict[str, float]]] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def sample(self, time_ns: int, rank: int, values: Mapping[str, float]) -> None:
        self.samples.append((rank, dict(values)))

    def log(self, step: int, time_ns: int, values: Mapping[str, float]) -> None:
        raise AssertionError("hardware is not logged as a metric")

    def seal(self, reason: str) -> None:
        raise AssertionError("a sampler seals nothing")


class Sampler:
    """Stands in for the hardware. `error` is raised by each look."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.pids: list[Mapping[int, int]] = []

    def look(self, now_s: float, pids: Mapping[int, int]) -> dict[int, dict[str, float]]:
        self.pids.append(dict(pids))
        if self.error is not None:
            raise self.error
        return {HOST: {"host/cpu_cores": 1.0}, 3: {"worker/cpu_cores": 0.5}}


def make(sampler: Any, pids: Mapping[int, int] | None = None) -> tuple[HostSampling, Kept]:
    sink = Kept()
    return HostSampling(sink, lambda: pids or {}, sampler=sampler), sink


def test_a_look_is_one_sample_for_the_host_and_one_for_each_worker() -> None:
    sampler = Sampler()
    host, sink = make(sampler, {3: 77})
    host.look()
    assert sink.samples == [(-1, {"host/cpu_cores": 1.0}), (3, {"worker/cpu_cores": 0.5})]
    assert sampler.pids == [{3: 77}]


def test_a_look_that_fails_is_told_once_and_the_next_one_is_made() -> None:
    sampler = Sampler(RuntimeError("no such thing"))
    host, sink = make(sampler)
    for _ in range(3):
        host.look()
    (note,) = sink.events
    assert isinstance(note, Note)
    assert (note.code, "no such thing" in note.text) == ("hardware-unread", True)
    sampler.error = None
    host.look()
    assert len(sink.samples) == 2


def test_nothing_is_written_after_the_stop() -> None:
    host, sink = make(Sampler())
    host.stop()
    host.look()
    failing, failed_sink = make(Sampler(OSError("x")))
    failing.stop()
    failing.look()
    assert (sink.samples, sink.events, failed_sink.events) == ([], [], [])


def test_a_stopped_thread_ends_before_it_looks_again() -> None:
    sampler = Sampler()
    host, _ = make(sampler)
    host.stop()
    host.run(0.0)
    assert sampler.pids == []


def test_a_wall_clock_that_was_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(10**18, 5 * 10**9, 100), (10**18 + 3601 * 10**9, 6 * 10**9, 100)])
    monkeypatch.setattr(sampling, "read_both_clocks", lambda: next(looks))
    host, sink = make(Sampler())
    host.look()
    host.look()
    assert sink.events == [ClockJumped(10**18 + 3601 * 10**9, 3600.0)]


# sentence: (what opening the GPUs raises, level, words)
UNOPENED: dict[str, tuple[Exception, str, str]] = {
    "the package is missing": (ImportError("pynvml"), "info", "gscalar[gpu]"),
    "the driver does not answer": (OSError("code 9"), "warning", "code 9"),
}


@pytest.mark.parametrize("sentence", UNOPENED)
def test_gpus_that_cannot_be_opened_are_told_once(monkeypatch: pytest.MonkeyPatch, sentence: str) -> None:
    error, level, words = UNOPENED[sentence]

    def refuse() -> None:
        raise error

    monkeypatch.setattr(sampling, "has_driver", lambda: True)
    monkeypatch.setattr(sampling, "open_gpu_counters", refuse)
    monkeypatch.setattr(sampling, "HardwareSampler", lambda gpus: Sampler())
    host, sink = make(None)
    host.look()
    host.look()
    (note,) = sink.events
    assert isinstance(note, Note)
    assert (note.code, note.level, words in note.text) == ("gpu-unread", level, True)
    assert len(sink.samples) == 4


def test_each_lost_gpu_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = SimpleNamespace(lost=[2, 5])
    monkeypatch.setattr(sampling, "has_driver", lambda: True)
    monkeypatch.setattr(sampling, "open_gpu_counters", lambda: gpus)
    monkeypatch.setattr(sampling, "HardwareSampler", lambda gpus: Sampler())
    host, sink = make(None)
    host.look()
    host.look()
    assert [event.text.split(";")[0] for event in sink.events if isinstance(event, Note)] == [
        "the driver has lost GPU 2",
        "the driver has lost GPU 5",
    ]


def test_a_machine_without_a_driver_loads_no_package_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("pynvml was imported")

    monkeypatch.setattr(sampling, "has_driver", lambda: False)
    monkeypatch.setattr(sampling, "open_gpu_counters", refuse)
    host, sink = make(None)
    host.look()
    assert sink.events == []


def test_looks_that_are_late_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, waits = [100.0], []
    host, _ = make(Sampler())

    def wait(timeout: float) -> bool:
        waits.append(timeout)
        now_s[0] += timeout
        return len(waits) > 4

    def look() -> None:
        now_s[0] += {1: 0.25, 2: 3.5}.get(len(waits), 0.0)

    monkeypatch.setattr(host, "look", look)
    monkeypatch.setattr(host, "_stopped", SimpleNamespace(wait=wait))
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    host.run(1.0)
    # At once, after the rest of the second, at once after a look of 3.5 s, and each second from there.
    assert waits == [0.0, 0.75, 0.0, 1.0, 1.0]
