"""The batches of a `fit` of Keras 3: its epoch iterator, and the data adapter in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.capture import TrainStep
from gscalar.frameworks.keras.data import Arrays, BatchList, Stream, as_float
from gscalar.frameworks.keras.sources import Steps

LOCAL_NAME = "epoch_iterator"


class Keras3Source:
    """An epoch iterator of Keras 3."""

    def __init__(self, model: Any, names: dict[str, Any]) -> None:
        self._model = model
        self._iterator = names["epoch_iterator"]
        adapter = self._iterator.data_adapter
        self.data = _data_of(adapter, names["steps_per_epoch"])
        # Not those of the adapter of a data set, which would start its workers.
        self._hooks = getattr(adapter, "py_dataset", adapter)

    def begin_epoch(self) -> None:
        """Call the data's own hook."""
        self._hooks.on_epoch_begin()

    def end_epoch(self) -> None:
        """Call the data's own hook."""
        self._hooks.on_epoch_end()

    def take_over(self, epoch: int, num_done: int, steps: Steps, take_step: Callable[[Any], Any]) -> None:
        """Let the fit begin with an epoch, take what `steps` yields and train by `take_step`."""
        self._iterator._enumerate_iterator = steps
        self._iterator.steps_per_execution = 1
        self._model.train_function = take_step
        self._model._initial_epoch = epoch

    def let_go(self) -> None:
        """Leave the model as it was found."""
        self._model._initial_epoch = None
        self._model.train_function = None

    def meet_metrics(self, batch: Any) -> None:
        """Make the variables of the compiled metrics, from a batch's shapes."""
        self._model._symbolic_build(data_batch=batch)


def open_source(model: Any, names: dict[str, Any], train_step: Callable[[], TrainStep]) -> Keras3Source:
    """Return the source of the call of `fit` with these local variables.

    Raises:
        UserError: `endless-epoch`.
    """
    return Keras3Source(model, names)


def build(model: Any, names: dict[str, Any]) -> None:
    """Nothing is to do: Keras 3 builds a model before its callbacks begin."""


def _data_of(adapter: Any, steps_per_epoch: int | None) -> Arrays | BatchList | Stream:
    """Return what Keras has made of the arguments of `fit`, as data of a run."""
    kind = type(adapter).__name__
    if kind == "ArrayDataAdapter":
        values = keras.tree.map_structure(as_float, keras.tree.lists_to_tuples(adapter._inputs))
        return Arrays(values, adapter._batch_size, bool(adapter._shuffle))
    if kind == "PyDatasetAdapter" and adapter.py_dataset.num_batches is not None:
        get = adapter.py_dataset.__getitem__
        return BatchList(
            lambda index: adapter._standardize_batch(get(index)), adapter.py_dataset.num_batches, bool(adapter.shuffle)
        )
    if steps_per_epoch is None and _is_endless(adapter):
        raise UserError(
            code="endless-epoch",
            what="The data has no end, so an epoch would have none.",
            value=kind,
            next_step="Give model.fit(..., steps_per_epoch=...).",
        )
    if kind == "TFDatasetAdapter" and keras.backend.backend() == "tensorflow":
        return Stream(lambda: iter(adapter._dataset), kind, draws=False)
    if kind == "TFDatasetAdapter":
        return Stream(lambda: iter(adapter.get_numpy_iterator()), kind, draws=False)
    return Stream(lambda: iter(adapter.get_numpy_iterator()), kind)


def _is_endless(adapter: Any) -> bool:
    dataset = getattr(adapter, "_dataset", None)
    cardinality = getattr(dataset, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == -1
