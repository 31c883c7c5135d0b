"""Exports of Nsight Systems that others made, with what is known about them (shared/data/README.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gscalar.importers.nsight import read_nsight
from gscalar.model.timeline import Signal

SHARED = Path(os.environ.get("GSCALAR_SHARED", Path(__file__).parents[4] / "shared"))


def export(name: str) -> Path:
    path = SHARED / "data" / "nsight" / name
    if not path.exists():
        pytest.skip(f"needs {path}; GSCALAR_SHARED names the folder of outside data")
    return path


def test_a_device_that_is_idle_for_one_per_cent() -> None:
    got = read_nsight(export("healthy_1pct.sqlite"))
    (device,) = got.devices
    assert device.idle_s / device.span_s == pytest.approx(0.0099, abs=0.00005)
    assert device.num_operations == 400
    assert got.num_steps == 0
    assert "no range" in got.unknown[Signal.STEPS]


def test_two_devices_expose_all_that_they_communicate() -> None:
    got = read_nsight(export("mfu_2gpu_before.sqlite"))
    assert [round(1e3 * device.exposed_s, 2) for device in got.devices] == [17.17, 8.23]
    assert [device.overlap_s for device in got.devices] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert [(rank.rank, use.device) for rank, use in zip(got.ranks, got.devices, strict=True)] == [(0, 0), (1, 1)]
    assert got.unmatched == ()
    for device in got.devices:
        reasons_s = device.idle_launch_s + device.idle_queued_s + device.idle_other_s
        assert reasons_s == pytest.approx(device.idle_s)
