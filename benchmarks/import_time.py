"""What the command line and the package cost to start, above a bare Python.

    python benchmarks/import_time.py [--json] [--rounds N]

The starts take turns, so that a busy machine disturbs them alike; a figure is the median over rounds of
the difference to the bare start of the same round.
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
from typing import Any

STARTS = {
    "python": ["-c", "pass"],
    "import gscalar": ["-c", "import gscalar"],
    "gscalar --help": ["-m", "gscalar", "--help"],
    "gscalar --version": ["-m", "gscalar", "--version"],
    "gscalar runs (empty home)": ["-m", "gscalar", "runs", "--json"],
}
HOME = tempfile.TemporaryDirectory()
GOALS_S = {"gscalar --help": 0.28}


def start_s(arguments: list[str]) -> float:
    """Return the wall seconds of one start of this interpreter."""
    # A start that must compile its modules anew measures the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["GSCALAR_HOME"] = HOME.name
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


def measure(num_rounds: int) -> dict[str, dict[str, Any]]:
    """Return the figures: median seconds above the bare start."""
    for arguments in STARTS.values():
        start_s(arguments)
    rounds = [{name: start_s(arguments) for name, arguments in STARTS.items()} for _ in range(num_rounds)]
    bare = statistics.median(each["python"] for each in rounds)
    figures: dict[str, dict[str, Any]] = {"python": {"value": bare, "unit": "s", "goal": None, "holds": None}}
    for name in list(STARTS)[1:]:
        above = statistics.median(each[name] - each["python"] for each in rounds)
        goal = GOALS_S.get(name)
        holds = None if goal is None else above < goal
        figures[f"{name} above python"] = {"value": above, "unit": "s", "goal": goal, "holds": holds}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    figures = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps({"figures": figures}))
        return
    for name, figure in figures.items():
        goal = f"   (goal: below {figure['goal']} s)" if figure["goal"] else ""
        print(f"{name:<40} {figure['value']:8.3f} s{goal}")


if __name__ == "__main__":
    main()
