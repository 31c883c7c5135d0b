"""Keras 3, on TensorFlow, PyTorch or JAX. Its layers keep the seeds of their draws among the model's variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import rng_utils

from gscalar.frameworks.keras.flavors import Replacement, Taking
from gscalar.runtime.host_random import seed_host

name = "keras"
model_class: type[Any] = keras.Model
optimizer_classes: tuple[type[Any], ...] = (keras.optimizers.Optimizer,)
list_class: type[Any] = keras.utils.PyDataset
callback_class: type[Any] = keras.callbacks.Callback


def version() -> str:
    """Return the package's version."""
    return str(keras.__version__)


def backend_name() -> str:
    """Return Keras's backend."""
    return str(keras.backend.backend())


def floatx() -> str:
    """Return the name of the type in which numbers with a fraction are trained."""
    return str(keras.config.floatx())


def flatten(nested: Any) -> list[Any]:
    """Return the leaves of a nested batch."""
    return list(keras.tree.flatten(nested))


def map_structure(function: Callable[[Any], Any], nested: Any) -> Any:
    """Return a nested batch with the function applied to its leaves."""
    return keras.tree.map_structure(function, nested)


def make_ready(model: Any) -> None:
    """Nothing is to do."""


def model_state(model: Any) -> Sequence[Any]:
    """Return the model's variables, the seeds of its layers among them."""
    variables: Sequence[Any] = model.variables
    return variables


def metric_state(model: Any) -> Sequence[Any]:
    """Return the variables of the metrics that the model has by now."""
    variables: Sequence[Any] = model.metrics_variables
    return variables


def compiled_parts(model: Any) -> tuple[Any, ...]:
    """Return what is another object once the model is compiled anew."""
    return (model.optimizer, model._compile_loss, model._compile_metrics, model.run_eagerly, model.jit_compile)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the optimizer's variables, if they are not there."""
    if not optimizer.built:
        optimizer.build(variables)


def optimizer_state(optimizer: Any) -> Sequence[Any]:
    """Return the optimizer's variables, its rate included."""
    variables: Sequence[Any] = optimizer.variables
    return variables


def has_schedule(optimizer: Any) -> bool:
    """Return whether the rate follows from the step."""
    return isinstance(getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule)


def rate(optimizer: Any) -> Any:
    """Return the rate of the next step."""
    return optimizer.learning_rate


def loss_scale(optimizer: Any) -> Any:
    """Return the scale of a `LossScaleOptimizer`, which takes its gradients as they are."""
    return optimizer.dynamic_scale if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else None


def move(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Move variables by gradients, as the optimizer itself does it."""
    if backend_name() == "torch":
        import torch

        with torch.no_grad():
            optimizer.apply(list(gradients), list(variables))
        return
    if backend_name() == "jax":
        from gscalar.frameworks.keras.stateless import move as move_all

        move_all(optimizer, gradients)
        return
    optimizer.apply(list(gradients), list(variables))


def replacements(model: Any, taking: Taking) -> Sequence[Replacement]:
    """Return an `apply` that hands over, and a `scale_loss` that tells the loss."""
    optimizer = model.optimizer
    if backend_name() == "jax":
        return _stateless_replacements(model, optimizer, taking)
    move, scale_loss = optimizer.apply, optimizer.scale_loss

    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        gradients = list(gradients)
        taking.take(gradients, variables)
        if taking.moves:
            move(gradients, trainable_variables)

    def scale(loss: Any) -> Any:
        taking.tell(loss)
        return scale_loss(loss)

    return [(optimizer, "apply", apply), (optimizer, "scale_loss", scale)]


def _stateless_replacements(model: Any, optimizer: Any, taking: Taking) -> Sequence[Replacement]:
    """Return a `stateless_apply` that hands over; the loss is told where a metric takes it.

    `scale_loss` is called inside of what JAX differentiates, and no value may leave it there.
    """
    move, tracker = optimizer.stateless_apply, model._loss_tracker

    def stateless_apply(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> tuple[Any, Any]:
        grads = list(grads)
        taking.take(grads, optimizer._trainable_variables)
        if taking.moves:
            moved: tuple[Any, Any] = move(optimizer_variables, grads, trainable_variables)
            return moved
        return trainable_variables, optimizer_variables

    if tracker is None:
        return [(optimizer, "stateless_apply", stateless_apply)]
    update_state = tracker.update_state

    def track(loss: Any, *arguments: Any, **options: Any) -> Any:
        taking.tell(loss)
        return update_state(loss, *arguments, **options)

    return [(optimizer, "stateless_apply", stateless_apply), (tracker, "update_state", track)]


def seed(seed: int) -> None:
    """Seed Keras's generators, its backend's, Python's and NumPy's."""
    if backend_name() == "tensorflow":
        keras.utils.set_random_seed(seed)
        return
    # What keras.utils.set_random_seed does, but for importing TensorFlow wherever it is installed.
    seed_host(seed)
    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def random_state() -> Any:
    """Return the state of the generator that layers and functions without a seed share."""
    # The reading is the backend's: `np.asarray` of a tensor of any is a copy on the host.
    value = seed_generator.global_seed_generator().state.value
    host = value.detach().cpu() if hasattr(value, "detach") else value
    return np.asarray(host).astype(np.int64).tolist()


def set_random_state(state: Any) -> None:
    """Put back what `random_state` gave."""
    seed_generator.global_seed_generator().state.assign(np.asarray(state))
