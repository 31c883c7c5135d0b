"""Steps in which the optimizer moves at once, and what keeps them in two halves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.model.events import Step
from gscalar.state.records import Frame, read_record

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
X = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def whole_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the steps that are taken at once."""
    from gscalar.frameworks.keras.capture import TrainStep

    taken: list[int] = []
    whole = TrainStep.whole

    def counted(self: Any, data: Any) -> Any:
        taken.append(1)
        return whole(self, data)

    monkeypatch.setattr(TrainStep, "whole", counted)
    return taken


@pytest.fixture
def opened(home: Path) -> Iterator[Callable[..., Any]]:
    """Open a run, which is finished after the test."""
    import gscalar

    runs = []

    def open_run(**settings: Any) -> Any:
        runs.append(gscalar.init(project="whole", home=home, **settings))
        return runs[-1]

    yield open_run
    for run in runs:
        run.finish()


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9), momentum=0.9)


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(0.01, clipnorm=1.0)


def loss_scaled() -> Any:
    import keras

    # The largest power of two in float32: a gradient above 2 overflows.
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), 2.0**127, dynamic_growth_steps=2)


def make_model(optimizer: Any = "sgd", **compiled: Any) -> Any:
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiled)
    return model


def recorded_steps(home: Path, run: Any) -> list[Step]:
    run.finish()
    (record,) = (home / "runs" / run.id).glob("**/a000-r00000*")
    events = [item.event for item in read_record(record) if isinstance(item, Frame)]
    return [event for event in events if isinstance(event, Step)]


def fit(model: Any, run: Any = None, *, as_dataset: bool = False, epochs: int = 3) -> Any:
    import tensorflow as tf

    import gscalar.keras

    callbacks = [] if run is None else [gscalar.keras.callback(run)]
    data = {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)} if as_dataset else {"x": X, "y": Y}
    options = {} if as_dataset else {"batch_size": 8}
    return model.fit(**data, **options, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize("optimizer", [sgd, adam, loss_scaled])
def test_a_fit_under_a_run_ends_with_the_weights_of_plain_keras(
    optimizer: Callable[[], Any], as_dataset: bool, opened: Callable[..., Any], whole_steps: list[int]
) -> None:
    plain, ours = make_model(optimizer()), make_model(optimizer())
    want = fit(plain, as_dataset=as_dataset).history["loss"]
    got = fit(ours, opened(), as_dataset=as_dataset).history["loss"]
    assert len(whole_steps) == 9, "three batches, the last of which is smaller, in three epochs"
    assert got == pytest.approx(want, rel=1e-6)
    variables = zip(
        [*plain.variables, *plain.optimizer.variables], [*ours.variables, *ours.optimizer.variables], strict=True
    )
    for one, other in variables:
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)


def test_the_rate_on_the_record_is_the_one_that_moved(opened: Callable[..., Any], home: Path) -> None:
    run = opened()
    fit(make_model(sgd()), run, epochs=1)
    steps = recorded_steps(home, run)
    assert [step.lr for step in steps] == pytest.approx([0.1, 0.09, 0.081])


def test_the_loss_on_the_record_is_not_scaled_and_a_step_that_overflows_is_passed_over(
    opened: Callable[..., Any], home: Path
) -> None:
    import gscalar.keras

    run, model = opened(), make_model(loss_scaled())
    before = [weight.copy() for weight in model.get_weights()]
    targets = Y[:8] + 100
    first = float(np.mean((model(X[:8]).numpy() - targets) ** 2))
    model.fit(X[:8], targets, batch_size=8, verbose=0, callbacks=[gscalar.keras.callback(run)])
    assert float(model.optimizer.dynamic_scale) == 2.0**126
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    (step,) = recorded_steps(home, run)
    assert step.loss == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "compiled", "num_whole"),
    [
        ({}, {}, 9),
        ({}, {"jit_compile": True}, 9),
        ({"plan": {"clip_norm": 1.0}}, {}, 0),
        ({"plan": {"schedule": {"kind": "cosine"}}}, {}, 0),
        ({"plan": {"accumulate": 2}}, {}, 0),
        ({"on_nonfinite": "stop"}, {}, 0),
        ({}, {"run_eagerly": True}, 0),
    ],
)
def test_what_looks_at_gradients_gets_them(
    settings: Any, compiled: Any, num_whole: int, opened: Callable[..., Any], whole_steps: list[int]
) -> None:
    losses = fit(make_model(**compiled), opened(**settings)).history["loss"]
    assert losses[-1] < losses[0]
    assert len(whole_steps) == num_whole


def test_steps_in_halves_end_with_the_weights_of_whole_ones(
    opened: Callable[..., Any], whole_steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves = make_model(adam()), make_model(adam())
    run = opened()
    fit(whole, run)
    run.finish()
    count = len(whole_steps)
    fit(halves, opened(on_nonfinite="stop"))
    assert len(whole_steps) == count
    for one, other in zip(whole.get_weights(), halves.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_loss_that_is_not_finite_stops_before_the_weights_move_or_is_told(
    opened: Callable[..., Any], home: Path
) -> None:
    import gscalar
    import gscalar.keras

    bad = np.full_like(Y, np.nan)
    stopped, run = make_model(), opened(on_nonfinite="stop")
    before = [weight.copy() for weight in stopped.get_weights()]
    with pytest.raises(gscalar.TrainingError) as caught:
        stopped.fit(X, bad, verbose=0, callbacks=[gscalar.keras.callback(run)])
    assert caught.value.code == "nonfinite"
    assert all((a == b).all() for a, b in zip(before, stopped.get_weights(), strict=True))
    run.finish()
    run = opened()
    make_model().fit(X, bad, verbose=0, callbacks=[gscalar.keras.callback(run)])
    (step,) = recorded_steps(home, run)
    assert math.isnan(step.loss)


def test_a_micro_step_among_others_is_no_step_by_itself() -> None:
    """As where a run goes on with fewer workers, and takes a global batch in pieces."""
    import keras

    from gscalar.frameworks.keras.capture import Differentiated
    from gscalar.frameworks.keras.flavors import keras3
    from gscalar.frameworks.keras.trainee import KerasTrainee
    from gscalar.model.spec import Plan

    trainee = KerasTrainee([make_model()], keras3, None, 1, Plan())
    loss = Differentiated(1.0, [keras.ops.ones(weight.shape) for weight in trainee.variables])
    got = []
    for border in (False, True):
        trainee.expect(border=border)
        got.append(trainee.takes_whole_steps)
        trainee.backward(loss, 0.5)
    trainee.update(scale=1.0, clip_norm=None, lr_factor=None)
    assert [*got, trainee.takes_whole_steps] == [False, False, True]
