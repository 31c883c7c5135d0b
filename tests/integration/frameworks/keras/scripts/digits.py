"""A small model on digits, by `model.fit` or in a loop of its own; the environment says how."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from images import load_digits

import gscalar
import gscalar.keras

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras

OUT = Path(sys.argv[1])
HOW = os.environ.get("HOW", "arrays")  # arrays, dataset, loader, twice, loop, no-init
BATCH = int(os.environ.get("BATCH", "64"))
EPOCHS = 3


def digits() -> tuple[np.ndarray, np.ndarray]:
    return load_digits(500)


def make_model() -> keras.Model:
    layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu")]
    layers += [keras.layers.Dropout(0.1)] if os.environ.get("DROPOUT") else []
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


class Disturbed(keras.callbacks.Callback):
    """Sends itself a signal once, after the step that the environment names."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        for name in ("SIGKILL", "SIGTERM"):
            mark = OUT.with_suffix(f".{name}.{run.rank}")
            if os.environ.get(name) == f"{run.state.step}:{run.rank}" and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.Signals[name])


def fit(model: keras.Model) -> None:
    x, y = digits()
    data = {"x": x, "y": y, "batch_size": BATCH}
    if HOW == "dataset":
        import tensorflow as tf

        data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200).batch(BATCH)}
    if HOW == "loader":
        import torch

        tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        data = {"x": torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True)}
    stopping = keras.callbacks.EarlyStopping("loss", patience=2)
    if os.environ.get("BEST"):  # the first epoch is the best, and its weights are given back at the end
        stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
    callbacks = [stopping, gscalar.keras.callback(), Disturbed()]
    model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_data=(x[:64], y[:64]))


def loop(model: keras.Model) -> None:
    import tensorflow as tf

    model, data = run.prepare(model, gscalar.keras.arrays(*digits(), batch_size=BATCH))
    for images, labels in run.batches(data, epochs=EPOCHS):
        with tf.GradientTape() as tape:
            loss = model.loss(labels, model(images, training=True))
        run.step(gscalar.keras.taped(loss, tape))


if HOW == "no-init":  # the callback opens the run, and the model has been made without its seed
    model = make_model()
    model.fit(*digits(), batch_size=BATCH, epochs=1, verbose=0, callbacks=[gscalar.keras.callback()])
    np.savez(OUT.with_suffix(f".{os.environ['RANK']}.npz"), *model.get_weights())
    sys.exit()
run = gscalar.init(project="digits", seed=int(os.environ.get("SEED", "5")), checkpoint={"every_steps": 3})
model = make_model()
(loop if HOW == "loop" else fit)(model)
if HOW == "twice":  # as one tunes a trained model: another optimizer, and another fit
    model.compile(keras.optimizers.Adam(1e-3), model.loss, metrics=["accuracy"])
    fit(model)
run.finish()
if run.rank == 0:
    np.savez(OUT, *model.get_weights())
