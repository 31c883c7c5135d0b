"""`model.fit` of legacy Keras (`tf_keras`) under a run: the same promises as for Keras 3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
FITS = Path(__file__).parent / "scripts" / "legacy_fits.py"
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
X = np.random.default_rng(1).normal(size=(22, 3)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
WEIGHTS = np.linspace(0.5, 2.0, 22).astype("float32")


# ---- in processes of their own


def losses(home: Path, name: str) -> dict[int, float]:
    """Return the loss of every step of a run."""
    command = [sys.executable, "-m", "gscalar", "metrics", "--home", str(home), name]
    command += ["--name", "train/loss", "--format", "json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {point["step"]: point["value"] for point in json.loads(told)}


@pytest.mark.slow(40)
def test_fits_with_all_kinds_of_data_and_optimizers_go_on_bit_by_bit(
    train: Callable[..., Any], home: Path, tmp_path: Path
) -> None:
    undisturbed = train("undisturbed", script=FITS, **LEGACY)
    assert undisturbed.code == 0, undisturbed.output
    # In the second fit, amid its second epoch; and in the third one, whose steps are eager.
    stopped = train("disturbed", script=FITS, DISTURB="SIGKILL:25,SIGTERM:40", **LEGACY)
    assert stopped.code == 75, stopped.output
    disturbed = train("disturbed", resume=True, script=FITS, DISTURB="SIGKILL:25,SIGTERM:40", **LEGACY)
    assert disturbed.code == 0, disturbed.output
    begins = [attempt["from_step"] for attempt in disturbed.shown["attempts"]]
    assert begins[:2] == [0, 22]
    assert 40 <= begins[2] < 45
    assert disturbed.shown["steps"] == undisturbed.shown["steps"] == 54
    assert disturbed.shown["digests"]["weights"] == undisturbed.shown["digests"]["weights"]
    assert disturbed.shown["digests"]["data"] == undisturbed.shown["digests"]["data"]
    want, got = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("undisturbed", "disturbed"))
    # A fit that was done before the process began tells nothing of itself again.
    assert {name for name in want if name not in got} == {name for name in want if name[:5] in ("fit 0", "fit 1")}
    assert all(np.array_equal(want[name], got[name]) for name in got)
    assert len(got["fit 2 loss"]) == 3
    assert losses(home, "disturbed") == losses(home, "undisturbed")


@pytest.mark.slow
def test_two_workers_train_as_one_with_the_doubled_batch(train: Callable[..., Any]) -> None:
    alone = train("alone", BATCH="64", **LEGACY)
    both = train("both", workers=2, BATCH="32", **LEGACY)
    assert alone.code == both.code == 0, alone.output + both.output
    assert alone.shown["steps"] == both.shown["steps"] == 24
    assert max(float(np.abs(a - b).max()) for a, b in zip(alone.weights, both.weights, strict=True)) < 1e-6
    last = [{name: values["last"] for name, values in run.shown["metrics"].items()} for run in (alone, both)]
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert last[1][name] == pytest.approx(last[0][name], abs=1e-6), name


# ---- in this process, beside Keras 3, which TensorFlow has imported


@pytest.fixture
def run(home: Path) -> Iterator[Any]:
    import tf_keras  # noqa: F401 - for `init` to seed it

    import gscalar

    opened = gscalar.init(project="legacy", home=home)
    yield opened
    opened.finish()


def dense(optimizer: Any = "sgd", **compiled: Any) -> Any:
    import tf_keras

    tf_keras.utils.set_random_seed(3)
    model = tf_keras.Sequential([tf_keras.layers.Dense(4, "tanh"), tf_keras.layers.Dense(2)])
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **compiled)
    return model


def arrays() -> tuple[list[Any], dict[str, Any]]:
    return [X, Y], {}


def weighed_arrays() -> tuple[list[Any], dict[str, Any]]:
    return [X.astype("float64"), Y], {"sample_weight": WEIGHTS}


def split_arrays() -> tuple[list[Any], dict[str, Any]]:
    return [X, Y], {"validation_split": 0.25}


def lists_of_numbers() -> tuple[list[Any], dict[str, Any]]:
    return [X.tolist(), Y.tolist()], {"class_weight": {0: 1.0, 1: 3.0}}


def data_set() -> tuple[list[Any], dict[str, Any]]:
    import tensorflow as tf

    return [tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)], {"batch_size": None, "class_weight": {0: 2.0, 1: 1.0}}


def batches() -> tuple[list[Any], dict[str, Any]]:
    import tf_keras

    class Batches(tf_keras.utils.Sequence):  # type: ignore[misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return X[5 * index : 5 * index + 5], Y[5 * index : 5 * index + 5]

    return [Batches()], {"batch_size": None, "class_weight": {0: 2.0, 1: 1.0}}


def generator() -> tuple[list[Any], dict[str, Any]]:
    endless = ((X[begin : begin + 5], Y[begin : begin + 5]) for begin in [0, 3, 6] * 9)
    return [endless], {"batch_size": None, "steps_per_epoch": 4, "class_weight": {0: 2.0, 1: 1.0}}


@pytest.mark.parametrize(
    "data", [arrays, weighed_arrays, split_arrays, lists_of_numbers, data_set, batches, generator],
    ids=lambda data: data.__name__,
)  # fmt: skip
def test_every_kind_of_data_trains_as_in_a_plain_fit(data: Callable[[], Any], run: Any) -> None:
    import gscalar.keras

    told = []
    for callbacks in ([], [gscalar.keras.callback(run)]):
        arguments, options = data()
        model = dense()
        options = {"batch_size": 5, "epochs": 3, "shuffle": False, "verbose": 0, **options}
        history = model.fit(*arguments, **options, callbacks=callbacks).history
        told.append([*model.get_weights(), *(np.array(values) for _, values in sorted(history.items()))])
    assert run.state.step == (12 if data in (generator, split_arrays) else 15)
    for plain, ours in zip(*told, strict=True):
        assert ours == pytest.approx(plain, abs=1e-6)


def test_every_kind_of_optimizer_moves_as_in_a_plain_fit(run: Any) -> None:
    import tf_keras

    import gscalar.keras

    of, scaling = tf_keras.optimizers, tf_keras.mixed_precision.LossScaleOptimizer
    decay = of.schedules.ExponentialDecay(0.1, 2, 0.5)
    kinds: list[Callable[[], Any]] = [
        lambda: of.Adam(decay),
        lambda: of.AdamW(0.1, use_ema=True, ema_overwrite_frequency=2),
        lambda: of.legacy.SGD(decay, momentum=0.9),
        lambda: scaling(of.SGD(0.1), dynamic_growth_steps=2),
        lambda: scaling(of.legacy.Adam(0.1)),
    ]
    model = dense()
    model.build((None, 3))
    start = model.get_weights()
    for make in kinds:
        told = []
        for callbacks in ([], [gscalar.keras.callback(run)]):
            optimizer = make()
            model.compile(optimizer, model.loss, steps_per_execution=1 if not callbacks else 2)
            model.set_weights(start)
            model.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
            told.append([*model.get_weights(), *(variable.numpy() for variable in optimizer.variables())])
        for plain, ours in zip(*told, strict=True):
            assert ours == pytest.approx(plain, abs=1e-6), type(optimizer)


def test_the_rate_that_is_recorded_is_that_of_the_step(run: Any, home: Path) -> None:
    import tf_keras

    import gscalar.keras

    decay = tf_keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.5, 0.25, 0.125])
    dense(tf_keras.optimizers.SGD(decay)).fit(X, Y, batch_size=8, verbose=0, callbacks=[gscalar.keras.callback(run)])
    run.finish()
    command = [sys.executable, "-m", "gscalar", "metrics", "--home", str(home), run.id, "--name", "train/lr"]
    told = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True).stdout
    assert [point["value"] for point in json.loads(told)] == [0.5, 0.25, 0.125]


def test_what_is_refused(run: Any) -> None:
    import tensorflow as tf
    import tf_keras

    import gscalar
    import gscalar.keras

    class Twice(tf_keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            super().train_step(data)
            return super().train_step(data)

    class Uncallable(tf_keras.Model):  # type: ignore[misc]
        pass

    twice = Twice([tf_keras.layers.Dense(2)])
    for model in (twice, hollow := Uncallable()):
        model.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    cases = {
        "callback-twice": (dense(), {"callbacks": [gscalar.keras.callback(run), gscalar.keras.callback(run)]}),
        "model-not-built": (hollow, {}),
        "endless-epoch": (dense(), {"x": tf.data.Dataset.from_tensors((X, Y)).repeat(), "steps_per_epoch": -1}),
        "train-step-unknown": (twice, {}),
    }
    for code, (model, options) in cases.items():
        given = {"x": X, "y": Y, "callbacks": [gscalar.keras.callback(run)], **options}
        if "steps_per_epoch" in given:
            del given["y"]
        with pytest.raises(gscalar.UserError) as caught:
            model.fit(**given, verbose=0)
        assert caught.value.code == code
        assert caught.value.next_step


def test_a_fit_under_a_strategy_is_heard_of(run: Any) -> None:
    import tensorflow as tf

    import gscalar.keras

    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = dense()
    history = model.fit(X, Y, epochs=2, batch_size=8, verbose=0, callbacks=[gscalar.keras.callback(run)])
    assert run.state.step == 2 * -(-len(X) // 8)
    assert len(history.history["loss"]) == 2


def test_after_an_interrupted_fit_a_plain_one_does_not_train_through_the_run(run: Any) -> None:
    import tf_keras

    import gscalar.keras

    class Interrupting(tf_keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    model = dense()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[gscalar.keras.callback(run), Interrupting()])
    before = model.get_weights()[0]
    model.fit(X, Y, epochs=2, batch_size=4, verbose=0)
    assert run.state.step == 3
    assert (model.get_weights()[0] != before).any(), "and yet it trains"
    assert model.evaluate(X, Y, verbose=0, callbacks=[gscalar.keras.callback(run)])[0] > 0


def test_a_loop_of_ones_own(home: Path) -> None:
    import tensorflow as tf

    import gscalar
    import gscalar.keras

    run = gscalar.init(project="loop", home=home, plan={"accumulate": 2})
    model = dense()
    model.build((None, 3))
    model, data = run.prepare(model, gscalar.keras.arrays(X, Y, batch_size=4))
    before = model.get_weights()[0]
    for inputs, targets in run.batches(data):
        with tf.GradientTape() as tape:
            loss = model.loss(targets, model(inputs, training=True))
        run.step(gscalar.keras.taped(loss, tape))
    run.finish()
    assert run.state.step == 3
    assert (model.get_weights()[0] != before).any()
