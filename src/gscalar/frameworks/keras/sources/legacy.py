"""The batches of a `fit` of legacy Keras: its data handler, and the data adapter in it.

An adapter keeps a `tf.data.Dataset` and not what it was made of, so arrays are taken from the arguments of `fit`, as
the adapter itself took them. Class weights are applied by the handler, to a data set of its own. A generator's data
set reads ahead in threads of TensorFlow; it is read here without, in the step that wants the batch, so that what it
draws follows from the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter, training_utils

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.backend import to_host
from gscalar.frameworks.keras.capture import TrainStep
from gscalar.frameworks.keras.data import Arrays, BatchList, Stream, as_float
from gscalar.frameworks.keras.flavors import legacy as flavor
from gscalar.frameworks.keras.randomness import random_state, set_random_state
from gscalar.frameworks.keras.sources import Steps

LOCAL_NAME = "data_handler"


class _Place:
    """What stands for an epoch's iterator: it has the batch of the present step."""

    handed: Any = None


class LegacySource:
    """A data handler of legacy Keras."""

    def __init__(self, model: Any, names: dict[str, Any], train_step: Callable[[], TrainStep]) -> None:
        self._model = model
        self._train_step = train_step
        self._handler = names["data_handler"]
        self._last_epoch = int(names["epochs"])
        self.data = _data_of(self._handler, names)
        self._place = _Place()

    def begin_epoch(self) -> None:
        """Nothing is to do: a `Sequence` has no such hook."""

    def end_epoch(self) -> None:
        """Call the hook of a `Sequence`."""
        sequence = getattr(self._handler._adapter, "_keras_sequence", None)
        if sequence is not None:
            sequence.on_epoch_end()

    def take_over(self, epoch: int, num_done: int, steps: Steps, take_step: Callable[[Any], Any]) -> None:
        """Let the fit begin with an epoch, take what `steps` yields and train by `take_step`."""

        def epochs() -> Iterator[tuple[int, _Place]]:
            for number in range(epoch, self._last_epoch):
                yield number, self._place

        def numbers() -> Iterator[int]:
            for step, _, self._place.handed in steps():
                yield step

        def train(received: Any) -> Any:
            if not isinstance(received, _Place):  # of another fit, after this one was interrupted
                return take_step(received)
            logs = take_step(received.handed)
            self._model._train_counter.assign_add(1)  # the step of TensorBoard and its like
            return logs

        self._handler.enumerate_epochs, self._handler.steps = epochs, numbers
        self._handler._step_increment = 0
        self._model._train_counter.assign(num_done)
        self._model.train_function = train

    def let_go(self) -> None:
        """Leave the model as it was found."""
        self._model.train_function = None

    def meet_metrics(self, batch: Any) -> None:
        """Make the variables of the compiled metrics, from a batch's shapes where the step is a graph.

        A step that is eager is run up to its gradients, and what it moved and drew is put back.
        """
        if self._train_step().trace(batch):
            return
        variables = flavor.model_state(self._model)
        kept, drawn = [np.array(to_host(variable)) for variable in variables], random_state()
        self._train_step()(batch)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
        set_random_state(drawn)


def open_source(model: Any, names: dict[str, Any], train_step: Callable[[], TrainStep]) -> LegacySource:
    """Return the source of the call of `fit` with these local variables.

    Raises:
        UserError: `endless-epoch`.
    """
    return LegacySource(model, names, train_step)


def build(model: Any, names: dict[str, Any]) -> None:
    """Make the variables of a model that waits for its first batch: legacy Keras does it in the first step."""
    if model.built:
        return
    given = names["x"] if isinstance(names["x"], tf.data.Dataset) else names["data_handler"]._dataset
    inputs, _, _ = tf_keras.utils.unpack_x_y_sample_weight(given.element_spec)
    try:
        tf.function(lambda x: model(x, training=True)).get_concrete_function(inputs)
    except NotImplementedError:  # it has no `call`, as one of several networks, which may be built
        model.built = bool(model.variables)


def _data_of(handler: Any, names: dict[str, Any]) -> Arrays | BatchList | Stream:
    """Return what Keras has made of the arguments of `fit`, as data of a run."""
    adapter = handler._adapter
    kind = type(adapter).__name__
    weighed = _weighing(names["class_weight"])
    if kind == "ListsOfScalarsDataAdapter":
        names = {**names, **{name: None if names[name] is None else np.asarray(names[name]) for name in _GIVEN}}
        adapter = adapter._internal_adapter
    if isinstance(adapter, data_adapter.TensorLikeDataAdapter):
        return Arrays(_arrays(names, weighed), adapter._batch_size, bool(adapter._shuffle))
    if kind == "KerasSequenceAdapter":
        sequence = adapter._keras_sequence
        return BatchList(
            lambda index: weighed(_tensors(adapter._standardize_batch(sequence[index]))),
            len(sequence),
            bool(adapter._shuffle_sequence),
        )
    if names["steps_per_epoch"] == -1:
        raise UserError(
            code="endless-epoch",
            what="The epoch has no end.",
            value="steps_per_epoch=-1",
            next_step="Give model.fit a number of steps_per_epoch.",
        )
    if kind == "GeneratorDataAdapter":
        read = _without_reading_ahead(adapter._dataset)
        return Stream(lambda: map(weighed, read), kind)
    return Stream(lambda: iter(handler._dataset), kind, draws=False)


_GIVEN = ("x", "y", "sample_weight")


def _arrays(names: dict[str, Any], weighed: Callable[[Any], Any]) -> Any:
    """Return inputs, targets and weights as one tuple of nested arrays on the host."""
    x, y, weights = (_series_as_column(names[name]) for name in _GIVEN)
    if weights is not None:
        modes = data_adapter.broadcast_sample_weight_modes(weights, None)
        weights, _, _ = training_utils.handle_partial_sample_weights(y, weights, modes, check_all_flat=True)
    packed = flavor.map_structure(as_float, tf_keras.utils.pack_x_y_sample_weight(x, y, weights))
    packed = tf.__internal__.nest.list_to_tuple(packed)
    if not isinstance(packed, tuple):
        packed = (packed,)
    if names["class_weight"]:
        packed = (packed[0], *flavor.map_structure(np.asarray, weighed((None, *_tensors(packed[1:])))[1:]))
    return packed


def _weighing(class_weight: Any) -> Callable[[Any], Any]:
    """Return a function that puts the weights of classes into a batch."""
    if not class_weight:
        return lambda batch: batch
    weigh = data_adapter._make_class_weight_map_fn(class_weight)
    return lambda batch: weigh(*batch)


def _series_as_column(value: Any) -> Any:
    def convert(leaf: Any) -> Any:
        return np.expand_dims(leaf.to_numpy(), axis=-1) if data_adapter._is_pandas_series(leaf) else leaf

    return None if value is None else tf.nest.map_structure(convert, value)


def _tensors(batch: Any) -> Any:
    return flavor.map_structure(lambda leaf: leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf), batch)


def _without_reading_ahead(dataset: Any) -> Any:
    while type(dataset).__name__ == "_PrefetchDataset":
        dataset = dataset._input_dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)
