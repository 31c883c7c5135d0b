"""What recording costs a training, and how fast records are read back.

    python benchmarks/recorder.py [--json] [--folder FOLDER] [--blocks N] [--calls N]

The kinds of calls take turns in blocks, so that a busy machine disturbs them alike; each call is timed by
itself, the clock's own cost included. `os.write` alone, of as many bytes as one `log`, is the floor.
Rates are per second of CPU time, of the fastest of several readings of a file in the page cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gscalar
from gscalar.model.events import Header, Step
from gscalar.state.records import RecordWriter, read_logged, read_record, verify_record

NUM_METRICS = 20
NUM_READINGS = 3
LOG_GOAL_US = 6.0
HEADER = Header(1, "bench", 0, 0, 1, "worker", "host", os.getpid(), 0.0, time.time_ns(), "0")


def time_calls(call: Callable[[int], Any], first: int, num_calls: int) -> list[int]:
    """Return the nanoseconds of each call; a call is given its number."""
    spent_ns = []
    clock = time.perf_counter_ns
    for number in range(first, first + num_calls):
        start = clock()
        call(number)
        spent_ns.append(clock() - start)
    return spent_ns


def measure_calls(folder: Path, num_blocks: int, num_calls: int) -> tuple[dict[str, list[int]], Path, float]:
    """Return the nanoseconds of each kind of call, the file that was logged to, and its bytes per point."""
    logged = folder / "log.rec"
    log_writer, step_writer = RecordWriter(logged, HEADER), RecordWriter(folder / "step.rec", HEADER)
    start_bytes = logged.stat().st_size
    floor = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    piece = bytes(190)
    now_ns = time.time_ns()

    def log(number: int) -> None:
        # New values in a new dict, as in a training; the keys are the same objects every time.
        log_writer.log(number, now_ns + number, values)

    run = gscalar.init(project="bench", home=folder / "home")
    calls: dict[str, Callable[[int], Any]] = {
        "run.log": lambda number: run.log(values, step=number),
        "log": log,
        "emit": lambda number: step_writer.emit(Step(number, now_ns, 0.01, 32.0, 4096.0, 1e-3, 2.5)),
        "write": lambda number: os.write(floor, piece),
    }
    spent: dict[str, list[int]] = {kind: [] for kind in calls}
    for block, kind in itertools.product(range(num_blocks), calls):
        values = {f"train/metric_{index:02d}": block + index / 7 for index in range(NUM_METRICS)}
        spent[kind] += time_calls(calls[kind], block * num_calls, num_calls)
    bytes_per_point = (logged.stat().st_size - start_bytes) / (num_blocks * num_calls * NUM_METRICS)
    run.finish()
    log_writer.close()
    step_writer.close()
    os.close(floor)
    return spent, logged, bytes_per_point


def fastest_s(work: Callable[[], Any]) -> float:
    spent = []
    for _ in range(NUM_READINGS):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 3), "unit": unit, "goal": goal, "holds": holds}


def measure(folder: Path, num_blocks: int, num_calls: int) -> dict[str, dict[str, Any]]:
    spent, logged, bytes_per_point = measure_calls(folder, num_blocks, num_calls)
    median_us = {kind: statistics.median(times) / 1e3 for kind, times in spent.items()}
    p99_us = {kind: statistics.quantiles(times, n=100)[98] / 1e3 for kind, times in spent.items()}
    num_frames = verify_record(logged).frames
    num_bytes = logged.stat().st_size
    read_s = fastest_s(lambda: sum(1 for _ in read_record(logged)))
    values_s = fastest_s(lambda: sum(len(entry.values) for entry in read_logged(logged)))
    verify_s = fastest_s(lambda: verify_record(logged))
    return {
        "run_log_20_metrics_median": figure(
            median_us["run.log"], "us", f"< {LOG_GOAL_US:g}", median_us["run.log"] < LOG_GOAL_US
        ),
        "run_log_20_metrics_p99": figure(p99_us["run.log"], "us"),
        "record_log_20_metrics_median": figure(median_us["log"], "us"),
        "emit_step_median": figure(median_us["emit"], "us"),
        "emit_step_p99": figure(p99_us["emit"], "us"),
        "os_write_alone_median": figure(median_us["write"], "us"),
        "log_over_os_write": figure(median_us["log"] / median_us["write"], "x"),
        "bytes_per_point": figure(bytes_per_point, "B"),
        "read_frames": figure(num_frames / read_s, "1/CPU-s"),
        "read_points": figure(num_blocks * num_calls * NUM_METRICS / values_s, "1/CPU-s"),
        "verify_frames": figure(num_frames / verify_s, "1/CPU-s"),
        "verify_bytes": figure(num_bytes / verify_s / 1e6, "MB/CPU-s"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What recording costs, and how fast records are read.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--calls", type=int, default=2000, help="calls of each kind in a block")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Path(folder), options.blocks, options.calls)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:32s} {entry['value']:>14,.2f} {entry['unit']:<9s} {goal}")


if __name__ == "__main__":
    main()
