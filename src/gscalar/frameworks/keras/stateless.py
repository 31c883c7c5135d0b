"""Keras on JAX, where functions change nothing: what a step does to variables, compiled as one of their values.

Keras's `fit` on JAX takes the values out of the variables before an epoch's first batch, hands them from step to step
as a state, and writes them back when the epoch ends or a callback asks for it. A run looks at the variables between
steps: it saves, digests and restores them. So here they hold the newest values after every step, and the state that
goes back to Keras is an empty one, which writes nothing. To store a value in a variable is to store a pointer.

The old values are donated to the compiled function, as Keras itself does it, so that a step needs no second copy of
the model in the device's memory. A compiled step waits for its result, which makes the time that is measured for it
the time that it took.

Limits: no `keras.distribution`, and no variables of Flax (NNX).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import keras

from gscalar.base.errors import UserError


class HeldVariables:
    """The variables of a model in training, in the order of Keras's state; they are looked up once an epoch."""

    EMPTY_STATE: Final = ((), (), (), ())  # trainable, not trainable, of the optimizer, of the metrics

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kinds: tuple[list[Any], ...] = ()

    @property
    def all(self) -> list[Any]:
        """The variables of all kinds."""
        return [variable for kind in self._kinds or self._look_up() for variable in kind]

    def take_back(self, state: Sequence[Sequence[Any]]) -> None:
        """Put the values that Keras took out of the variables back; an empty state says that they are there."""
        if not any(state):
            return
        for variables, values in zip(self._look_up(), state, strict=True):
            _store(variables, values)

    def train_on(self, data: Any) -> Any:
        """Call the model's `train_step`; return what it logs."""
        kinds = self._kinds or self._look_up()
        logs, state = self._model.train_step(tuple([variable.value for variable in kind] for kind in kinds), data)
        for variables, values in zip(kinds, state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        return logs

    def _look_up(self) -> tuple[list[Any], ...]:
        model = self._model
        self._kinds = (
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            list(model.optimizer.variables),
            list(model.metrics_variables),
        )
        return self._kinds


def compiled_over(variables: Callable[[], Sequence[Any]], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads and assigns these variables, and no others, compiled."""

    def on_values(values: Sequence[Any], *arguments: Any) -> tuple[Any, list[Any]]:
        touched = variables()
        with keras.StatelessScope(state_mapping=list(zip(touched, values, strict=True))) as scope:
            result = function(*arguments)
        return result, [scope.get_current_value(variable) for variable in touched]

    compiled = jax.jit(on_values, donate_argnums=0)

    def call(*arguments: Any) -> Any:
        touched = variables()
        # `value` asks for scopes that are not here, for each of what may be a thousand variables.
        result, values = compiled([variable._value for variable in touched], *arguments)
        _store(touched, values)
        jax.block_until_ready(values[-1:])  # what one call computes is ready at one time
        return result

    return call


def move(optimizer: Any, gradients: Sequence[Any]) -> None:
    """Move all of an optimizer's variables by gradients, by its own function for JAX."""
    moved, own = optimizer._trainable_variables, optimizer.variables
    values = optimizer.stateless_apply(
        [variable.value for variable in own], list(gradients), [variable.value for variable in moved]
    )
    for variables, new in zip((moved, own), values, strict=True):
        for variable, value in zip(variables, new, strict=True):
            variable.assign(value)


def check_supported() -> None:
    """Raise where Keras lays variables out in a way that a step here does not know.

    Raises:
        UserError: `strategy-unsupported`, `backend-unsupported`.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise UserError(
            code="strategy-unsupported",
            what="Keras's own distribution is set, and batches would not be laid out by it under a run.",
            value=type(distribution).__name__,
            next_step="Leave set_distribution out: with the callback workers exchange gradients.",
        )
    if getattr(keras.config, "is_nnx_enabled", bool)():
        raise UserError(
            code="backend-unsupported",
            what="Keras makes its variables those of Flax's NNX, whose training step cannot be taken apart here.",
            value="jax with NNX",
            next_step="Unset KERAS_NNX_ENABLED.",
        )


def _store(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable._direct_assign(value)
