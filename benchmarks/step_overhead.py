"""What a run adds to a training step, against the same loop in plain DistributedDataParallel.

    python benchmarks/step_overhead.py [--json] [--rounds N]

Two ranks train the bytes_lm recipe's model under `gscalar run`. In each round three arms take turns in short
blocks of steps: a plain one, one through the run, and another plain one. An arm's figure of a round is the median
step of its block, and a ratio is taken within a round, so that what disturbs the machine disturbs both: that of
the run to the mean of the plain arms around it. The ratio of one plain arm to the other (A/A) says how far off a
ratio is where nothing differs. Where things lie in memory alone makes per cents, so the arms train the same
weights, and there are twelve launches that differ in the order in which the arms are made. Given are medians
over all rounds with the 95 % interval of a bootstrap (2,000 resamples).

Besides: the direct cost of timing and recording a step, and what share of a core the supervisor's threads take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _paired import median_ratio

from gscalar.model.events import Header
from gscalar.model.spans import CollectiveKind, SpanKind
from gscalar.observation.collectives import GRADIENTS
from gscalar.runtime.framework import Update
from gscalar.runtime.recording import Recording
from gscalar.runtime.stepping import Agreement, StepResult
from gscalar.runtime.timing import Timing
from gscalar.state.records import RecordWriter

SCRIPT = Path(__file__).with_name("_overhead_script.py")
NUM_LAUNCHES = 12
MOST_OVER_AA = 0.01
MOST_UPPER = 1.02
MOST_CPU_SHARE = 0.01
LIMIT_S = 1800
CLIP_NORM = 1.0  # that of the plain arms


def train(num_rounds: int, rotation: int) -> dict[str, Any]:
    """Return what the script measured in one launch; `rotation` varies where its models lie in memory."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            sys.executable,
            "-m",
            "gscalar",
            "run",
            "--home",
            f"{folder}/home",
            "--set",
            "workers=2",
            "--set",
            "plan.clip_norm=1.0",
        ]
        command += ["--", sys.executable, str(SCRIPT), str(num_rounds), str(out), str(rotation)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the training failed:\n{done.stderr[-4000:]}")
        measured: dict[str, Any] = json.loads(out.read_text())
        return measured


def direct_costs_us(num_steps: int = 5000) -> dict[str, float]:
    """Return the microseconds that timing and recording one step take, without a training around them."""
    agreement = Agreement(samples=16.0, tokens=2048.0, stop=False, checkpoint=False, nonfinite=False)
    result = StepResult(Update(lr=1e-3, grad_norm=1.0), agreement, lambda: 2.5)
    header = Header(1, "bench", 0, 0, 2, "worker", "host", os.getpid(), 0.0, time.time_ns(), "0")
    timing_ns, recording_ns = [], []
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(RecordWriter(Path(folder) / "a000-r00000.rec", header), 0)
        timing = Timing()
        timing.start()
        clock, ledger = timing.clock, timing.ledger
        for step in range(1, num_steps + 1):
            began = time.perf_counter_ns()
            timing.resume()
            timing.end_data_wait(clock.begin(SpanKind.DATA_WAIT), num_ready=2, transfer_s=0.0)
            timing.yield_to_script(SpanKind.FORWARD)
            timing.resume()
            backward = clock.begin(SpanKind.BACKWARD)
            opened = [ledger.ready(CollectiveKind.ALL_REDUCE, GRADIENTS, 1 << 20) for _ in range(3)]
            for each in opened:
                each.done()
            timing.end_backward(backward)
            for kind in (SpanKind.COMMUNICATION, SpanKind.OPTIMIZER):
                clock.end(clock.begin(kind))
            timed = timing.cut()
            timing.yield_to_script()
            timed_at = time.perf_counter_ns()
            recording.step(result, timed, step=step, epoch=0, total_steps=num_steps)
            recording_ns.append(time.perf_counter_ns() - timed_at)
            timing_ns.append(timed_at - began)
        timing.stop()
        recording.stop_flushing()
        recording.writer.close()
    return {"timing": statistics.median(timing_ns) / 1e3, "recording": statistics.median(recording_ns) / 1e3}


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 5), "unit": unit, "goal": goal, "holds": holds}


def measure(num_rounds: int) -> dict[str, dict[str, Any]]:
    direct = direct_costs_us()
    launches = [train(num_rounds // NUM_LAUNCHES, rotation) for rotation in range(NUM_LAUNCHES)]
    step = {
        arm: [statistics.median(block) for launch in launches for block in launch["spent_s"][arm]]
        for arm in ("scalar", "bare_a", "bare_b")
    }
    bare = [statistics.mean(both) for both in zip(step["bare_a"], step["bare_b"], strict=True)]
    ratio, low, high = median_ratio(step["scalar"], bare)
    same, same_low, same_high = median_ratio(step["bare_b"], step["bare_a"])
    step_s = statistics.median(bare)
    figures = {
        "step_of_bare_ddp": figure(1e3 * step_s, "ms"),
        "scalar_over_bare": figure(ratio, "x", f"<= A/A + {MOST_OVER_AA}", ratio <= same + MOST_OVER_AA),
        "scalar_over_bare_upper": figure(high, "x", f"< {MOST_UPPER}", high < MOST_UPPER),
        "scalar_over_bare_lower": figure(low, "x"),
        "bare_over_bare": figure(same, "x"),
        "bare_over_bare_lower": figure(same_low, "x"),
        "bare_over_bare_upper": figure(same_high, "x"),
        "timing_a_step": figure(direct["timing"], "us"),
        "recording_a_step": figure(direct["recording"], "us"),
        "direct_cost_over_step": figure((direct["timing"] + direct["recording"]) / 1e6 / step_s, "1"),
    }
    for name in sorted(launches[0]["cpu_share"]):
        share = statistics.mean(launch["cpu_share"].get(name, 0.0) for launch in launches)
        key = f"cpu_share_{name.removeprefix('gscalar-')}"
        figures[key] = figure(share, "core", f"< {MOST_CPU_SHARE}", share < MOST_CPU_SHARE)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run adds to a training step.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=240, help="rounds of three blocks of five steps")
    options = parser.parse_args()
    figures = measure(options.rounds)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:32s} {entry['value']:>12,.4f} {entry['unit']:<6s} {goal}")


if __name__ == "__main__":
    main()
