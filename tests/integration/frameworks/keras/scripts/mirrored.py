"""A small model on digits in a loop of TensorFlow's own, whose gradients MultiWorkerMirroredStrategy sums."""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from images import load_digits

import gscalar

OUT = Path(sys.argv[1])
BATCH = int(os.environ.get("BATCH", "64"))

run = gscalar.init(project="digits", seed=5, checkpoint={"every_steps": 3})
strategy = gscalar.keras.distribute() if run.world > 1 else tf.distribute.get_strategy()
x, y = load_digits(512)
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    model, optimizer, data = run.prepare(
        model, keras.optimizers.SGD(0.1, momentum=0.9), gscalar.keras.arrays(x, y, batch_size=BATCH)
    )


@tf.function
def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    def replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_mean(losses) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("sum", strategy.run(replica, args=(x, y)), axis=None)


for batch in run.batches(data, epochs=3):
    run.step(gscalar.keras.applied(train_step(*batch)))
    for name in ("SIGSTOP", "SIGTERM"):
        mark = OUT.with_suffix(f".{name}.{run.rank}")
        if os.environ.get(name) == f"{run.state.step}:{run.rank}" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.Signals[name])
if run.world > 1:  # at its end: a refusal leaves no trace in the model
    model.compile("sgd", "mse")
    try:
        model.fit(x, y, verbose=0, callbacks=[gscalar.keras.callback()])
    except gscalar.UserError as error:
        assert error.code == "strategy-unsupported", error  # noqa: PT017 - no pytest here
    else:
        raise AssertionError("Keras 3's fit works under this strategy")
run.finish()
if run.rank == 0:
    np.savez(OUT, *model.get_weights())
