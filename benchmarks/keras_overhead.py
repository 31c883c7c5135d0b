"""What the callback of a run adds to a step of Keras's `model.fit`, on one worker with TensorFlow.

    python benchmarks/keras_overhead.py [--json] [--rounds N]

Three arms take turns in short fits: a plain one, one with the callback, and another plain one. They train the same
model, since where weights lie in memory alone makes per cents; the plain arms keep the one graph that Keras compiled
for them. An arm's figure of a round is the mean step of its fit, from the beginning of the training to the end of
the last batch: Keras's own pipeline reads many batches in the first step and few afterwards, so a median would leave
out what it reads. A ratio is taken within a round: that with the callback to the mean of the plain arms around it. The
ratio of one plain arm to the other (A/A) says how far off a ratio is where nothing differs. Given are medians over all
rounds of several launches, with the 95 % interval of a bootstrap (2,000 resamples). The processor's time of the whole
process is compared in the same way: what is done in other threads takes no time of a step where a core is free, and
does where none is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _paired import median_ratio

NUM_LAUNCHES = 4
WARMUP_ROUNDS = 3
STEPS = 48  # of a fit
WIDTH = 768
BATCH = 256
MOST_OVER_AA = 0.01
LIMIT_S = 900


def measure(num_rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return an arm's mean step and its processor's time, in seconds, of each round.

    Runs in a process of its own.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import gscalar

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    run = gscalar.init(project="bench")

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.began = time.perf_counter(), time.process_time()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ended = time.perf_counter(), time.process_time()

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(5)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.make_train_function()
    plain_function = model.train_function
    draw = np.random.default_rng(1)
    x = draw.normal(size=(STEPS * BATCH, WIDTH)).astype("float32")
    y = draw.integers(0, 10, STEPS * BATCH)
    shuffled, plain = random.Random(0), ["bare_a", "bare_b"]
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ("bare_a", "scalar", "bare_b")}
    for number in range(num_rounds + WARMUP_ROUNDS):
        shuffled.shuffle(plain)
        for name in (plain[0], "scalar", plain[1]):
            clock = Clock()
            callbacks = [gscalar.keras.callback(run), clock] if name == "scalar" else [clock]
            model.train_function = plain_function
            model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=callbacks)
            if number >= WARMUP_ROUNDS:
                wall_s, used_s = (end - begin for begin, end in zip(clock.began, clock.ended, strict=True))
                spent[name].append((wall_s / STEPS, used_s / STEPS))
    run.finish()
    return spent


def launch(num_rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return what one process measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        environment = os.environ | {
            "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1",
            "GSCALAR_HOME": f"{folder}/home",
        }  # fmt: skip
        command = [sys.executable, __file__, "--rounds", str(num_rounds), "--worker", str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the training failed:\n{done.stderr[-4000:]}")
        measured: dict[str, list[tuple[float, float]]] = json.loads(out.read_text())
        return measured


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 5), "unit": unit, "goal": goal, "holds": holds}


def figures(num_rounds: int) -> dict[str, dict[str, Any]]:
    launches = [launch(num_rounds // NUM_LAUNCHES) for _ in range(NUM_LAUNCHES)]
    arms = ("scalar", "bare_a", "bare_b")
    step = {arm: [wall_s for one in launches for wall_s, _ in one[arm]] for arm in arms}
    used = {arm: [used_s for one in launches for _, used_s in one[arm]] for arm in arms}
    bare = [statistics.mean(both) for both in zip(step["bare_a"], step["bare_b"], strict=True)]
    bare_used = [statistics.mean(both) for both in zip(used["bare_a"], used["bare_b"], strict=True)]
    cpu, cpu_low, cpu_high = median_ratio(used["scalar"], bare_used)
    ratio, low, high = median_ratio(step["scalar"], bare)
    same, same_low, same_high = median_ratio(step["bare_b"], step["bare_a"])
    return {
        "step_of_plain_fit": figure(1e3 * statistics.median(bare), "ms"),
        "callback_over_plain": figure(ratio, "x", f"<= A/A + {MOST_OVER_AA}", ratio <= same + MOST_OVER_AA),
        "callback_over_plain_lower": figure(low, "x"),
        "callback_over_plain_upper": figure(high, "x"),
        "plain_over_plain": figure(same, "x"),
        "plain_over_plain_lower": figure(same_low, "x"),
        "plain_over_plain_upper": figure(same_high, "x"),
        "cpu_over_plain": figure(cpu, "x"),
        "cpu_over_plain_lower": figure(cpu_low, "x"),
        "cpu_over_plain_upper": figure(cpu_high, "x"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the callback adds to a step of model.fit.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=32, help="rounds of three fits")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        options.worker.write_text(json.dumps(measure(options.rounds)))
        return
    found = figures(options.rounds)
    if options.json:
        print(json.dumps({"figures": found}, indent=2))
        return
    for name, entry in found.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:32s} {entry['value']:>12,.4f} {entry['unit']:<6s} {goal}")


if __name__ == "__main__":
    main()
