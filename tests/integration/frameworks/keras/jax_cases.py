"""What a fit under a run does on JAX, in one process of that backend; `test_jax.py` runs these cases in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import gscalar
import gscalar.keras
from gscalar.frameworks.keras.capture import TrainStep
from gscalar.model.events import Step
from gscalar.state.records import Frame, read_record

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def opened(home: Path) -> Any:
    """Open a run, which is finished after the test."""
    runs = []

    def open_run(**settings: Any) -> Any:
        runs.append(gscalar.init(project="jax", home=home, **settings))
        return runs[-1]

    yield open_run
    for run in runs:
        run.finish()


@pytest.fixture
def num_whole(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the steps that are taken at once."""
    taken: list[int] = []
    whole = TrainStep.whole
    monkeypatch.setattr(TrainStep, "whole", lambda self, data: (taken.append(1), whole(self, data))[1])
    return lambda: len(taken)


class Own(keras.Sequential):
    """A model with a train_step of its own, as Keras's guide writes one for JAX."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, fixed, of_optimizer, of_metrics = state
        differentiate = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, _, fixed, of_metrics)), gradients = differentiate(
            trainable, fixed, of_metrics, *data, None, training=True, optimizer_variables=of_optimizer
        )
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
        return {"loss": loss}, (trainable, fixed, of_optimizer, of_metrics)


class Twice(Own):
    def train_step(self, state: Any, data: Any) -> Any:
        _, state = super().train_step(state, data)
        return super().train_step(state, data)


class Never(Own):
    def train_step(self, state: Any, data: Any) -> Any:
        return {"loss": 0.0}, state


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum and a schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9), momentum=0.9
    ),
    "averages": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0, use_ema=True, ema_overwrite_frequency=2),
    # The largest power of two in float32: gradients overflow at first.
    "scaled losses": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), 2.0**127, dynamic_growth_steps=2
    ),
}


def make_model(optimizer: Any = "sgd", kind: Any = keras.Sequential, **compiled: Any) -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.BatchNormalization()]
    model = kind([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    return model


def fit(model: Any, run: Any = None, **options: Any) -> dict[str, list[float]]:
    callbacks = [*options.pop("others", []), *([] if run is None else [gscalar.keras.callback(run)])]
    given = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0, **options}
    history: dict[str, list[float]] = model.fit(X, Y, callbacks=callbacks, **given).history
    return history


def values_of(model: Any) -> list[Any]:
    return [np.asarray(each.value) for each in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize(
    ("optimizer", "in_halves"), [("momentum and a schedule", False), ("averages", False), ("scaled losses", True)]
)
def test_a_fit_ends_as_that_of_plain_keras(
    optimizer: str, in_halves: bool, opened: Callable[..., Any], num_whole: Callable[[], int]
) -> None:
    plain, ours = make_model(OPTIMIZERS[optimizer]()), make_model(OPTIMIZERS[optimizer]())
    options = {"batch_size": 9} if in_halves else {}  # the last batch is smaller
    want = fit(plain, **options)
    got = fit(ours, opened(**({"on_nonfinite": "stop"} if in_halves else {})), **options)
    assert num_whole() == (0 if in_halves else 9)
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert got[name] == pytest.approx(values, rel=1e-6), name
    for one, other in zip(values_of(plain), values_of(ours), strict=True):
        if in_halves:  # two compiled functions may round otherwise than one
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)


def test_a_callback_sees_and_changes_the_variables_of_every_step(opened: Callable[..., Any]) -> None:
    class Watch(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.iterations: list[int] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.iterations.append(int(np.asarray(self._model.optimizer.iterations.value)))
            if len(self.iterations) == 4:
                for variable in self.model.trainable_variables:  # asking for it makes Keras write its state back
                    variable.assign(np.zeros(variable.shape, "float32"))
                self._model.optimizer.learning_rate = 0.0

    watch, model = Watch(), make_model()
    fit(model, opened(), others=[watch])
    assert watch.iterations == list(range(1, 10))
    assert all((np.asarray(each.value) == 0).all() for each in model.trainable_variables)


def test_a_plan_and_a_model_that_is_not_compiled_take_the_same_steps(opened: Callable[..., Any]) -> None:
    want = make_model()
    fit(want)
    for settings, compiled in (({"plan": {"clip_norm": 1e6}}, {}), ({}, {"run_eagerly": True})):
        got = make_model(**compiled)
        run = opened(**settings)
        fit(got, run)
        run.finish()
        for one, other in zip(values_of(want), values_of(got), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_a_train_step_of_the_models_own_is_called_as_it_is(opened: Callable[..., Any], home: Path) -> None:
    plain, ours, run = make_model(kind=Own), make_model(kind=Own), opened()
    fit(plain)
    fit(ours, run)
    for one, other in zip(values_of(plain), values_of(ours), strict=True):
        np.testing.assert_array_equal(one, other)
    run.finish()
    (record,) = (home / "runs" / run.id).glob("**/a000-r00000*")
    steps = [item.event for item in read_record(record) if isinstance(item, Frame) and isinstance(item.event, Step)]
    assert len(steps) == 9
    assert all(step.loss > 0 for step in steps)


@pytest.mark.parametrize("kind", [Twice, Never])
def test_a_train_step_that_does_not_move_its_optimizer_once_is_refused(kind: Any, opened: Callable[..., Any]) -> None:
    model = make_model(kind=kind)
    before = values_of(model)
    with pytest.raises(gscalar.UserError) as caught:
        fit(model, opened())
    assert caught.value.code == "train-step-unknown"
    for one, other in zip(before, values_of(model), strict=False):
        np.testing.assert_array_equal(one, other)


def test_a_fit_that_was_interrupted_is_followed_by_a_plain_one(opened: Callable[..., Any]) -> None:
    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    model = make_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, opened(), others=[Interrupted()])
    assert int(np.asarray(model.optimizer.iterations.value)) == 1
    fit(model)
    assert int(np.asarray(model.optimizer.iterations.value)) == 10


def test_a_loss_that_is_not_finite_stops_before_the_weights_move(opened: Callable[..., Any]) -> None:
    model = make_model()
    model.optimizer.build(model.trainable_variables)
    before = [np.array(each.value) for each in model.trainable_variables]
    with pytest.raises(gscalar.TrainingError) as caught:
        model.fit(X, Y * np.nan, verbose=0, callbacks=[gscalar.keras.callback(opened(on_nonfinite="stop"))])
    assert caught.value.code == "nonfinite"
    for one, variable in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, np.asarray(variable.value))


def test_a_loss_without_gradients_says_what_to_give(opened: Callable[..., Any]) -> None:
    run = opened()
    run.prepare(make_model())
    with pytest.raises(TypeError, match=r"gscalar\.keras\.differentiated"):
        run.step(jax.numpy.asarray(1.0))


def test_a_distribution_of_keras_is_refused(opened: Callable[..., Any]) -> None:
    with keras.distribution.DataParallel(devices=["cpu:0"]).scope():
        model = make_model()
        with pytest.raises(gscalar.UserError) as caught:
            fit(model, opened())
    assert caught.value.code == "strategy-unsupported"
