"""How well the model of a transformer's iteration predicts layouts that it has not seen.

    python benchmarks/scaling_fit.py [--json] [--shared DIR]

Rows are measured iterations of vTrain's data (A100s of one machine, 1,440 layouts). Given is the mean absolute error of
the prediction, relative to what was measured: fitted on a random third and tested on the rest, for five seeds, and
fitted on at most 4 GPUs and tested on 8. `inside` is the share of the tested rows that lie in their 90 % interval. The
data are not part of the project: DIR is a folder that has scaling/measured_single_node.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gscalar.prediction.transformer import Layouts, fit_transformer

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("GSCALAR_SHARED") or ROOT.parent / "shared" / "data")
FILE = "scaling/measured_single_node.csv"
COLUMNS = {
    "global_batch": "global batch",
    "micro_batch": "micro batch",
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "sequence": "sequence length",
    "tensor": "tensor parallelism",
    "data": "data parallelism",
    "pipeline": "pipeline parallelism",
}
SEEDS = range(5)
Floats = npt.NDArray[np.float64]
Chosen = npt.NDArray[np.int64]


def read_measured(path: Path) -> tuple[Layouts, Floats]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [float(row[column]) for row in rows] for name, column in COLUMNS.items()}
    return Layouts.of(columns), np.array([float(row["iteration time (ms)"]) for row in rows]) / 1e3


def held_out(layouts: Layouts, measured_s: Floats, fitted: Chosen, tested: Chosen) -> dict[str, float]:
    model = fit_transformer(layouts[fitted], measured_s[fitted])
    want_s, unseen = measured_s[tested], layouts[tested]
    low_s, high_s = model.interval_s(unseen)
    return {
        "mape": float(np.mean(np.abs(model.predict_s(unseen) / want_s - 1))),
        "inside": float(np.mean((low_s <= want_s) & (want_s <= high_s))),
        "fitted": len(fitted),
        "tested": len(tested),
    }


def measure(layouts: Layouts, measured_s: Floats) -> dict[str, dict[str, float]]:
    found = {}
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(layouts))
        third = len(layouts) // 3
        found[f"a third, seed {seed}"] = held_out(layouts, measured_s, order[:third], order[third:])
    few, many = np.flatnonzero(layouts.num_gpus <= 4), np.flatnonzero(layouts.num_gpus == 8)
    found["at most 4 GPUs, tested on 8"] = held_out(layouts, measured_s, few, many)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shared", type=Path, default=SHARED, metavar="DIR")
    options = parser.parse_args()
    path = options.shared / FILE
    if not path.exists():
        print(f"skipped: {path} is absent; give its folder with --shared or GSCALAR_SHARED", file=sys.stderr)
        return 0
    figures: dict[str, Any] = measure(*read_measured(path))
    if options.json:
        print(json.dumps(figures))
        return 0
    print(f"{'fitted on':<30} {'error':>8} {'inside':>8}")
    for name, each in figures.items():
        print(f"{name:<30} {each['mape']:>7.1%} {each['inside']:>7.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
