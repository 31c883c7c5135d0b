"""The NVIDIA GPUs of this machine, asked of the driver's library NVML, else of `nvidia-smi`.

No framework is imported and no CUDA context is made, so that it costs no GPU memory. Names and
values follow NVML's API reference (nvmlDeviceGetName, nvmlDeviceGetUUID, nvmlDeviceGetMemoryInfo).
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from typing import Any, Final

_SMI_TIMEOUT_S: Final = 2.0
_TEXT_BYTES: Final = 96  # NVML's longest buffers: names, UUIDs and versions fit


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def list_gpus() -> list[dict[str, Any]]:
    """Return index, name, uuid, memory_bytes and driver of each GPU; no GPU is an empty list."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return _ask_smi()
    if library.nvmlInit_v2() != 0:
        return []
    try:
        return _ask_library(library)
    finally:
        library.nvmlShutdown()


def parse_smi_line(line: str) -> dict[str, Any]:
    """Return one GPU from a line of `nvidia-smi --query-gpu` (memory in MiB, without a unit), or nothing."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5:
        return {}
    index, name, uuid, memory_mib, driver = parts
    gpu: dict[str, Any] = {"name": name, "uuid": uuid, "driver": driver}
    gpu |= {"index": int(index)} if index.isdigit() else {}
    return gpu | ({"memory_bytes": int(memory_mib) * 2**20} if memory_mib.isdigit() else {})


def _ask_library(library: Any) -> list[dict[str, Any]]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    driver = _text(library.nvmlSystemGetDriverVersion)
    gpus: list[dict[str, Any]] = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        memory = _Memory()
        gpu: dict[str, Any] = {"index": index, "driver": driver}
        gpu["name"] = _text(library.nvmlDeviceGetName, handle)
        gpu["uuid"] = _text(library.nvmlDeviceGetUUID, handle)
        if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            gpu["memory_bytes"] = memory.total
        gpus.append({name: value for name, value in gpu.items() if value is not None})
    return gpus


def _text(ask: Any, *arguments: Any) -> str | None:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    return buffer.value.decode(errors="replace") if ask(*arguments, buffer, _TEXT_BYTES) == 0 else None


def _ask_smi() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    fields = "index,name,uuid,memory.total,driver_version"
    done = subprocess.run(
        [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SMI_TIMEOUT_S,
        check=True,
    )
    return [gpu for line in done.stdout.splitlines() if (gpu := parse_smi_line(line))]
