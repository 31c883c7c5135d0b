"""Counters of the NVIDIA GPUs of this host, from the driver's library NVML through `pynvml`.

All devices of the host are looked at, whatever CUDA_VISIBLE_DEVICES says: the index is NVML's (by PCI
bus), one look serves all workers of the host, and a neighbour's load explains a slow step. Every counter
fails on its own. What a device does not support is not asked for again, a device that is lost
is left out from then on, and anything else is tried again at the next look.

The package nvidia-ml-py is the extra `gpu`; it is imported only where the driver's library can be
loaded. Limits: PCIe throughput is NVML's own mean over the last 20 ms, and asking for it takes that long;
in MIG mode a device tells no utilization. Source: NVML's API reference.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, Final

_Read = Callable[[Any, Any], dict[str, float]]  # (pynvml, the device's handle)
_KB: Final = 1000.0  # NVML tells PCIe throughput in KB/s
_MHZ: Final = 1e6


def _utilization(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"utilization_ratio": nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100}


def _memory(nvml: Any, gpu: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return {"memory_bytes": float(memory.used), "memory_limit_bytes": float(memory.total)}


def _power(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"power_watts": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000}


def _temperature(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"temperature_celsius": float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))}


def _sm_clock(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"sm_clock_hz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * _MHZ}


def _memory_clock(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"memory_clock_hz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) * _MHZ}


def _throttling(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"throttle_reasons": float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))}


def _received(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"pcie_received_bytes_per_s": nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) * _KB}


def _sent(nvml: Any, gpu: Any) -> dict[str, float]:
    return {"pcie_sent_bytes_per_s": nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) * _KB}


_READS: Final[tuple[_Read, ...]] = (
    _utilization,
    _memory,
    _power,
    _temperature,
    _sm_clock,
    _memory_clock,
    _throttling,
    _received,
    _sent,
)


class GpuCounters:
    """All GPUs of the host, with `pynvml` opened. `lost` are the devices that fell off the bus meanwhile."""

    def __init__(self, nvml: Any) -> None:
        self.lost: list[int] = []
        self._nvml = nvml
        self._never = {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
        self._handles: dict[int, Any] = {}
        self._reads: dict[int, list[_Read]] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError:
                continue  # such as a device that this user may not open
            self._reads[index] = list(_READS)

    def read(self) -> dict[str, float]:
        """Return the counters of all devices, as `gpu0/utilization_ratio`."""
        found: dict[str, float] = {}
        for index, handle in self._handles.items():
            for read in list(self._reads[index]):
                if index in self.lost:
                    break
                found |= {f"gpu{index}/{name}": value for name, value in self._ask(index, handle, read).items()}
        return found

    def close(self) -> None:
        """Give the driver's library back."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # a driver that is gone holds nothing of ours

    def _ask(self, index: int, handle: Any, read: _Read) -> dict[str, float]:
        try:
            return read(self._nvml, handle)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in self._never:
                self._reads[index].remove(read)
            elif code == self._nvml.NVML_ERROR_GPU_IS_LOST:
                self.lost.append(index)
        except (AttributeError, TypeError, ValueError):
            self._reads[index].remove(read)  # another version of pynvml, or a driver that answers otherwise
        return {}


def has_driver() -> bool:
    """Tell whether this host has NVIDIA's driver; its library is loaded for that, and nothing started."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def open_gpu_counters() -> GpuCounters:
    """Return the counters of this host's GPUs.

    Raises:
        ImportError: nvidia-ml-py is not installed.
        OSError: the driver does not answer.
    """
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        return GpuCounters(nvml)
    except nvml.NVMLError as error:
        raise OSError(f"the NVIDIA driver does not answer: {error}") from error
