"""Legacy Keras: the package `tf_keras`, which `TF_USE_LEGACY_KERAS=1` makes `tf.keras`.

Its layers draw through operations whose state lies inside TensorFlow's kernels and cannot be saved. Their own
`RandomGenerator` can draw from a `tf.random.Generator` as well, whose state is a variable: a model that is adopted is
switched to it. The state of these generators is none of the model's weights, and goes beside them.

There are two families of optimizers: those of `tf_keras.optimizers` and those of `tf_keras.optimizers.legacy`. The
learning rate is a variable of both, and among the `variables` of neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src import backend

from gscalar.frameworks.keras.flavors import Replacement, Taking, is_default

name = "tf_keras"
model_class: type[Any] = tf_keras.Model
optimizer_classes: tuple[type[Any], ...] = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
list_class: type[Any] = tf_keras.utils.Sequence
callback_class: type[Any] = tf_keras.callbacks.Callback


def version() -> str:
    """Return the package's version."""
    return str(tf_keras.__version__)


def backend_name() -> str:
    """Return `tensorflow`: there is no other."""
    return "tensorflow"


def floatx() -> str:
    """Return the name of the type in which numbers with a fraction are trained."""
    return str(tf_keras.backend.floatx())


def flatten(nested: Any) -> list[Any]:
    """Return the leaves of a nested batch."""
    return list(tf.nest.flatten(nested))


def map_structure(function: Callable[[Any], Any], nested: Any) -> Any:
    """Return a nested batch with the function applied to its leaves; None stays None."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else function(leaf), nested)


def make_ready(model: Any) -> None:
    """Let the layers draw from generators that can be saved; under a strategy they would be of one replica each."""
    if not is_default(model.distribute_strategy):
        return
    for layer in _layers(model):
        drawing = vars(layer).get("_random_generator")
        if isinstance(drawing, backend.RandomGenerator):
            if drawing._rng_type == drawing.RNG_LEGACY_STATEFUL:
                drawing._rng_type, drawing._built = drawing.RNG_STATEFUL, False
            drawing._maybe_init()


def model_state(model: Any) -> Sequence[Any]:
    """Return the model's variables, then the states of the generators that its layers draw from."""
    return [*model.variables, *(generator.state for generator in _generators(model))]


def metric_state(model: Any) -> Sequence[Any]:
    """Return the variables of the metrics that the model has by now."""
    return [variable for metric in model.metrics for variable in metric.variables]


def compiled_parts(model: Any) -> tuple[Any, ...]:
    """Return what is another object once the model is compiled anew."""
    return (model.optimizer, model.compiled_loss, model.compiled_metrics, model.run_eagerly)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the optimizer's variables, if they are not there."""
    inner = _inner(optimizer)
    if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
        inner._create_all_weights(variables)
    elif not getattr(inner, "_built", False):
        inner.build(variables)


def optimizer_state(optimizer: Any) -> Sequence[Any]:
    """Return all variables that an optimizer has, whether it lists them or not: its rate, a loss scale."""
    inner = _inner(optimizer)
    listed = list(inner.variables())
    found = [*listed, *_variables_of(vars(inner)), *_variables_of(getattr(inner, "_hyper", {}))]
    if inner is not optimizer and optimizer.dynamic:
        found += [optimizer._loss_scale.current_loss_scale, optimizer._loss_scale.counter]
    return list({id(variable): variable for variable in found}.values())


def has_schedule(optimizer: Any) -> bool:
    """Return whether the rate follows from the step."""
    return isinstance(_rate_or_schedule(_inner(optimizer)), tf_keras.optimizers.schedules.LearningRateSchedule)


def rate(optimizer: Any) -> Any:
    """Return the rate of the next step; `learning_rate` would be that of the last one where there is a schedule."""
    inner = _inner(optimizer)
    if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
        return inner._decayed_lr(tf.float32)
    known = _rate_or_schedule(inner)
    return known(inner.iterations) if has_schedule(inner) else known


def loss_scale(optimizer: Any) -> Any:
    """Return 1 for a `LossScaleOptimizer`: it scales gradients down before they are taken."""
    return tf.constant(1.0) if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer) else None


def move(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Move variables by gradients, as the optimizer itself does it."""
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def replacements(model: Any, taking: Taking) -> Sequence[Replacement]:
    """Return an `apply_gradients` that hands over, and a `minimize` that tells the loss and ends in it."""
    optimizer = model.optimizer
    minimize, move = optimizer.minimize, optimizer.apply_gradients

    def apply_gradients(grads_and_vars: Iterable[Any], *arguments: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        taking.take([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return move(pairs, *arguments, **options) if taking.moves else optimizer.iterations

    def minimize_told(loss: Any, *arguments: Any, **options: Any) -> Any:
        if not callable(loss):
            taking.tell(loss)
        return minimize(loss, *arguments, **options)

    return [(optimizer, "apply_gradients", apply_gradients), (optimizer, "minimize", minimize_told)]


def seed(seed: int) -> None:
    """Seed TensorFlow's generators, Python's, NumPy's, and the one that gives layers their seeds."""
    tf_keras.utils.set_random_seed(seed)


def random_state() -> Any:
    """Return the state of the generator that gives layers their seeds; None before it was seeded."""
    generator = getattr(backend._SEED_GENERATOR, "generator", None)
    if generator is None:
        return None
    kind, words, gauss = generator.getstate()
    return [kind, list(words), gauss]


def set_random_state(state: Any) -> None:
    """Put back what `random_state` gave."""
    if state is not None:
        generator = random.Random()
        generator.setstate((state[0], tuple(state[1]), state[2]))
        backend._SEED_GENERATOR.generator = generator


def _layers(model: Any) -> Iterator[Any]:
    """Yield a model and all layers in it, in the order in which they were given to it."""
    # Not by `submodules`, which fails once a recurrent layer with dropout has been traced.
    layers: Iterator[Any] = model._flatten_layers(include_self=True, recursive=True)
    return layers


def _generators(model: Any) -> list[Any]:
    """Return the generators of a model: those of Keras's layers, and those that layers of its user hold."""
    found: dict[int, Any] = {}
    for layer in _layers(model):
        for _, value in sorted(vars(layer).items(), key=lambda item: item[0]):
            held = value._generator if isinstance(value, backend.RandomGenerator) else value
            if isinstance(held, tf.random.Generator):
                found[id(held)] = held
    return list(found.values())


def _inner(optimizer: Any) -> Any:
    """Return the optimizer inside one that scales losses."""
    return optimizer.inner_optimizer if loss_scale(optimizer) is not None else optimizer


def _rate_or_schedule(inner: Any) -> Any:
    if isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
        return inner._get_hyper("learning_rate")
    return inner._learning_rate


def _variables_of(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the variables among attributes, and in lists of them, in the order of their names."""
    found: list[Any] = []
    for _, value in sorted(attributes.items(), key=lambda item: item[0]):
        found += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, tf.Variable)]
    return found
