"""What a run's series cost to index and to store, and how fast they are read and drawn.

    python benchmarks/series.py [--json] [--folder FOLDER] [--points N] [--steps N]

Throughput is per second of CPU time, of records that a RecordWriter wrote (one `log` of 20 noisy values a step). Charts
are timed one by one over random windows of random sizes. All files are in the page cache, so on a machine that does
nothing else CPU time and wall time are the same; goals are of CPU time, which a busy machine hardly changes. The store
of 20 metrics is opened by a process of its own, which says what it needed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gscalar.control.indexing.series_index import SeriesIndex
from gscalar.model.events import Header
from gscalar.state.home import Home
from gscalar.state.records import RecordWriter
from gscalar.state.series import SeriesKey, open_series
from gscalar.state.series.types import FileChange, FileState, NewRows, Source
from gscalar.state.series.writing import SeriesWriter

NUM_METRICS = 20
NUM_ZOOMS = 300
NUM_SPIKES = 50
SPIKED_POINTS = 100_000
RECORD = "a000-r00000.rec"
START_NS = 1_767_323_045_000_000_000
COMMIT_ROWS = 20_000
NAMES = [f"train/metric_{index:02d}" for index in range(NUM_METRICS)]


def fill(home: Home, run_id: str, names: list[str], num_steps: int, make: Callable[[int, int], np.ndarray]) -> None:
    """Add steps to a run's store, past the record; `make` returns (steps, names) values."""
    writer = SeriesWriter(home, run_id)
    keys = tuple(SeriesKey("metric", name, 0) for name in names)
    noise = np.random.default_rng(0)
    for begin in range(0, num_steps, COMMIT_ROWS):
        num = min(COMMIT_ROWS, num_steps - begin)
        rows = NewRows(0, Source.LOG, [keys])
        rows.steps.frombytes(np.arange(begin, begin + num).tobytes())
        jitter = noise.integers(0, 20_000_000, num)
        rows.times_ns.frombytes((START_NS + np.arange(begin, begin + num) * 50_000_000 + jitter).tobytes())
        rows.sets.frombytes(bytes(4 * num))
        rows.values.append(make(begin, num).astype("<f8").tobytes())
        state = FileState(begin + num, 0, 0, 2**62, b"")
        writer.commit({RECORD: begin} if begin else {}, [FileChange(RECORD, state, False, [rows])])
    writer.close()


def noisy(begin: int, num: int, num_columns: int) -> np.ndarray:
    noise = np.random.default_rng(begin).normal(size=(num, num_columns))
    return 2.0 + noise + 4.0 / np.sqrt(1 + np.arange(begin, begin + num))[:, None]


def num_bytes(home: Home, run_id: str) -> int:
    return sum(path.stat().st_size for path in home.series(run_id).parent.glob(f"{run_id}.db*"))


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 3), "unit": unit, "goal": goal, "holds": holds}


def measure_charts(home: Home, num_points: int) -> dict[str, dict[str, Any]]:
    """Return what charts of one long series cost at any zoom."""
    fill(home, "long", ["loss"], num_points, lambda begin, num: noisy(begin, num, 1))
    random = np.random.default_rng(1)
    spent_ms, wall_ms = [], []
    with open_series(home, "long") as reader:
        reader.chart("metric", "loss", 0)
        for zoom in range(NUM_ZOOMS + 1):
            width = num_points if not zoom else int(num_points ** random.uniform(0.3, 1.0))
            begin = int(random.integers(0, num_points - width + 1))
            start, start_cpu = time.perf_counter(), time.process_time()
            chart = reader.chart("metric", "loss", 0, begin=begin, end=begin + width - 1)
            spent_ms.append((time.process_time() - start_cpu) * 1e3)
            wall_ms.append((time.perf_counter() - start) * 1e3)
            assert chart.count.sum() == width
    worst, median = max(spent_ms), statistics.median(spent_ms)
    return {
        "chart_median": figure(median, "ms CPU", "< 50", median < 50),
        "chart_slowest_of_300": figure(worst, "ms CPU", "< 50", worst < 50),
        "chart_whole": figure(spent_ms[0], "ms CPU", "< 50", spent_ms[0] < 50),
        "chart_median_wall": figure(statistics.median(wall_ms), "ms"),
        "one_key_bytes_per_point": figure(num_bytes(home, "long") / num_points, "B"),
    }


