"""Legacy Keras: one model in five calls of `fit`, each with another kind of data and another optimizer."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

import gscalar
import gscalar.keras

OUT = Path(sys.argv[1])
SIZE, CLASSES = 60, 3
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(SIZE, 4, 2)).astype("float32")
Y = RANDOM.integers(0, CLASSES, SIZE)


class Own(keras.Sequential):
    """A model whose step is written down here, as guides show it."""

    def train_step(self, data: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted, weights)
            scaled = self.optimizer.get_scaled_loss(loss) if hasattr(self.optimizer, "loss_scale") else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        if scaled is not loss:
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, predicted, weights)


class Batches(keras.utils.Sequence):
    """Batches that are made noisy as they are asked for."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x = X[10 * index : 10 * index + 10]
        return x + np.random.normal(0, 0.1, x.shape), Y[10 * index : 10 * index + 10]  # noqa: NPY002


class Disturbed(keras.callbacks.Callback):
    """Sends this process the signals of DISTURB, such as `SIGKILL:13,SIGTERM:20`, each after its step and once."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        for each in filter(None, os.environ.get("DISTURB", "").split(",")):
            name, step = each.split(":")
            mark = OUT.with_suffix(f".{each}")
            if run.state.step == int(step) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.Signals[name])


def noisy_batches():
    while True:
        chosen = np.random.permutation(SIZE)[:12]  # noqa: NPY002
        yield X[chosen], Y[chosen]


def fit(optimizer: object, *data: object, eagerly: bool = False, **options: object) -> dict[str, list[float]]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=eagerly)
    # Nothing improves by so much: the third epoch is the last one, and the first one's weights are given back.
    stop = keras.callbacks.EarlyStopping("loss", min_delta=9.0, patience=2, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau("loss", min_delta=9.0, patience=1)
    fixed = isinstance(getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule)
    callbacks = [
        gscalar.keras.callback(),
        Disturbed(),
        *([] if "epochs" in options else [stop]),
        *([] if fixed else [slower]),
    ]
    return model.fit(*data, **{"epochs": 5, **options}, verbose=0, callbacks=callbacks).history


run = gscalar.init(project="legacy", seed=5, checkpoint={"every_steps": 2})
recurrent = [keras.layers.SimpleRNN(5, recurrent_dropout=0.2), keras.layers.BatchNormalization()]
model = Own([*recurrent, keras.layers.Dropout(0.2), keras.layers.GaussianNoise(0.1), keras.layers.Dense(CLASSES)])
optimizers = keras.optimizers
decaying = optimizers.Adam(optimizers.schedules.ExponentialDecay(1e-2, 3, 0.9))
shuffled = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50).batch(20)
weights = {0: 1.0, 1: 2.0, 2: 0.5}
histories = [
    fit(optimizers.SGD(0.1, use_ema=True), X, Y, batch_size=12, epochs=3, class_weight=weights),  # 15 steps
    fit(optimizers.legacy.Adam(1e-2, decay=0.01), Batches(), shuffle=True),  # to step 33
    fit(keras.mixed_precision.LossScaleOptimizer(decaying), noisy_batches(), steps_per_epoch=4, eagerly=True),  # 45
    fit(optimizers.Nadam(1e-2), shuffled, validation_data=(X[:20], Y[:20])),  # 54
]
run.finish()
assert "keras" not in sys.modules, "Keras 3 was imported"
told = {f"fit {number} {name}": values for number, each in enumerate(histories) for name, values in each.items()}
np.savez(OUT, *model.get_weights(), **told)
