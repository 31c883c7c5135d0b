"""NVML's counters, with a stand-in for the module `pynvml`."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gscalar.model.hardware import HARDWARE
from gscalar.observation.gpu_counters import GpuCounters, has_driver, open_gpu_counters

LOST = 15


class NVMLError(Exception):
    """As pynvml's: the code is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """The module, with two GPUs. `refuse` maps a call's name to the code with which it fails, on GPU 1."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 3, 13, LOST
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self) -> None:
        self.refuse: dict[str, int] = {}
        self.calls: list[tuple[str, int]] = []

    def nvmlInit(self) -> None:
        self._call("nvmlInit", 1, None)

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown", 1, None)

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return int(self._call("nvmlDeviceGetHandleByIndex", index, index))

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        return self._call("nvmlDeviceGetUtilizationRates", gpu, SimpleNamespace(gpu=75, memory=20))

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return self._call("nvmlDeviceGetMemoryInfo", gpu, SimpleNamespace(total=1000, free=400, used=600))

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> Any:
        return self._call("nvmlDeviceGetPowerUsage", gpu, 350_500)

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> Any:
        return self._call("nvmlDeviceGetTemperature", gpu, 61)

    def nvmlDeviceGetClockInfo(self, gpu: int, kind: int) -> Any:
        return self._call("nvmlDeviceGetClockInfo", gpu, {1: 1980, 2: 2619}[kind])

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> Any:
        return self._call("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, 0x44)

    def nvmlDeviceGetPcieThroughput(self, gpu: int, counter: int) -> Any:
        return self._call("nvmlDeviceGetPcieThroughput", gpu, {0: 5, 1: 9}[counter])

    def _call(self, name: str, gpu: int, answer: Any) -> Any:
        self.calls.append((name, gpu))
        if gpu == 1 and name in self.refuse:
            raise NVMLError(self.refuse[name])
        return answer


WANT = {
    "utilization_ratio": 0.75,
    "memory_bytes": 600.0,
    "memory_limit_bytes": 1000.0,
    "power_watts": 350.5,
    "temperature_celsius": 61.0,
    "sm_clock_hz": 1.98e9,
    "memory_clock_hz": 2.619e9,
    "throttle_reasons": float(0x44),
    "pcie_received_bytes_per_s": 9000.0,
    "pcie_sent_bytes_per_s": 5000.0,
}


def of(gpu: int, values: dict[str, float]) -> dict[str, float]:
    prefix = f"gpu{gpu}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def test_all_counters_of_all_devices_are_told_in_the_tables_units() -> None:
    got = GpuCounters(FakeNvml()).read()
    assert of(0, got) == of(1, got) == pytest.approx(WANT)
    assert {f"gpu*/{name}" for name in of(0, got)} == {name for name in HARDWARE if name.startswith("gpu")}


def test_visible_devices_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert of(0, GpuCounters(FakeNvml()).read())


@pytest.mark.parametrize(("code", "asked_again"), [(3, False), (13, False), (999, True)])
def test_each_counter_fails_on_its_own(code: int, asked_again: bool) -> None:
    nvml = FakeNvml()
    nvml.refuse = {"nvmlDeviceGetPowerUsage": code}
    gpus = GpuCounters(nvml)
    got = gpus.read()
    assert of(0, got) == pytest.approx(WANT)
    assert of(1, got) == pytest.approx({name: value for name, value in WANT.items() if name != "power_watts"})
    nvml.refuse, nvml.calls = {}, []
    again = of(1, gpus.read())
    assert ("power_watts" in again) is asked_again
    assert (("nvmlDeviceGetPowerUsage", 1) in nvml.calls) is asked_again


def test_a_lost_device_is_named_and_the_others_go_on() -> None:
    nvml = FakeNvml()
    gpus = GpuCounters(nvml)
    gpus.read()
    nvml.refuse = {"nvmlDeviceGetPowerUsage": LOST}
    gpus.read()
    nvml.calls = []
    got = gpus.read()
    assert (of(0, got), of(1, got)) == (pytest.approx(WANT), {})
    assert gpus.lost == [1]
    assert 1 not in {gpu for _, gpu in nvml.calls}


def test_a_device_that_must_not_be_opened_is_left_out() -> None:
    nvml = FakeNvml()
    nvml.refuse = {"nvmlDeviceGetHandleByIndex": 4}
    got = GpuCounters(nvml).read()
    assert (bool(of(0, got)), of(1, got)) == (True, {})


def test_another_version_of_the_module_lacks_one_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetCurrentClocksThrottleReasons")
    got = of(0, GpuCounters(FakeNvml()).read())
    assert set(WANT) - set(got) == {"throttle_reasons"}


@pytest.mark.parametrize("call", ["nvmlInit"])
def test_a_driver_that_does_not_answer_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    nvml = FakeNvml()
    nvml.refuse = {call: 9}
    monkeypatch.setattr(importlib, "import_module", lambda name: nvml)
    with pytest.raises(OSError, match="code 9"):
        open_gpu_counters()


def test_closing_gives_the_library_back_even_if_it_is_gone() -> None:
    nvml = FakeNvml()
    nvml.refuse = {"nvmlShutdown": 1}
    GpuCounters(nvml).close()
    assert ("nvmlShutdown", 1) in nvml.calls


def _refuse(name: str) -> None:
    raise OSError(name)


@pytest.mark.parametrize(("load", "want"), [(_refuse, False), (lambda name: object(), True)])
def test_a_driver_is_there_if_its_library_loads(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Any], want: bool
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert has_driver() is want
