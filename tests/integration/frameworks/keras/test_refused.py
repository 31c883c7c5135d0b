"""What a fit under a run refuses, and how it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
X = np.arange(40, dtype="float32").reshape(20, 2)
Y = X.sum(axis=1)


@pytest.fixture
def run(home: Path) -> Any:
    import gscalar

    opened = gscalar.init(project="refused", home=home)
    yield opened
    opened.finish()


def dense(**compiled: Any) -> Any:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    return model


def refused(model: Any, run: Any, *arguments: Any, **options: Any) -> str:
    import gscalar
    import gscalar.keras

    options.setdefault("callbacks", [gscalar.keras.callback(run)])
    with pytest.raises(gscalar.UserError) as caught:
        model.fit(*arguments, verbose=0, **options)
    assert caught.value.next_step
    return caught.value.code


def test_two_callbacks(run: Any) -> None:
    import gscalar.keras

    both = [gscalar.keras.callback(run), gscalar.keras.callback(run)]
    assert refused(dense(), run, X, Y, callbacks=both) == "callback-twice"


def test_a_model_that_is_not_built(run: Any) -> None:
    import keras

    class Hidden(keras.Model):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            pass

        def call(self, x: Any) -> Any:
            return x

    model = Hidden()
    model.compile("sgd", "mse")
    assert refused(model, run, X, Y) == "model-not-built"


def test_an_endless_data_set_without_steps_per_epoch(run: Any) -> None:
    import tensorflow as tf

    endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    assert refused(dense(), run, endless, shuffle=False) == "endless-epoch"


def test_an_endless_data_set_with_steps_per_epoch_trains_so_many_steps(run: Any) -> None:
    import tensorflow as tf

    import gscalar.keras

    endless = tf.data.Dataset.from_tensor_slices((X / 40, Y / 40)).batch(4).repeat()
    dense().fit(endless, epochs=3, steps_per_epoch=4, shuffle=False, verbose=0, callbacks=[gscalar.keras.callback(run)])
    assert run.state.step == 12


def test_a_train_step_that_moves_twice(run: Any) -> None:
    import keras

    class Twice(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            super().train_step(data)
            return super().train_step(data)

    model = Twice([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    assert refused(model, run, X, Y) == "train-step-unknown"


def test_a_second_model_in_one_run(run: Any) -> None:
    import gscalar.keras

    dense().fit(X / 40, Y / 40, verbose=0, callbacks=[gscalar.keras.callback(run)])
    assert refused(dense(), run, X, Y) == "prepare-twice"


def test_a_callback_that_is_given_to_evaluate_only(run: Any) -> None:
    import gscalar.keras

    assert dense().evaluate(X, Y, verbose=0, callbacks=[gscalar.keras.callback(run)]) > 0


def test_an_embedding_and_gradients_that_are_none_train(run: Any) -> None:
    import keras

    inputs = keras.Input((3,), dtype="int32")
    embedded = keras.layers.Embedding(10, 4)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.ops.mean(embedded, axis=1)))
    model.compile("adam", "mse")
    before = [weight.copy() for weight in model.get_weights()]
    ids = np.arange(24).reshape(8, 3) % 5
    import gscalar.keras

    model.fit(ids, np.ones(8), epochs=2, verbose=0, callbacks=[gscalar.keras.callback(run)])
    moved = np.abs(model.get_weights()[0] - before[0]).sum(axis=1)
    assert (moved[:5] > 0).all()
    assert (moved[5:] == 0).all(), "rows that no sample names"


def test_early_stopping_ends_the_run_in_order(run: Any) -> None:
    import keras

    import gscalar.keras

    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    dense().fit(X / 40, Y / 40, epochs=50, verbose=0, callbacks=[gscalar.keras.callback(run), stop])
    run.finish()
    assert 0 < run.state.step < 5


def test_without_keras_the_package_to_install_is_named(tmp_path: Path, python_without: Callable[..., Any]) -> None:
    done = python_without("keras", "import gscalar; gscalar.keras.callback()")
    assert "pip install 'gscalar[tensorflow]'" in done.stderr
    assert "package-missing" in done.stderr


@pytest.fixture
def python_without(home: Path) -> Callable[..., Any]:
    """Run code in a process where a package cannot be found."""

    def execute(package: str, code: str) -> subprocess.CompletedProcess[str]:
        hidden = "import importlib.util as u; find = u.find_spec\n"
        hidden += f"u.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)\n"
        return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)

    return execute
