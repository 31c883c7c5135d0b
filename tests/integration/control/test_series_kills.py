"""Processes that index one run at once, and are killed at any moment, leave the store as one that was let alone."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gscalar.control.indexing.series_index import refresh_series
from gscalar.state.home import Home
from gscalar.state.series import open_series
from gscalar.testing.builders import RunBuilder

NUM_STEPS = 3000
INDEX = """
import sys
from pathlib import Path
from gscalar.control.indexing.series_index import SeriesIndex
from gscalar.state.home import Home
index = SeriesIndex(Home(Path(sys.argv[1])), sys.argv[2])
print("ready", flush=True)
index.catch_up(max_frames=37)
"""


def test_killed_indexers_lose_and_repeat_nothing(home: Path, spawn: Callable[..., subprocess.Popen[Any]]) -> None:
    place, dice = Home(home), random.Random(7)
    run = RunBuilder(place).launch(2)
    for number in range(NUM_STEPS // 10):
        run.train(10).log({"a": float(number), "b": -0.0}, rank=number % 2)
    for _ in range(8):
        pair = [spawn([sys.executable, "-c", INDEX, home, run.run_id], stdout=subprocess.PIPE) for _ in range(2)]
        for process in pair:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.15))
        for process in pair:
            process.kill()
            process.wait()
        run.train(1)
    run.abandon()
    refresh_series(place, run.run_id)
    with open_series(place, run.run_id) as reader:
        for rank in (0, 1):
            got = reader.points("metric", "train/loss", rank)
            assert got.steps.tolist() == list(range(1, NUM_STEPS + 9))
            assert np.array_equal(got.values, 4.0 / np.arange(1, NUM_STEPS + 9) + rank)
            assert reader.points("metric", "a", rank).values.tolist() == list(range(rank, NUM_STEPS // 10, 2))
        assert {each.count for each in reader.list() if each.name.startswith("train/")} == {NUM_STEPS + 8}
