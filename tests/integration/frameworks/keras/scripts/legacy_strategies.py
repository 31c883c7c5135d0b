"""`fit` of legacy Keras under the strategy that the job names: workers in step, or parameter servers."""

import os
import signal
import sys
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tf_keras
from images import load_digits

import gscalar

OUT = Path(sys.argv[1])
run = gscalar.init(project="digits", seed=5, checkpoint={"every_steps": 3})
strategy = gscalar.keras.distribute()
asynchronous = run.world == 1
x, y = load_digits(512)
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(32, activation="relu"), tf_keras.layers.Dense(10)])
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])


class Disturbed(tf_keras.callbacks.Callback):
    """Sends itself a signal once, in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = True

    def disturb(self) -> None:
        for name in ("SIGKILL", "SIGTERM"):
            mark = OUT.with_suffix(f".{name}.{run.rank}")
            step, rank = (int(number) for number in os.environ.get(name, "0:-1").split(":"))
            if rank == run.rank and run.state.step >= step and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.Signals[name])

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if asynchronous:
            self.disturb()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if not asynchronous:
            self.disturb()


data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512, seed=3)
data = data.repeat().batch(32) if asynchronous else data.batch(64)
stopping = tf_keras.callbacks.EarlyStopping("loss", patience=9)
history = model.fit(
    data, epochs=3, steps_per_epoch=8 if asynchronous else None, verbose=0,
    callbacks=[stopping, gscalar.keras.callback(), Disturbed()],
)  # fmt: skip
assert len(history.history["loss"]) == 3, history.history
run.finish()
if run.rank == 0:
    np.savez(OUT, *model.get_weights())
