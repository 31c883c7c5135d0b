"""A model's own `train_step`, stopped before its optimizer moves.

While `train_step` runs (or is traced into a graph), the optimizer's `apply` hands the gradients over in
place of moving, and its `scale_loss` tells the loss. So a step that the model's class defines itself is taken apart
as well, as long as it ends with one call of the compiled optimizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.backend import backend_name, compiled


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A loss with its gradients, one for each variable or None."""

    loss: Any
    gradients: Sequence[Any]

    def __float__(self) -> float:
        return float(self.loss)


@dataclass(slots=True)
class _Taken:
    loss: Any = None
    gradients: list[Any] | None = None
    variables: list[Any] = field(default_factory=list)


class TrainStep:
    """Calls a compiled model's `train_step` on one batch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.variables: list[Any] = []  # those of the gradients, known after the first call
        self._run = compiled(self._differentiate, model)

    def __call__(self, data: Any) -> tuple[Any, Differentiated]:
        """Return what the step logs, and its loss with the gradients.

        Raises:
            UserError: `train-step-unknown`.
        """
        logs, loss, gradients = self._run(data)
        return logs, Differentiated(loss, gradients)

    def _differentiate(self, data: Any) -> tuple[Any, Any, list[Any]]:
        taken = _Taken()
        with _handing_over(self._model.optimizer, taken):
            logs = self._model.train_step(data)
        if taken.gradients is None:
            raise UserError(
                code="train-step-unknown",
                what="The model's train_step did not call its compiled optimizer once.",
                value=type(self._model).__name__,
                next_step="Call self.optimizer.apply(gradients, variables) once, or write a loop with run.step.",
            )
        self.variables = taken.variables
        loss = taken.loss if taken.loss is not None else logs.get("loss", 0.0)
        return logs, loss, [dense(gradient) for gradient in taken.gradients]


@contextlib.contextmanager
def _handing_over(optimizer: Any, taken: _Taken) -> Iterator[None]:
    scale_loss = optimizer.scale_loss

    def apply(gradients: Any, trainable_variables: Any = None) -> None:
        if taken.gradients is not None:
            taken.gradients = None
            raise UserError(
                code="train-step-unknown",
                what="The model's train_step moves its optimizer more than once.",
                next_step="Write a loop with run.step for each move.",
            )
        taken.gradients = list(gradients)
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        taken.variables = list(variables)

    def scale(loss: Any) -> Any:
        taken.loss = loss
        return scale_loss(loss)

    # Not by plain assignment: Keras tracks what is assigned to an optimizer.
    object.__setattr__(optimizer, "apply", apply)
    object.__setattr__(optimizer, "scale_loss", scale)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "apply")
        object.__delattr__(optimizer, "scale_loss")


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of its variable's shape; rows of an embedding are put in their places."""
    if gradient is not None and backend_name() == "tensorflow":
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)
    return gradient
