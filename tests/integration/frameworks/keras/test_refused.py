"""What a fit under a run refuses, and how it says so."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
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


def test_a_strategy_for_one_worker(run: Any) -> None:
    import gscalar

    with pytest.raises(gscalar.UserError) as caught:
        gscalar.keras.distribute(run)
    assert caught.value.code == "one-worker"
    assert "`gscalar run --workers 2 -- python train.py`" in caught.value.next_step


def test_a_strategy_without_tensorflow(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    import gscalar

    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorflow" else known(name))
    with pytest.raises(gscalar.EnvironmentProblem) as caught:
        gscalar.keras.distribute(run)
    assert caught.value.code == "package-missing"
    assert "pip install 'gscalar[tensorflow]'" in caught.value.next_step


def test_what_keras_says_of_a_fit_under_a_strategy_is_explained(run: Any) -> None:
    from gscalar.frameworks.keras.under_strategy import explain

    said: list[str] = []
    run.note = said.append
    explain(run, ValueError("Attempt to convert a value (PerReplica:{ ... }) to a Tensor"))
    explain(run, ValueError("something else"))
    (text,) = said
    assert "outside strategy.scope()" in text


def test_a_fit_under_a_strategy_of_distribute_is_refused_before_keras_looks_at_its_data(run: Any) -> None:
    import keras
    import tensorflow as tf

    from gscalar.frameworks.keras.under_strategy import refuse_fit

    class Called(keras.callbacks.Callback):  # type: ignore[misc]
        def set_model(self, model: Any) -> None:
            raise AssertionError("too late: Keras has built the model by then")

    strategy = tf.distribute.OneDeviceStrategy("cpu:0")
    refuse_fit(strategy)
    with strategy.scope():
        model = dense()
    assert refused(model, run, X, Y, callbacks=[Called()]) == "strategy-unsupported"
    assert model.predict(X, verbose=0).shape == (20, 1), "what works is left alone"
    assert next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(3)))).numpy() == 0


@pytest.mark.parametrize(
    ("class_of_tensorflow", "name", "has_servers"),
    [
        ("CollectiveAllReduceStrategy", "MultiWorkerMirroredStrategy", False),
        ("ParameterServerStrategyV2", "ParameterServerStrategy", True),
        ("MirroredStrategy", "MirroredStrategy", False),
    ],
)
def test_the_refusal_of_a_fit_names_the_remedy_for_its_strategy(
    class_of_tensorflow: str, name: str, has_servers: bool
) -> None:
    from gscalar.frameworks.keras.under_strategy import unsupported

    told = unsupported(type(class_of_tensorflow, (), {})())
    assert told.value == name
    assert "outside strategy.scope()" in told.next_step
    assert "tf_keras" in told.next_step
    assert ("plan.sync.kind=allreduce" in told.next_step) is has_servers
    assert ("async_steps" in told.next_step) is has_servers


def test_a_model_outside_the_scope_of_its_strategy_is_noted_by_the_first_rank(run: Any) -> None:
    import tensorflow as tf

    from gscalar.frameworks.keras.under_strategy import note_outside

    said: list[str] = []
    run.note = said.append
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        inside = dense()
    note_outside(run, strategy, inside.trainable_variables)
    assert said == []
    outside = dense().trainable_variables
    note_outside(run, strategy, [*inside.trainable_variables, outside[0]])
    run.rank = 1
    note_outside(run, strategy, outside)
    (text,) = said
    assert "with strategy.scope()" in text


def test_a_fit_of_a_job_with_parameter_servers_is_not_sent_where_it_cannot_work(home: Path) -> None:
    import tf_keras

    import gscalar
    import gscalar.keras

    legacy = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    legacy.compile("sgd", "mse")
    advice = []
    for model in (dense(), legacy):
        run = gscalar.init(project="servers", home=home, plan={"sync": {"kind": "parameter_servers"}})
        with pytest.raises(gscalar.UserError) as caught:
            model.fit(X, Y, verbose=0, callbacks=[gscalar.keras.callback(run)])
        run.finish()
        assert caught.value.code == "not-distributed"
        advice.append(caught.value.next_step)
    assert advice[0].startswith("Set plan.sync.kind=allreduce: Keras 3's")
    assert advice[1].startswith("Call strategy = gscalar.keras.distribute()")


def test_a_callback_without_its_parentheses(run: Any) -> None:
    import tf_keras

    import gscalar
    import gscalar.keras

    legacy = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    legacy.compile("sgd", "mse")
    for model in (dense(), legacy):
        with pytest.raises(gscalar.UserError) as caught:
            model.fit(X, Y, verbose=0, callbacks=[gscalar.keras.callback])
        assert caught.value.code == "callback-not-called"
        assert "gscalar.keras.callback()" in caught.value.next_step


@pytest.mark.parametrize("plan", [{"clip_norm": 1.0}, {"accumulate": 2}, {"schedule": {"kind": "linear"}}])
def test_a_plan_for_gradients_that_a_strategy_keeps_to_itself(plan: dict[str, Any], home: Path) -> None:
    import gscalar

    run = gscalar.init(home=home, plan=plan)
    run.prepare(dense())
    with pytest.raises(gscalar.UserError) as caught:
        run.step(gscalar.keras.applied(0.5))
    run.finish()
    assert caught.value.code == "plan-unsupported"
    assert f"plan.{next(iter(plan))}" in caught.value.what


def test_steps_of_a_strategy_are_counted_and_saved_and_leave_the_weights_alone(run: Any, home: Path) -> None:
    import gscalar

    model = dense()
    run.prepare(model)
    before = [weight.copy() for weight in model.get_weights()]
    for loss in (3.0, 2.0):
        assert run.step(gscalar.keras.applied(loss))
    assert run.state.step == 2
    assert all((got == want).all() for got, want in zip(model.get_weights(), before, strict=True))


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


def test_early_stopping_ends_the_run_in_order_with_a_checkpoint(run: Any, home: Path) -> None:
    import keras

    import gscalar.keras

    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
    dense().fit(X / 40, Y / 40, epochs=50, verbose=0, callbacks=[gscalar.keras.callback(run), stop])
    run.finish()
    assert 0 < run.state.step < 5
    (saved,) = (home / "runs" / run.id / "checkpoints").glob("step-*")
    assert saved.name == f"step-{run.state.step:012d}"


def test_without_keras_the_package_to_install_is_named(tmp_path: Path, python_without: Callable[..., Any]) -> None:
    done = python_without("keras", "import gscalar; gscalar.keras.callback()")
    assert "pip install 'gscalar[keras]'" in done.stderr
    assert "package-missing" in done.stderr


def test_without_legacy_keras_the_package_to_install_is_named(
    python_without: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    done = python_without("tf_keras", "import gscalar; gscalar.keras.callback()")
    assert "pip install tf_keras" in done.stderr
    assert "package-missing" in done.stderr


def test_a_second_fit_with_steps_per_epoch_trains_as_many(run: Any) -> None:
    import gscalar.keras

    model = dense()
    for done in (12, 24):
        options = {"batch_size": 4, "epochs": 3, "steps_per_epoch": 4, "verbose": 0}
        history = model.fit(X / 40, Y / 40, **options, callbacks=[gscalar.keras.callback(run)])
        assert (run.state.step, len(history.history["loss"])) == (done, 3)


def test_the_hooks_of_a_data_set_are_called_once_an_epoch(run: Any) -> None:
    import keras

    import gscalar.keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        called = ""

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return X[index : index + 1] / 40, Y[index : index + 1] / 40

        def on_epoch_begin(self) -> None:
            self.called += "b"

        def on_epoch_end(self) -> None:
            self.called += "e"

    alone, taken_over = Batches(), Batches()
    dense().fit(alone, epochs=3, verbose=0)
    dense().fit(taken_over, epochs=3, verbose=0, callbacks=[gscalar.keras.callback(run)])
    assert taken_over.called == alone.called


def test_after_an_interrupted_fit_a_plain_one_does_not_train_through_the_run(run: Any) -> None:
    import keras

    import gscalar.keras

    class Interrupting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    model = dense()
    options = {"batch_size": 4, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        model.fit(X / 40, Y / 40, **options, callbacks=[gscalar.keras.callback(run), Interrupting()])
    assert run.state.step == 3
    before = model.get_weights()[0]
    model.fit(X / 40, Y / 40, epochs=2, **options)
    assert run.state.step == 3
    assert (model.get_weights()[0] != before).any(), "and yet it trains"


def test_a_run_does_not_keep_the_arrays_of_its_fits(run: Any) -> None:
    import gscalar.keras

    x = X / 40
    kept = weakref.ref(x)
    dense().fit(x, Y / 40, verbose=0, callbacks=[gscalar.keras.callback(run)])
    del x
    gc.collect()
    assert kept() is None


def test_an_embedding_trains_in_a_loop_that_accumulates(home: Path) -> None:
    import keras
    import tensorflow as tf

    import gscalar
    import gscalar.keras

    run = gscalar.init(project="loop", home=home, plan={"accumulate": 2})
    inputs = keras.Input((3,), dtype="int32")
    outputs = keras.ops.mean(keras.layers.Embedding(10, 4)(inputs), axis=(1, 2))
    data = gscalar.keras.arrays(np.arange(24).reshape(8, 3) % 5, np.ones(8, "float32"), batch_size=2)
    model, _, data = run.prepare(keras.Model(inputs, outputs), keras.optimizers.SGD(0.1), data)
    before = model.get_weights()[0]
    for ids, wanted in run.batches(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids) - wanted) ** 2)
        run.step(gscalar.keras.taped(loss, tape))
    run.finish()
    assert run.state.step == 2
    assert ((model.get_weights()[0] - before) != 0).any(axis=1).tolist() == [True] * 5 + [False] * 5


def test_data_that_shards_itself(run: Any) -> None:
    import gscalar
    import gscalar.keras

    _, data = run.prepare(dense(), gscalar.keras.arrays(X, Y))
    with pytest.raises(gscalar.UserError) as caught:
        run.batches(data, sharded=True)
    assert caught.value.code == "unsupported-object"


def test_clipping_looks_at_gradients_without_the_scale_of_float16(home: Path) -> None:
    import keras

    import gscalar
    import gscalar.keras

    run = gscalar.init(project="half", home=home, plan={"clip_norm": 1.0})
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1024.0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=20, verbose=0, callbacks=[gscalar.keras.callback(run)])
    run.finish()
    # The gradient is far longer than 1, so one step of rate 1 moves the weights by 1.
    moved = np.concatenate([weight.ravel() for weight in model.get_weights()])
    assert float(np.linalg.norm(moved)) == pytest.approx(1.0, rel=1e-3)


def test_a_schedule_of_the_optimizer_beside_one_of_the_plan(home: Path) -> None:
    import keras

    import gscalar

    run = gscalar.init(project="twice", home=home, plan={"schedule": {"kind": "cosine"}})
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse")
    assert refused(model, run, X, Y) == "schedule-twice"
    run.finish()


IMPORTED = """
import sys
import gscalar
run = gscalar.init(project="imported")
import keras
import numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 2), "float32")
model.fit(x, x[:, 0], verbose=0, callbacks=[gscalar.keras.callback()])
run.finish()
heavy = ("torch", "tensorflow", "tf_keras", "transformers", "pytorch_lightning")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_only_the_backends_framework_is_imported(backend: str, home: Path) -> None:
    environment = {**os.environ, "KERAS_BACKEND": backend, "GSCALAR_HOME": str(home)}
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"['{backend}']"


@pytest.fixture
def python_without(home: Path) -> Callable[..., Any]:
    """Run code in a process where a package cannot be found."""

    def execute(package: str, code: str) -> subprocess.CompletedProcess[str]:
        hidden = "import importlib.util as u; find = u.find_spec\n"
        hidden += f"u.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)\n"
        return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)

    return execute
