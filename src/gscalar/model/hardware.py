"""The hardware counters that are sampled: name, unit, meaning. docs/hardware.md is generated from it.

`host` counters are of the machine or of the container that confines it, `worker` counters of one worker's
process with all its children, `gpu` counters carry the device's index in place of the asterisk.
"""

from __future__ import annotations

from typing import Final

from gscalar.model.metrics import Metric

HARDWARE: Final[dict[str, Metric]] = {
    "host/cpu_cores": Metric(unit="1", meaning="Cores in use, over all processes of the host or container."),
    "host/cpu_limit_cores": Metric(unit="1", meaning="Cores that may be used: affinity and container quota."),
    "host/cpu_throttled_ratio": Metric(unit="1", meaning="Share of the container's CPU periods that were throttled."),
    "host/memory_bytes": Metric(unit="byte", meaning="Memory in use that cannot be given back at once."),
    "host/memory_limit_bytes": Metric(
        unit="byte", meaning="Memory that may be used: the machine's or the container's."
    ),
    "host/network_received_bytes_per_s": Metric(unit="byte/s", meaning="Received over all interfaces but loopback."),
    "host/network_sent_bytes_per_s": Metric(unit="byte/s", meaning="Sent over all interfaces but loopback."),
    "host/loopback_bytes_per_s": Metric(unit="byte/s", meaning="Sent over the loopback interface."),
    "host/disk_read_bytes_per_s": Metric(unit="byte/s", meaning="Read from all physical disks."),
    "host/disk_written_bytes_per_s": Metric(unit="byte/s", meaning="Written to all physical disks."),
    "worker/cpu_cores": Metric(unit="1", meaning="Cores that the worker and its children use."),
    "worker/memory_bytes": Metric(unit="byte", meaning="Resident memory of the worker and its children."),
    "gpu*/utilization_ratio": Metric(unit="1", meaning="Share of the time in which a kernel ran."),
    "gpu*/memory_bytes": Metric(unit="byte", meaning="Device memory in use."),
    "gpu*/memory_limit_bytes": Metric(unit="byte", meaning="Device memory that there is."),
    "gpu*/power_watts": Metric(unit="W", meaning="Power draw of the board."),
    "gpu*/temperature_celsius": Metric(unit="Cel", meaning="Temperature of the chip."),
    "gpu*/sm_clock_hz": Metric(unit="Hz", meaning="Clock of the streaming multiprocessors."),
    "gpu*/memory_clock_hz": Metric(unit="Hz", meaning="Clock of the memory."),
    "gpu*/throttle_reasons": Metric(unit="1", meaning="Bit mask of the reasons that lower the clocks (NVML's)."),
    "gpu*/pcie_received_bytes_per_s": Metric(unit="byte/s", meaning="Over PCIe to the device."),
    "gpu*/pcie_sent_bytes_per_s": Metric(unit="byte/s", meaning="Over PCIe from the device."),
}
