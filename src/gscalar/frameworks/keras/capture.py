"""A model's own `train_step`, stopped before its optimizer moves.

While `train_step` runs (or is traced into a graph), the optimizer's `apply` (in legacy Keras `apply_gradients`) hands
the gradients over in place of moving, and its `scale_loss` (or `minimize`) tells the loss. So a step that the model's
class defines itself is taken apart as well, as long as it ends with one call of the compiled optimizer.

Where nothing has to be done with the gradients, `apply` moves at once, and the whole step is one graph as in Keras
itself: a second graph would cost its dispatch, and have all gradients written to memory and read again.

On JAX a `train_step` is given all values as a state and returns new ones, and its optimizer's `stateless_apply` takes
the place of `apply`; `stateless` makes one of the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.applied import Applied
from gscalar.frameworks.keras.backend import backend_name, compiled, constant, is_compiled
from gscalar.frameworks.keras.flavors import Flavor, Replacement

if TYPE_CHECKING:
    from gscalar.frameworks.keras.stateless import HeldVariables


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A loss with its gradients, one for each variable or None."""

    loss: Any
    gradients: Sequence[Any]

    def __float__(self) -> float:
        return float(self.loss)


@dataclass(slots=True)
class _Taken:
    moves: bool
    loss: Any = None
    gradients: list[Any] | None = None
    variables: list[Any] = field(default_factory=list)

    def tell(self, loss: Any) -> None:
        """Note the loss that is about to be differentiated."""
        self.loss = loss

    def take(self, gradients: Iterable[Any], variables: Iterable[Any]) -> None:
        """Take the gradients of these variables; a second call is refused."""
        if self.gradients is not None:
            self.gradients = None
            raise UserError(
                code="train-step-unknown",
                what="The model's train_step moves its optimizer more than once.",
                next_step="Write a loop with run.step for each move.",
            )
        self.gradients, self.variables = list(gradients), list(variables)


class TrainStep:
    """Calls a compiled model's `train_step` on one batch."""

    def __init__(self, model: Any, flavor: Flavor) -> None:
        self._model = model
        self._flavor = flavor
        self.variables: list[Any] = []  # those of the gradients, known after the first call
        self.held: HeldVariables | None = None  # on JAX
        if backend_name() == "jax":
            from gscalar.frameworks.keras.stateless import HeldVariables

            self.held = HeldVariables(model)
        self._run = compiled(self._differentiate, model, self._touched)
        self._run_whole = compiled(self._move, model, self._touched)

        # Where a step is compiled, two halves of it cost more than the whole.
        self.is_graph = is_compiled(model)

    def __call__(self, data: Any) -> tuple[Any, Differentiated]:
        """Return what the step logs, and its loss with the gradients.

        Raises:
            UserError: `train-step-unknown`.
        """
        logs, loss, gradients = self._run(data)
        return logs, Differentiated(loss, gradients)

    def trace(self, data: Any) -> bool:
        """Make what the first batch makes, such as metrics' variables, train on nothing; False where no graph is."""
        trace = getattr(self._run, "get_concrete_function", None)
        if trace is not None:
            trace(data)
        return trace is not None

    def whole(self, data: Any) -> tuple[Any, Applied]:
        """Let the optimizer move too; return what the step logs, and its loss.

        Raises:
            UserError: `train-step-unknown`.
        """
        logs, loss, lr = self._run_whole(data)
        return logs, Applied(loss, lr)

    def _touched(self) -> Sequence[Any]:
        return [] if self.held is None else self.held.all

    def _differentiate(self, data: Any) -> tuple[Any, Any, list[Any]]:
        logs, loss, gradients = self._take(data, moves=False)
        return logs, loss, [dense(gradient) for gradient in gradients]

    def _move(self, data: Any) -> tuple[Any, Any, Any]:
        # Before the move: a schedule then gives the rate of the next step.
        lr = constant(self._flavor.rate(self._model.optimizer))
        logs, loss, _ = self._take(data, moves=True)
        return logs, loss, lr

    def _take(self, data: Any, *, moves: bool) -> tuple[Any, Any, list[Any]]:
        taken = _Taken(moves=moves)
        with _handing_over(self._flavor.replacements(self._model, taken)):
            logs = self._model.train_step(data) if self.held is None else self.held.train_on(data)
        if taken.gradients is None:
            raise UserError(
                code="train-step-unknown",
                what="The model's train_step did not call its compiled optimizer once.",
                value=type(self._model).__name__,
                next_step="Call the optimizer's apply once (stateless_apply on JAX), or write a loop with run.step.",
            )
        self.variables = taken.variables
        loss = taken.loss if taken.loss is not None else logs.get("loss", 0.0)
        return logs, loss, taken.gradients


@contextlib.contextmanager
def _handing_over(replacements: Sequence[Replacement]) -> Iterator[None]:
    # Not by plain assignment: Keras tracks what is assigned to its objects.
    for owner, name, method in replacements:
        object.__setattr__(owner, name, method)
    try:
        yield
    finally:
        for owner, name, _ in replacements:
            object.__delattr__(owner, name)


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor of its variable's shape; rows of an embedding are put in their places."""
    if gradient is not None and backend_name() == "tensorflow":
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)
    return gradient
