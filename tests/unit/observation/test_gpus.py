"""GPUs as the driver's library and `nvidia-smi` name them; both are stood in for."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gscalar.observation import gpus
from gscalar.observation.gpus import list_gpus, parse_smi_line

NOT_SUPPORTED = 3


class FakeLibrary:
    """NVML with two GPUs, the second of which does not tell its memory."""

    def __init__(self, *, init: int = 0) -> None:
        self.init = init
        self.is_open = False

    def nvmlInit_v2(self) -> int:
        self.is_open = self.init == 0
        return self.init

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 1000 + index
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: int) -> int:
        return self._write(buffer, "570.86.15")

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: int) -> int:
        return self._write(buffer, f"NVIDIA H200 number {handle.value}")

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: int) -> int:
        return self._write(buffer, f"GPU-{handle.value}")

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = 143_771 * 2**20
        return 0 if handle.value == 1000 else NOT_SUPPORTED

    def _write(self, buffer: Any, text: str) -> int:
        buffer.value = text.encode()
        return 0


def test_gpus_are_those_of_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    first = {"name": "NVIDIA H200 number 1000", "uuid": "GPU-1000", "memory_bytes": 143_771 * 2**20}
    second = {"name": "NVIDIA H200 number 1001", "uuid": "GPU-1001"}
    driver = {"driver": "570.86.15"}
    assert list_gpus() == [{"index": 0, **driver, **first}, {"index": 1, **driver, **second}]
    assert not library.is_open


def test_a_driver_that_does_not_answer_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeLibrary(init=9))
    assert list_gpus() == []


def test_without_a_library_and_a_program_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    assert list_gpus() == []


def test_a_line_of_nvidia_smi_is_read() -> None:
    assert parse_smi_line("0, NVIDIA H200, GPU-1b9f, 143771, 570.86.15") == {
        "index": 0,
        "name": "NVIDIA H200",
        "uuid": "GPU-1b9f",
        "memory_bytes": 143_771 * 2**20,
        "driver": "570.86.15",
    }


@pytest.mark.parametrize("line", ["", "No devices were found", "a, b"])
def test_a_line_of_another_kind_is_no_gpu(line: str) -> None:
    assert parse_smi_line(line) == {}


def test_a_value_that_the_driver_does_not_know_is_absent() -> None:
    assert "memory_bytes" not in parse_smi_line("0, NVIDIA GB10, GPU-1b9f, [N/A], 580.1")
