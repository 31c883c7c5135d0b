"""The forecast of more loaders against two profiles of one ResNet-50, before and after (shared/data/README.md).

The constants come from our own benchmark of loaders; nothing of these files is in them.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.importers.layers import covered, layered
from gscalar.model.timeline import Floats
from gscalar.prediction.loading import predict_loader

SHARED = Path(os.environ.get("GSCALAR_SHARED", Path(__file__).parents[4] / "shared"))
TO_90 = 1.645


@dataclass(frozen=True)
class Profile:
    """Seconds of each step."""

    step_s: Floats
    wait_s: Floats
    exposed_wait_s: Floats
    copy_s: Floats
    batch_bytes: float


def profile(num_workers: int) -> Profile:
    path = SHARED / "data" / "kineto" / f"resnet50_workers{num_workers}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"needs {path}; GSCALAR_SHARED names the folder of outside data")
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    steps = places([event for event in events if event["name"].startswith("ProfilerStep#")])
    waits = places([event for event in events if event["name"].startswith("enumerate(DataLoader)")])
    device = places([event for event in events if event.get("cat") in ("Kernel", "Memcpy", "Memset")])
    copies = [event for event in events if event["name"].startswith("Memcpy HtoD")]
    copied = [covered(*steps, places([each])) for each in copies]
    return Profile(
        step_s=steps[1] - steps[0],
        wait_s=covered(*steps, waits),
        exposed_wait_s=layered(*steps, [device, waits])[1],
        copy_s=np.sum(copied, axis=0),
        batch_bytes=sum(event["args"]["bytes"] for event in copies) / len(steps[0]),
    )


def places(events: list[Any]) -> tuple[Floats, Floats]:
    starts, durations = np.array(sorted((event["ts"], event["dur"]) for event in events), np.float64).T / 1e6
    return starts, starts + durations


def interval(step_s: Floats, residue_sd_s: float) -> tuple[float, float]:
    """Return 90 % of the median: what the choice of steps does to it, and what the residue does."""
    draw = np.random.default_rng(1)
    medians = np.median(draw.choice(step_s, (2000, len(step_s))), axis=1)
    sd_s = math.hypot(float(medians.std()), residue_sd_s)
    return float(np.median(step_s)) - TO_90 * sd_s, float(np.median(step_s)) + TO_90 * sd_s


@pytest.mark.parametrize("knows_bytes", [True, False])
def test_four_loaders_instead_of_none_are_forecast_within_six_per_cent(knows_bytes: bool) -> None:
    before, after = profile(0), profile(4)
    measured_s = float(np.median(after.step_s))
    naive_s = float(np.median(before.step_s) - np.median(before.exposed_wait_s))
    num_bytes = before.batch_bytes if knows_bytes else math.nan
    got = predict_loader(before.step_s, before.exposed_wait_s, before.wait_s, before.copy_s, num_bytes, 0, 4)
    predicted_s = float(np.median(got.step_s))
    low_s, high_s = interval(got.step_s, got.residue_sd_s)
    assert abs(predicted_s / measured_s - 1) < 0.06
    assert abs(predicted_s - measured_s) < abs(naive_s - measured_s)
    assert low_s < measured_s < high_s
    assert high_s / low_s < 1.4  # an interval that says something


def test_loaders_that_keep_up_are_not_forecast_to_gain() -> None:
    after = profile(4)
    work_s = np.full_like(after.step_s, np.nan)
    got = predict_loader(after.step_s, after.exposed_wait_s, work_s, after.copy_s, after.batch_bytes, 4, 8)
    assert np.median(got.step_s) == pytest.approx(np.median(after.step_s), rel=0.02)
