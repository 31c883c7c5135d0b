"""A chief, two workers and a parameter server; one of them is killed once, and the chief stopped once."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import gscalar

OUT = Path(sys.argv[1])
VICTIM, AT_STEP, STOP_AT = os.environ["VICTIM"], 20, 40


def wait_for(word: str, signum: int) -> None:
    while not OUT.with_suffix(f".{word}").exists():
        time.sleep(0.05)
    if not OUT.with_suffix(f".{word}-done").exists():
        OUT.with_suffix(f".{word}-done").touch()
        os.kill(os.getpid(), signum)


if os.environ["RANK"] == VICTIM:
    threading.Thread(target=wait_for, args=("kill", signal.SIGKILL), daemon=True).start()
if os.environ["RANK"] == "1":
    threading.Thread(target=wait_for, args=("stop", signal.SIGTERM), daemon=True).start()
run = gscalar.init(project="servers", seed=5, checkpoint={"every_steps": 7})
strategy = gscalar.keras.distribute()
assert (run.rank, run.world) == (0, 1)  # only the chief is here
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    counter = tf.Variable(0, dtype=tf.int64)
    optimizer = keras.optimizers.SGD(0.02)
    run.prepare(model, optimizer)
    model.compile("sgd", "mse")
try:
    model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0, callbacks=[gscalar.keras.callback()])
except gscalar.UserError as error:
    assert error.code == "strategy-unsupported", error  # noqa: PT017 - no pytest here
else:
    raise AssertionError("Keras 3's fit works with parameter servers")
counter.assign(run.state.step)  # every step adds one, and none is in a checkpoint that is not counted


@tf.function
def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
    def on_worker(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        counter.assign_add(1)
        return loss

    return strategy.run(on_worker, args=next(iterator))


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)


data = iter(coordinator.create_per_worker_dataset(batches))
for _ in gscalar.keras.async_steps(coordinator, train_step, data, steps=60):
    if run.state.step == AT_STEP:
        OUT.with_suffix(".kill").touch()
        while not OUT.with_suffix(".kill-done").exists():
            time.sleep(0.05)
    if run.state.step == STOP_AT:  # a worker is told to stop, and passes it on
        OUT.with_suffix(".stop").touch()
        while not OUT.with_suffix(".stop-done").exists():
            time.sleep(0.05)
    if STOP_AT <= run.state.step < STOP_AT + 10:
        time.sleep(0.2)
assert counter.numpy() == run.state.step == 60, counter.numpy()
np.savez(OUT, *model.get_weights())
