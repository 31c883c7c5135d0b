"""The two Keras packages, `keras` (Keras 3) and the legacy `tf_keras`: what differs between their objects.

Both can be loaded in one process, since TensorFlow imports `keras` by itself, so only a model's class tells which one
is meant. A process trains the models of one of them at a time: the one whose model was adopted last is the current
one. Before a model was seen it is the one that is loaded; with both, or none, TensorFlow's own switch
`TF_USE_LEGACY_KERAS` tells. Neither package is imported where the script does not use it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

Replacement = tuple[Any, str, Callable[..., Any]]  # an object, and a method that stands for its own of this name


class Taking(Protocol):
    """What takes a step's gradients in the optimizer's place."""

    moves: bool  # whether the optimizer moves by them all the same

    def tell(self, loss: Any) -> None:
        """Note the loss that is about to be differentiated."""

    def take(self, gradients: Iterable[Any], variables: Iterable[Any]) -> None:
        """Take the gradients of these variables; a second call is refused."""


class Flavor(Protocol):
    """One of the two packages, which a module stands for."""

    name: str  # of the package
    model_class: type[Any]
    optimizer_classes: tuple[type[Any], ...]
    list_class: type[Any]  # of batches that can be asked for by number
    callback_class: type[Any]

    def version(self) -> str:
        """Return the package's version."""

    def backend_name(self) -> str:
        """Return what the models run on: `tensorflow`, `torch`, `jax`, or one that is not supported."""

    def floatx(self) -> str:
        """Return the name of the type in which numbers with a fraction are trained."""

    def flatten(self, nested: Any) -> list[Any]:
        """Return the leaves of a nested batch."""

    def map_structure(self, function: Callable[[Any], Any], nested: Any) -> Any:
        """Return a nested batch with the function applied to its leaves."""

    def make_ready(self, model: Any) -> None:
        """Make everything that moves in a model one that can be saved, or refuse the model."""

    def model_state(self, model: Any) -> Sequence[Any]:
        """Return the model's variables with those of its random generators."""

    def metric_state(self, model: Any) -> Sequence[Any]:
        """Return the variables of the metrics that the model has by now."""

    def compiled_parts(self, model: Any) -> tuple[Any, ...]:
        """Return what is another object once the model is compiled anew."""

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Make the optimizer's variables, if they are not there."""

    def optimizer_state(self, optimizer: Any) -> Sequence[Any]:
        """Return the optimizer's variables, its rate included."""

    def has_schedule(self, optimizer: Any) -> bool:
        """Return whether the rate follows from the step."""

    def rate(self, optimizer: Any) -> Any:
        """Return the rate of the next step."""

    def loss_scale(self, optimizer: Any) -> Any:
        """Return by how much the gradients that are taken from a step are scaled up; None where losses never are."""

    def move(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Move variables by gradients, as the optimizer itself does it."""

    def replacements(self, model: Any, taking: Taking) -> Sequence[Replacement]:
        """Return methods that hand a step's gradients over in the place of the compiled optimizer's own."""

    def seed(self, seed: int) -> None:
        """Seed the package's generators, Python's and NumPy's."""

    def random_state(self) -> Any:
        """Return the state of the package's own generator as plain values."""

    def set_random_state(self, state: Any) -> None:
        """Put back what `random_state` gave."""


_current: Flavor | None = None


def loaded() -> list[Flavor]:
    """Return those that the process has imported; the one that is meant where that is open comes first."""
    names = [name for name in ("keras", "tf_keras") if name in sys.modules]
    return [_flavor(name) for name in sorted(names, key=lambda name: (name == "tf_keras") is not _wants_legacy())]


def current() -> Flavor:
    """Return the one whose model was adopted last, or else the one that is meant."""
    if _current is not None:
        return _current
    return next(iter(loaded()), None) or _flavor("tf_keras" if _wants_legacy() else "keras")


def choose(objects: Iterable[Any]) -> Flavor:
    """Return the one whose model or optimizer is among the objects, and make it the current one."""
    global _current
    objects = list(objects)
    for flavor in loaded():
        if any(isinstance(item, (flavor.model_class, *flavor.optimizer_classes)) for item in objects):
            _current = flavor
            return flavor
    return current()


def meant_package() -> str:
    """Return the package that a script means which has imported neither of them, or both; nothing is imported."""
    names = [name for name in ("keras", "tf_keras") if name in sys.modules]
    return names[0] if len(names) == 1 else "tf_keras" if _wants_legacy() else "keras"


def is_default(strategy: Any) -> bool:
    """Whether this is what TensorFlow calls the strategy where there is none."""
    return type(strategy).__name__.startswith("_DefaultDistributionStrategy")


def _wants_legacy() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")  # as TensorFlow reads it


def _flavor(name: str) -> Flavor:
    if name == "tf_keras":
        from gscalar.frameworks.keras.flavors import legacy

        return legacy
    from gscalar.frameworks.keras.flavors import keras3

    return keras3
