"""What `gscalar metrics`, `show` and `compare` need for long runs: CPU time and memory of a whole process.

    python benchmarks/reading_commands.py [--json] [--folder FOLDER] [--rounds N] [--steps N]

Two indexed runs of a million steps with 20 metrics each, equal up to step 600,000. Their records are short and the
steps are added to the stores by their writer, since reading 40 million points from records takes minutes; a command
reads the stores, and finds them up to the records. Files are in the page cache. Commands take turns, so that a busy
machine disturbs them alike; goals are of the median CPU time (user and system) over the rounds, start of Python
included, which a busy machine raises too, by up to a half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gscalar.control.indexer import refresh
from gscalar.control.indexing.series_index import refresh_series
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home
from gscalar.state.series import SeriesKey
from gscalar.state.series.types import FileChange, NewRows, Source
from gscalar.state.series.writing import SeriesWriter
from gscalar.testing.builders import write_run

NUM_METRICS = 20
FIRST_STEP = 100  # behind those of the record
COMMIT_ROWS = 20_000
START_NS = 1_767_323_045_000_000_000
KEYS = tuple(SeriesKey("metric", f"train/metric_{index:02d}_loss", 0) for index in range(NUM_METRICS))
RUNS = {"a": "aaaa00000000", "b": "bbbb00000000"}
COMMANDS = {
    "metrics by id": ["metrics", RUNS["a"]],
    "metrics by name": ["metrics", "a"],
    "metrics, one chart": ["metrics", "a", "--name", KEYS[3].name, "--plot"],
    "show": ["show", "a"],
    "compare": ["compare", "a", "b"],
}
GOAL_S, GOAL_MB = 0.5, 200
# By a small process, since a new process begins with the memory of the one that has started it.
LAUNCH = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, 1, 0)])
_, status, used = os.wait4(child, 0)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def build(home: Home, num_steps: int) -> None:
    """Write the two runs and index them."""
    for name, run_id in RUNS.items():
        write_run(home, run_id, spec={"name": name})
        refresh_series(home, run_id)
        fill(home, run_id, num_steps, differs_from=num_steps * 6 // 10 if name == "b" else num_steps)
    with open_catalog(home) as catalog:
        refresh(home, catalog)


def fill(home: Home, run_id: str, num_steps: int, *, differs_from: int) -> None:
    """Add steps to the run's store, past its record."""
    writer = SeriesWriter(home, run_id)
    for begin in range(FIRST_STEP, num_steps, COMMIT_ROWS):
        steps = np.arange(begin, min(begin + COMMIT_ROWS, num_steps))
        noise = np.random.default_rng(begin)
        values = 2.0 + noise.normal(size=(len(steps), NUM_METRICS))
        values[steps >= differs_from] += 1e-9
        rows = NewRows(0, Source.LOG, [KEYS])
        rows.steps.frombytes(steps.tobytes())
        times_ns = START_NS + steps * 50_000_000 + noise.integers(0, 20_000_000, len(steps))
        rows.times_ns.frombytes(times_ns.tobytes())
        rows.sets.frombytes(bytes(4 * len(steps)))
        rows.values.append(values.astype("<f8").tobytes())
        files = writer.load_files()
        name = next(each for each in files if each.startswith("a000"))
        change = FileChange(name, files[name], False, [rows])
        writer.commit({each: state.offset for each, state in files.items()}, [change])
    writer.close()


def run_command(home: Home, words: list[str]) -> tuple[float, float]:
    """Return the CPU seconds and the greatest memory in MB of one process."""
    command = [sys.executable, "-m", "gscalar", *words, "--home", str(home.path)]
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCH, *command], check=True, stdout=subprocess.PIPE, text=True)
    spent_s, resident_kib = done.stdout.split()
    return float(spent_s), int(resident_kib) / 1024


def measure(home: Home, num_rounds: int) -> dict[str, dict[str, Any]]:
    """Return the figures: median and least CPU seconds, and the greatest memory, of each command."""
    for words in COMMANDS.values():
        run_command(home, words)
    rounds = [{name: run_command(home, words) for name, words in COMMANDS.items()} for _ in range(num_rounds)]
    figures = {}
    for name in COMMANDS:
        spent_s = [each[name][0] for each in rounds]
        median_s, most_mb = statistics.median(spent_s), max(each[name][1] for each in rounds)
        figures[name] = figure(median_s, "s CPU", f"< {GOAL_S}", median_s < GOAL_S)
        figures[f"{name}, least"] = figure(min(spent_s), "s CPU")
        figures[f"{name}, memory"] = figure(most_mb, "MB", f"< {GOAL_MB}", most_mb < GOAL_MB)
    return figures


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 3), "unit": unit, "goal": goal, "holds": holds}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the commands that show long runs need.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--folder", help="where to write 400 MB; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of 20 metrics each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        home = Home(Path(folder))
        build(home, options.steps)
        figures = measure(home, options.rounds)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:28s} {entry['value']:>10,.3f} {entry['unit']:<6s} {goal}")


if __name__ == "__main__":
    main()
