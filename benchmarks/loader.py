"""What batches from loader processes cost the training's process, and how well a step with them is forecast.

    python benchmarks/loader.py [--json] [--rounds N] [--steps N] [--workers N]

A training loop takes batches from torch's DataLoader, copies each into a buffer of its own (as a copy to a device is
staged), computes for twice as long as one process needs for a batch, and lets the batch go. Samples are decoded by
numpy: images kept as differences of bytes, put together, turned into float32 by channels, and scaled. Arms, without
loader processes and with 1 to N of them, take turns in blocks of steps; their loaders stand still once their queues
are full. There are five sizes of batches, which take turns too. The first steps of a block, when queues are filled
again, do not count. A figure of an arm is the lower quartile of its steps, since what disturbs a machine only adds.

    getting + releasing = queue_s + pass_s_per_byte * batch_bytes       (least squares, relative errors)
    copying / copying without loaders - 1 = copy_growth                 (of the sums over all sizes)

Given are the constants, how far the residue of each arm is from the fit (`spread`), and the error of the
forecast of the whole step of each size by constants that were fitted on the other sizes. An arm whose
single loader cannot keep up (its step computes for half of what a batch takes) shows how well waits are forecast. What
the loaders slow down besides, by sharing cores and memory, is in the measured steps and not in the forecasts: where
computing grew by more than 5 %, the machine had no core to spare, and the figures are not of a free one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from gscalar.prediction.loading import LoaderConstants, predict_loader

Floats = npt.NDArray[np.float64]

SIDE = 224
SAMPLE_BYTES = 3 * SIDE * SIDE * 4
BATCHES = (4, 8, 16, 32, 64)  # samples
DECODE_PASSES = 8  # about 3 ms a sample, as a JPEG of this size takes
REST_TO_WORK = {"kept up": 2.0, "fallen behind": 0.5}
SETTLING_STEPS = 4
QUIET = 0.25
MOST_ERROR, MOST_ERROR_BEHIND, MOST_DISTURBANCE = 0.03, 0.08, 0.05
GETTING, COPYING, COMPUTING, RELEASING = range(4)


class Images(Dataset[torch.Tensor]):
    """An endless data set of one image, decoded anew each time."""

    def __init__(self) -> None:
        self._differences = np.random.default_rng(0).integers(0, 3, (SIDE, SIDE, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = self._differences
        for _ in range(DECODE_PASSES):
            pixels = np.cumsum(pixels, axis=1, dtype=np.uint8)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float().div_(255)


@dataclass(frozen=True, slots=True)
class Arm:
    """Blocks of steps of one size of batch, one number of loaders and one length of step."""

    num_samples: int
    num_workers: int
    pace: str
    blocks: list[Floats]  # (num_steps, 4) seconds each

    @property
    def batch_bytes(self) -> int:
        return self.num_samples * SAMPLE_BYTES

    @property
    def parts_s(self) -> Floats:
        """Getting, copying, computing and releasing, `(4,)`."""
        return np.quantile(np.concatenate(self.blocks), QUIET, axis=0)

    @property
    def step_s(self) -> float:
        return typical(np.concatenate(self.blocks).sum(axis=1))


def typical(steps_s: Floats) -> float:
    """Return the step of a quiet machine."""
    return float(np.quantile(steps_s, QUIET))


def batches(num_samples: int, num_workers: int) -> Iterator[torch.Tensor]:
    """Return the batches of a loader with so many processes."""
    prefetch = 2 if num_workers else None
    loader = DataLoader(Images(), batch_size=num_samples, num_workers=num_workers, prefetch_factor=prefetch)
    return iter(loader)


class Device:
    """What stands for the training: a buffer that batches are copied to, and products of matrices."""

    def __init__(self, num_samples: int) -> None:
        self._buffer = torch.zeros(num_samples, 3, SIDE, SIDE)
        self._factor, self._product = torch.full((256, 256), 1e-3), torch.empty(256, 256)
        self.product_s = min(self._timed_s(20) for _ in range(20)) / 20

    def _timed_s(self, num_products: int) -> float:
        began = time.perf_counter()
        self.compute(num_products)
        return time.perf_counter() - began

    def compute(self, num_products: int) -> None:
        for _ in range(num_products):
            torch.mm(self._factor, self._factor, out=self._product)

    def block(self, source: Iterator[torch.Tensor], num_products: int, num_steps: int) -> Floats:
        """Return what each step took for getting, copying, computing and releasing, `(num_steps, 4)` seconds."""
        rows = np.empty((num_steps, 5))
        for row in rows:
            row[0] = time.perf_counter()
            batch = next(source)
            row[1] = time.perf_counter()
            self._buffer.copy_(batch)
            row[2] = time.perf_counter()
            self.compute(num_products)
            row[3] = time.perf_counter()
            del batch
            row[4] = time.perf_counter()
        return np.diff(rows, axis=1)


class Size:
    """The loaders and the arms of one size of batch."""

    def __init__(self, num_samples: int, most_workers: int) -> None:
        self._device = Device(num_samples)
        self._sources = {num: batches(num_samples, num) for num in range(most_workers + 1)}
        settled = self._device.block(self._sources[0], 0, SETTLING_STEPS + 4)[SETTLING_STEPS:]
        self._work_s = float(np.quantile(settled[:, GETTING], QUIET))
        self.arms = [Arm(num_samples, num, "kept up", []) for num in self._sources]
        self.arms += [Arm(num_samples, num, "fallen behind", []) for num in (0, 1)]

    def round(self, num_steps: int) -> None:
        """Add a block to each arm."""
        for arm in self.arms:
            num_products = max(1, round(REST_TO_WORK[arm.pace] * self._work_s / self._device.product_s))
            block = self._device.block(self._sources[arm.num_workers], num_products, SETTLING_STEPS + num_steps)
            arm.blocks.append(block[SETTLING_STEPS:])


def fit(arms: list[Arm]) -> LoaderConstants:
    """Return the constants from arms of several sizes whose loaders keep up."""
    kept_up = [arm for arm in arms if arm.pace == "kept up"]
    alone_s = {arm.num_samples: arm.parts_s for arm in kept_up if arm.num_workers == 0}
    loaded = [arm for arm in kept_up if arm.num_workers]
    more_s = np.array([arm.parts_s - alone_s[arm.num_samples] for arm in loaded])
    residue_s = np.array([arm.parts_s[GETTING] for arm in loaded]) + more_s[:, RELEASING]
    copy_s = sum(alone_s[arm.num_samples][COPYING] for arm in loaded)
    num_bytes = np.array([float(arm.batch_bytes) for arm in loaded])
    terms = np.stack([np.ones_like(num_bytes), num_bytes], axis=1) / residue_s[:, None]
    queue_s, pass_s_per_byte = np.linalg.lstsq(terms, np.ones_like(residue_s))[0]
    errors = (queue_s + pass_s_per_byte * num_bytes) / residue_s - 1
    return LoaderConstants(
        pass_s_per_byte=float(pass_s_per_byte),
        queue_s=float(queue_s),
        copy_growth=float(more_s[:, COPYING].sum() / copy_s),
        spread=float(np.sqrt(np.mean(errors**2))),
        elsewhere=0.0,
    )


def forecast(arm: Arm, alone: Arm, constants: LoaderConstants) -> float:
    """Return the step that is forecast for an arm from the steps without loaders."""
    steps = np.concatenate(alone.blocks).T
    predicted = predict_loader(
        steps.sum(axis=0), steps[GETTING], steps[GETTING], steps[COPYING],
        arm.batch_bytes, 0, arm.num_workers, constants,
    )  # fmt: skip
    return typical(predicted.step_s)


def rows_of(arms: list[Arm]) -> list[dict[str, Any]]:
    """Return a row for each arm: its parts in ms, and the errors of forecasts that have not seen its size."""
    rows = []
    for arm in arms:
        alone = next(a for a in arms if (a.num_samples, a.pace, a.num_workers) == (arm.num_samples, arm.pace, 0))
        row: dict[str, Any] = {"batch_mb": arm.batch_bytes / 1e6, "workers": arm.num_workers, "pace": arm.pace}
        parts_ms = 1e3 * arm.parts_s
        row |= dict(zip(("getting_ms", "copying_ms", "computing_ms", "releasing_ms"), parts_ms.tolist(), strict=True))
        row["step_ms"] = 1e3 * arm.step_s
        if arm.num_workers:
            constants = fit([other for other in arms if other.num_samples != arm.num_samples])
            row["error"] = forecast(arm, alone, constants) / arm.step_s - 1
            free = LoaderConstants(pass_s_per_byte=0.0, queue_s=0.0, copy_growth=0.0, spread=0.0)
            row["error_without_residue"] = forecast(arm, alone, free) / arm.step_s - 1
        rows.append(row)
    return rows


def figures_of(constants: LoaderConstants, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kept_up = [abs(row["error"]) for row in rows if row["workers"] and row["pace"] == "kept up"]
    without = [abs(row["error_without_residue"]) for row in rows if row["workers"] and row["pace"] == "kept up"]
    fallen = [abs(row["error"]) for row in rows if row["workers"] and row["pace"] != "kept up"]
    return {
        "a pass over a batch": figure(constants.pass_s_per_byte * 1e9, "ns/byte"),
        "getting a batch": figure(constants.queue_s * 1e3, "ms"),
        "growth of a copy": figure(constants.copy_growth, ""),
        "growth of the computing": figure(disturbance(rows), "", MOST_DISTURBANCE),
        "the residue beside its fit": figure(constants.spread, ""),
        "median error of a forecast": figure(float(np.median(kept_up)), "", MOST_ERROR),
        "the same without the residue": figure(float(np.median(without)), ""),
        "median error where loaders fall behind": figure(float(np.median(fallen)), "", MOST_ERROR_BEHIND),
    }


def disturbance(rows: list[dict[str, Any]]) -> float:
    """Return how much longer computing takes beside loaders that keep up: their cores were not free if it is much."""
    kept_up = [row for row in rows if row["pace"] == "kept up"]
    alone_ms = {row["batch_mb"]: row["computing_ms"] for row in kept_up if not row["workers"]}
    return float(np.median([row["computing_ms"] / alone_ms[row["batch_mb"]] for row in kept_up if row["workers"]])) - 1


def figure(value: float, unit: str, goal: float | None = None) -> dict[str, Any]:
    return {"value": round(value, 4), "unit": unit, "goal": goal, "holds": None if goal is None else value <= goal}


def print_table(constants: LoaderConstants, rows: list[dict[str, Any]]) -> None:
    print(f"{'batch':>8} {'loaders':>7} {'pace':>13} {'get':>8} {'copy':>6} {'compute':>8} {'release':>7}", end="")
    print(f" {'step':>8} {'forecast':>9} {'no residue':>10}")
    for row in rows:
        print(f"{row['batch_mb']:5.1f} MB {row['workers']:7} {row['pace']:>13} {row['getting_ms']:8.2f}", end="")
        print(f" {row['copying_ms']:6.2f} {row['computing_ms']:8.2f} {row['releasing_ms']:7.2f}", end="")
        errors = [f"{row[key]:+.1%}" if key in row else "" for key in ("error", "error_without_residue")]
        print(f" {row['step_ms']:8.2f} {errors[0]:>9} {errors[1]:>10}")
    print(f"a pass over a batch {constants.pass_s_per_byte * 1e9:.3f} ns a byte, ", end="")
    print(f"getting it {constants.queue_s * 1e3:.2f} ms, its copy +{constants.copy_growth:.0%}; ", end="")
    print(f"the fit is off by {constants.spread:.0%}")
    if disturbance(rows) > MOST_DISTURBANCE:
        print(f"the machine was busy: computing took {disturbance(rows):.0%} longer beside loaders")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [Size(num_samples, arguments.workers) for num_samples in BATCHES]
    for _ in range(arguments.rounds):
        for size in sizes:
            size.round(arguments.steps)
    arms = [arm for size in sizes for arm in size.arms]
    constants, rows = fit(arms), rows_of(arms)
    if arguments.json:
        print(json.dumps({"figures": figures_of(constants, rows), "constants": asdict(constants), "arms": rows}))
    else:
        print_table(constants, rows)


if __name__ == "__main__":
    main()
