"""Profiles that JAX and TensorFlow write, read by us and by JAX's own reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.importers.xplane import looks_like_xspace, read_xplane
from gscalar.model.timeline import Signal, StepTimeline

pytestmark = pytest.mark.timeout(300)
WITH_JAX = """
import sys, jax, jax.numpy as jnp
multiply = jax.jit(lambda x: (x @ x).sum())
x = jnp.ones((200, 200))
multiply(x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for step in range(6):
        with jax.profiler.StepTraceAnnotation("train", step_num=100 + step):
            multiply(x).block_until_ready()
"""
WITH_TENSORFLOW = """
import sys, tensorflow as tf
multiply = tf.function(lambda x: tf.reduce_sum(x @ tf.transpose(x)))
data = iter(tf.data.Dataset.range(10_000).map(lambda i: tf.random.normal([200])).batch(50).prefetch(2))
multiply(next(data))
tf.profiler.experimental.start(sys.argv[1])
for step in range(6):
    with tf.profiler.experimental.Trace("train", step_num=100 + step, _r=1):
        multiply(next(data))
tf.profiler.experimental.stop()
"""
AS_JAX_READS = """
import json, sys
from jax.profiler import ProfileData
rows = []
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines if plane.name == "/host:CPU" else []:
        for event in line.events:
            stats = dict(event.stats)
            rows.append([line.name, event.name, event.start_ns, event.duration_ns, stats.get("step_num")])
json.dump(rows, sys.stdout)
"""


def run(script: str, argument: Path) -> str:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", script, str(argument)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def profile(script: str, folder: Path) -> tuple[Path, StepTimeline]:
    run(script, folder)
    (path,) = folder.rglob("*.xplane.pb")
    return path, read_xplane(path)


def assert_steps_are(rows: list[Any], got: StepTimeline) -> None:
    steps = {number: (start, duration) for _, _, start, duration, number in rows if number is not None}
    assert got.steps.tolist() == sorted(steps) != []
    starts, durations = np.array([steps[number] for number in sorted(steps)]).T
    np.testing.assert_allclose(1e9 * got.step_s[0], durations, atol=1.0)
    np.testing.assert_allclose(1e9 * (got.begin_s[0] - got.begin_s[0, 0]), starts - starts[0], atol=1.0)


@pytest.mark.jax
def test_a_profile_of_jax_has_the_steps_that_jax_says(tmp_path: Path) -> None:
    path, got = profile(WITH_JAX, tmp_path)
    assert_steps_are(json.loads(run(AS_JAX_READS, path)), got)
    assert {Signal.DEVICE, Signal.COMPUTE, Signal.DATA_WAIT} <= got.unknown.keys()
    assert looks_like_xspace(path.read_bytes()[:64])


@pytest.mark.tensorflow
@pytest.mark.jax
def test_a_profile_of_tensorflow_has_its_steps_and_the_waits_for_batches(tmp_path: Path) -> None:
    path, got = profile(WITH_TENSORFLOW, tmp_path)
    rows = json.loads(run(AS_JAX_READS, path))
    assert_steps_are(rows, got)
    (thread,) = {line for line, _, _, _, number in rows if number is not None}
    want_ns = sum(ns for line, name, _, ns, _ in rows if (line, name) == (thread, "IteratorGetNextOp::DoCompute"))
    assert want_ns > 0
    assert got.loading is not None
    assert 1e9 * got.loading.wait_s.sum() <= want_ns + 1
    assert 1e9 * got.spans.duration_s.sum() == pytest.approx(want_ns, abs=got.spans.duration_s.size)