def measure_spikes(home: Home) -> dict[str, dict[str, Any]]:
    """Return how many single wild points a chart of 1000 columns shows."""
    at = np.random.default_rng(2).choice(SPIKED_POINTS, NUM_SPIKES, replace=False)

    def make(begin: int, num: int) -> np.ndarray:
        values = noisy(begin, num, 1)
        inside = at[(at >= begin) & (at < begin + num)]
        values[inside - begin] += 1000.0
        return values

    fill(home, "spikes", ["loss"], SPIKED_POINTS, make)
    with open_series(home, "spikes") as reader:
        chart = reader.chart("metric", "loss", 0, columns=1000)
        spent_s = fastest_s(lambda: reader.points("metric", "loss", 0))
    shown = len(set(chart.greatest_at[chart.greatest > 500].tolist()) & set(at.tolist()))
    # Two spikes in one column are one line: it shows both.
    columns = np.searchsorted(chart.begin, at, "right") - 1
    seen = sum(bool(chart.greatest[column] > 500) for column in columns)
    assert shown <= seen
    return {
        "spikes_shown": figure(seen, "of 50", "50", seen == NUM_SPIKES),
        "read_100k_points": figure(spent_s * 1e3, "ms CPU"),
    }


def measure_indexing(home: Home, num_steps: int) -> dict[str, dict[str, Any]]:
    """Return what indexing records of 20 noisy values a step costs."""
    folder = home.run("record")
    folder.create()
    header = Header(1, "record", 0, 0, 1, "worker", "host", os.getpid(), 0.0, START_NS, "0")
    writer = RecordWriter(folder.records / RECORD, header)
    random = np.random.default_rng(3)
    values = noisy(0, num_steps, NUM_METRICS).tolist()
    times = START_NS + np.arange(num_steps) * 50_000_000 + random.integers(0, 20_000_000, num_steps)
    for step, (row, time_ns) in enumerate(zip(values, times.tolist(), strict=True)):
        writer.log(step, time_ns, dict(zip(NAMES, row, strict=True)))
    writer.close()
    index = SeriesIndex(home, "record")
    start = time.process_time()
    index.catch_up()
    spent_s = time.process_time() - start
    index.close()
    per_point = num_bytes(home, "record") / (num_steps * NUM_METRICS)
    return {
        "index_points": figure(num_steps * NUM_METRICS / spent_s, "1/CPU-s"),
        "bytes_per_point_20_keys": figure(per_point, "B", "<= 12", per_point <= 12),
    }


def measure_opening(home: Home, num_steps: int) -> dict[str, dict[str, Any]]:
    """Return what a new process needs to list 20 series and to draw each."""
    start = time.process_time()
    fill(home, "wide", NAMES, num_steps, lambda begin, num: noisy(begin, num, NUM_METRICS))
    filled_s = time.process_time() - start
    done = subprocess.run(
        [sys.executable, __file__, "--open", str(home.path)], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    return {
        "add_points": figure(num_steps * NUM_METRICS / filled_s, "1/CPU-s"),
        "open_list_and_20_charts": figure(told["spent_s"], "s CPU", "< 0.5", told["spent_s"] < 0.5),
        "open_list_and_20_charts_wall": figure(told["wall_s"], "s"),
        "open_resident": figure(told["resident_mb"], "MB", "< 200", told["resident_mb"] < 200),
    }


def open_and_draw(home: Home) -> dict[str, float]:
    start, start_cpu = time.perf_counter(), time.process_time()
    with open_series(home, "wide") as reader:
        found = reader.list()
        for each in found:
            reader.chart(each.kind, each.name, each.rank)
    assert len(found) == NUM_METRICS
    return {
        "spent_s": time.process_time() - start_cpu,
        "wall_s": time.perf_counter() - start,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def fastest_s(work: Callable[[], Any]) -> float:
    spent = []
    for _ in range(5):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def measure(home: Home, num_points: int, num_steps: int) -> dict[str, dict[str, Any]]:
    return (
        measure_charts(home, num_points)
        | measure_spikes(home)
        | measure_indexing(home, num_steps // 10)
        | measure_opening(home, num_steps)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What series cost to index and store, and how fast they are drawn.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--points", type=int, default=10_000_000, help="of the long series")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of 20 metrics each")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        print(json.dumps(open_and_draw(Home(Path(options.open)))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Home(Path(folder)), options.points, options.steps)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:32s} {entry['value']:>14,.2f} {entry['unit']:<9s} {goal}")


if __name__ == "__main__":
    main()
