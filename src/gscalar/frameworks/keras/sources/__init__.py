"""Where one call of `fit` gets its batches from, for each of the two Keras packages.

A call of `fit` is found by its local variables when it begins. It has an object that hands out epochs and batches; a
`Source` stands for it, says what its data is as data of a run, and lets a run hand out the batches in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gscalar.frameworks.keras.capture import TrainStep
from gscalar.frameworks.keras.data import Arrays, BatchList, Stream

Steps = Callable[[], Iterator[tuple[int, int, Any]]]  # of one epoch: first step, last step, and what to train on


class Source(Protocol):
    """The batches of one call of `fit`."""

    data: Arrays | BatchList | Stream

    def begin_epoch(self) -> None:
        """Call the data's own hook."""

    def end_epoch(self) -> None:
        """Call the data's own hook."""

    def take_over(self, epoch: int, num_done: int, steps: Steps, take_step: Callable[[Any], Any]) -> None:
        """Let the fit begin with an epoch, take what `steps` yields and train by `take_step`.

        `num_done` batches of this fit were trained on before.
        """

    def let_go(self) -> None:
        """Leave the model as it was found."""

    def meet_metrics(self, batch: Any) -> None:
        """Make the variables of the compiled metrics, which come with the first batch, from the batch's shapes."""


class SourceKind(Protocol):
    """What a module of this package has."""

    LOCAL_NAME: str  # of the variable by which a call of `fit` is known

    def open_source(self, model: Any, names: dict[str, Any], train_step: Callable[[], TrainStep]) -> Source:
        """Return the source of the call of `fit` with these local variables.

        `train_step` returns the fit's step once it is there.

        Raises:
            UserError: `endless-epoch`.
        """

    def build(self, model: Any, names: dict[str, Any]) -> None:
        """Make the variables of a model that waits for its first batch."""


def kind_of(package: str) -> SourceKind:
    """Return that of a package, `keras` or `tf_keras`."""
    if package == "tf_keras":
        from gscalar.frameworks.keras.sources import legacy

        return legacy
    from gscalar.frameworks.keras.sources import keras3

    return keras3
