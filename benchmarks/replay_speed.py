"""What it costs to read a table of operations, to make its steps ready for a replay, and to answer what-ifs.

    python benchmarks/replay_speed.py [--json] [--rounds N] [--trace FILE]

The table is simulated: 4 replicas of 4 stages, 32 micro-batches, 44 steps, so its shape is that of the published trace
of a training on 64 GPUs (117 thousand operations). `load` reads it (parquet where pyarrow is installed, else CSV),
`measure` makes the template and the durations, `edits` replays twelve edits in one pass; imports are not counted.
Medians of the rounds, which measure all parts in turns, in CPU time, which a busy machine hardly changes. The replay
is checked against the simulation in the same run. `--trace` measures a table of yours instead.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gscalar.importers.operations import read_operations
from gscalar.model.timeline import Activity, StepTimeline
from gscalar.prediction import edits
from gscalar.prediction.edits import Edit
from gscalar.prediction.forecast import Proposal, Replay
from gscalar.prediction.measured import MeasuredSteps
from gscalar.prediction.pipeline import measure_pipeline
from gscalar.testing.pipelines import COLUMNS, draw_pipeline, simulate_pipeline, write_operations

SHAPE = {"dp": 4, "pp": 4, "micro": 32, "steps": 44}
OVERLAP = edits.overlapped(latency_s=50e-6)
EDITS: list[Edit] = [
    OVERLAP,
    edits.without_transfers,
    edits.balanced,
    edits.ideal_compute,
    edits.joined([edits.balanced, OVERLAP]),
    edits.joined([edits.ideal_compute, edits.without_transfers]),
    edits.replaced([(0, 0)]),
    edits.repartitioned,
    edits.transfers_scaled(0.5),
    edits.scaled(Activity.OPTIMIZER, by=0.5),
    edits.labels_scaled("gc", by=0.1),
    edits.tails_cut(),
]


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 4), "unit": unit, "goal": goal, "holds": holds}


def simulate(folder: Path) -> tuple[Path, Path]:
    """Write the simulated table; return it as CSV, and as what is read best here."""
    draw = draw_pipeline(np.random.default_rng(1), **SHAPE, jitter=0.05, slow={(0, 0): 2.0})
    rows = simulate_pipeline(draw)
    as_csv = folder / "table.csv"
    write_operations(as_csv, rows)
    if importlib.util.find_spec("pyarrow") is None:
        return as_csv, as_csv
    import pyarrow as pa
    import pyarrow.parquet as parquet

    as_parquet = folder / "table.parquet"
    parquet.write_table(pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))), as_parquet)
    return as_csv, as_parquet


def simulated_s(as_csv: Path) -> np.ndarray:
    """Return when the last operation of each step ended, from the rows alone."""
    ends = np.zeros(SHAPE["steps"])
    with as_csv.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            step = int(row["step"])
            ends[step] = max(ends[step], float(row["start_ts"]) + float(row["duration"]))
    return ends


def timed(spent: dict[str, list[float]], name: str, call: Callable[..., Any], *arguments: object) -> Any:
    begin = time.process_time()
    result = call(*arguments)
    spent.setdefault(name, []).append(time.process_time() - begin)
    return result


def measure(path: Path, as_csv: Path | None, rounds: int) -> dict[str, dict[str, Any]]:
    spent: dict[str, list[float]] = {}
    proposals = [
        Proposal(name=str(at), knob="", likely=edit, ceiling=edit, uncertainty=0.1) for at, edit in enumerate(EDITS)
    ]
    for _ in range(rounds):
        timeline: StepTimeline = timed(spent, "load", read_operations, path)
        steps: MeasuredSteps = timed(spent, "measure", measure_pipeline, timeline)
        replay: Replay = timed(spent, "replay", Replay.of, steps)
        timed(spent, "edits", replay.edited_s, EDITS)
        timed(spent, "one edit", replay.edited_s, EDITS[:1])
        timed(spent, "forecasts", replay.forecast, proposals)
        if as_csv is not None and as_csv != path:
            timed(spent, "load_csv", read_operations, as_csv)
    cpu_s = {name: statistics.median(values) for name, values in spent.items()}
    whole_s = sum(cpu_s[name] for name in ("load", "measure", "replay", "edits"))
    edit_ms = cpu_s["edits"] / len(EDITS) * 1e3
    figures = {
        "whole": figure(whole_s, "s CPU", "< 1.5", whole_s < 1.5),
        "an_edit_of_twelve": figure(edit_ms, "ms CPU", "< 50", edit_ms < 50),
        "an_edit_alone": figure(cpu_s["one edit"] * 1e3, "ms CPU", "< 50", cpu_s["one edit"] < 0.05),
        "a_forecast": figure(cpu_s["forecasts"] / len(proposals) * 1e3, "ms CPU"),
        "load": figure(cpu_s["load"], "s CPU"),
        "measure": figure(cpu_s["measure"], "s CPU"),
        "replay": figure(cpu_s["replay"], "s CPU"),
        "operations": figure(len(timeline.spans), "1"),
        "slowdown": figure(replay.slowdown, "1"),
    }
    if "load_csv" in cpu_s:
        figures["load_csv"] = figure(cpu_s["load_csv"], "s CPU")
    if as_csv is not None:
        wrong = float(np.abs(replay.replayed_s / simulated_s(as_csv) - 1).max())
        figures["replay_error"] = figure(wrong, "1", "< 1e-9", wrong < 1e-9)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What the replay of a table of operations costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trace", type=Path, help="a table of operations to measure instead of the simulated one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        as_csv, path = (None, options.trace) if options.trace else simulate(Path(folder))
        figures = measure(path, as_csv, options.rounds)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:20s} {entry['value']:>12,.4g} {entry['unit']:<8s} {goal}")


if __name__ == "__main__":
    main()
