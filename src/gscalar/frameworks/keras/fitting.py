"""`model.fit` under a run: the callback that gives it its data, takes its steps and continues it.

Keras keeps its loop over epochs, its validation, its callbacks and its progress bar. When `fit` begins, the callback
takes two things over: where batches come from (the run's global order, this worker's share, from where the run
stands), and what a batch does (the model's `train_step` up to the gradients, then `run.step`). Both are attributes
of the objects of this one call of `fit`, which is found on the call stack; nothing of Keras's classes is changed.

What a fit has reached lies in the run's state: how many fits were done, the epoch, the batch in it, and what the
script's other callbacks remember in plain attributes (the patience of EarlyStopping, the history).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import keras

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.capture import TrainStep
from gscalar.frameworks.keras.data import Arrays, BatchList, InFit, Marked, Stream, as_float, steps_of
from gscalar.model.spans import SpanKind
from gscalar.observation.step_clock import OpenSpan
from gscalar.runtime.session import Run

_STATE = "keras"
_PLAIN = (bool, int, float, str, type(None))


class ScalarCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
    """Records, resumes and shards the calls of `model.fit` that it is given to."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._batches: Iterator[Any] | None = None
        self._epoch = 0
        self._step = 0
        self._fit = 0
        self._epochs = 0
        self._steps_per_epoch: int | None = None
        self._callbacks: list[Any] = []
        self._remembered: list[dict[str, Any]] = []
        self._ends_epoch = False
        self._train_step: TrainStep | None = None
        self._evaluation: OpenSpan | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Take the batches and the steps of this fit over."""
        names = _running_fit(self.model)
        source, callbacks = names["epoch_iterator"], names["callbacks"].callbacks
        _check_alone(callbacks)
        # First, so that what it puts into an epoch's logs (means over ranks) is what all others see.
        callbacks.remove(self)
        callbacks.insert(0, self)
        self._callbacks = [each for each in callbacks if each is not self]
        self._epochs = int(names["epochs"])
        self._steps_per_epoch = names["steps_per_epoch"]
        data = InFit(_data_of(source.data_adapter, self._steps_per_epoch))
        trainee = self._adopt()
        self._fit = trainee.begin_fit()
        place = self._run.state.get(_STATE) or {"fit": 1, "epoch": int(names["initial_epoch"]), "step": 0}
        self._batches = self._begin(data)
        source._enumerate_iterator = self._one_epoch
        source.steps_per_execution = 1
        self._train_step = trainee.train_step()
        self.model.train_function = self._take_step
        if place["fit"] > self._fit:  # done before this process began
            self._epoch = self._epochs
        elif place["fit"] == self._fit:
            self._epoch, self._step = place["epoch"], place["step"]
            self._remembered = place.get("callbacks", [])
            trainee.restore_optimizer()
        else:
            self._epoch, self._step = int(names["initial_epoch"]), 0
        self.model._initial_epoch = self._epoch
        steps = self._steps_per_epoch or steps_of(data.data, self._run.world)
        names["callbacks"].set_params({**names["callbacks"].params, "steps": steps})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Put back what a resumed epoch had come to."""
        self._epoch = epoch
        for callback, remembered in zip(self._callbacks, self._remembered, strict=False):
            if remembered.get("kind") == type(callback).__name__:
                vars(callback).update(remembered["values"])
        self._remembered = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch's metrics: means over ranks, which all callbacks after this one see."""
        if not logs:
            return
        for name in sorted(logs):
            if isinstance(logs[name], int | float):
                logs[name] = self._run.reduce(float(logs[name]))
        if self._run.rank == 0:
            self._run.log({name: value for name, value in logs.items() if isinstance(value, int | float)})

    def on_test_begin(self, logs: Any = None) -> None:
        """Keep the validation's time out of the steps."""
        self._evaluation = self._run._timing.clock.begin(SpanKind.EVALUATION)
        self._run._recording.beat("evaluation")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Give a sign of life."""
        self._run._recording.beat("evaluation")

    def on_test_end(self, logs: Any = None) -> None:
        """Go on with the step."""
        if self._evaluation is not None:
            self._run._timing.clock.end(self._evaluation)
            self._evaluation = None

    def on_train_end(self, logs: Any = None) -> None:
        """Let the run take the step's border that is still open, with its checkpoint."""
        self._keep(self._fit + 1, 0, 0)
        if self._batches is not None:
            next(self._batches, None)
            self._batches.close()  # type: ignore[attr-defined]  # it is a generator
        self.model._initial_epoch = None
        self.model.train_function = None

    @property
    def _trainee(self) -> Any:
        assert self._run._training is not None
        return self._run._training.trainee

    def _adopt(self) -> Any:
        run = self._run
        if run._training is None:
            run.prepare(self.model)
        elif run._training.trainee.model is not self.model:  # type: ignore[attr-defined]
            raise UserError(
                code="prepare-twice",
                what="This run trains another model already.",
                value=self.model.name,
                next_step="Train each model in a run of its own.",
            )
        return self._trainee

    def _begin(self, data: Any) -> Iterator[Any]:
        if self._steps_per_epoch is None:
            return self._run.batches(data, epochs=self._epochs)
        return self._run.batches(data, steps=self._epochs * self._steps_per_epoch)

    def _keep(self, fit: int, epoch: int, step: int) -> None:
        self._run.state[_STATE] = {"fit": fit, "epoch": epoch, "step": step, "callbacks": self._remembered}

    def _one_epoch(self) -> Iterator[tuple[int, int, Iterator[Any]]]:
        """Yield as Keras's own iterator does: first step, last step, and an iterator over what to train on."""
        assert self._batches is not None
        self._remembered = [{"kind": type(each).__name__, "values": _plain_values(each)} for each in self._callbacks]
        step, self._step = self._step, 0
        while self._steps_per_epoch is None or step < self._steps_per_epoch:
            self._keep(self._fit, self._epoch, step)
            batch: Marked | None = next(self._batches, None)
            if batch is None:
                break
            if self._trainee.restores_metrics:
                # The compiled metrics have no variables before they have seen a batch, if only its shapes.
                self.model._symbolic_build(data_batch=batch.value)
                self._trainee.restore_metrics()
            yield step, step, iter([batch.value])
            step += 1
            if self._steps_per_epoch is None and batch.ends_epoch:
                break
        self._remembered = []

    def _take_step(self, iterator: Iterator[Any]) -> Any:
        """Take one step on what the iterator gives; this stands for Keras's `train_function`."""
        assert self._train_step is not None
        logs, differentiated = self._train_step(next(iter(iterator)))
        self._trainee.variables = self._train_step.variables
        self._run.step(differentiated)
        return logs


def _running_fit(model: Any) -> dict[str, Any]:
    """Return the names of the call of `fit` that is beginning."""
    frame = sys._getframe()
    while frame is not None:
        names = frame.f_locals
        if frame.f_code.co_name == "fit" and names.get("self") is model and "epoch_iterator" in names:
            return dict(names)
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError(
        code="fit-unknown",
        what="The callback was not begun by Keras's own model.fit.",
        value=type(model).__name__,
        next_step="Give it to model.fit(..., callbacks=[...]); for a loop of your own use run.prepare and run.step.",
    )


def _check_alone(callbacks: list[Any]) -> None:
    count = sum(isinstance(each, ScalarCallback) for each in callbacks)
    if count > 1:
        raise UserError(
            code="callback-twice",
            what="model.fit was given more than one callback of gscalar.keras.",
            value=count,
            next_step="Give one.",
        )


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
    if kind == "TFDatasetAdapter":
        return Stream(lambda: iter(adapter._dataset), kind)
    return Stream(lambda: iter(adapter.get_numpy_iterator()), kind)


def _is_endless(adapter: Any) -> bool:
    dataset = getattr(adapter, "_dataset", None)
    cardinality = getattr(dataset, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == -1


def _plain_values(callback: Any) -> dict[str, Any]:
    """Return what a callback remembers in attributes of plain numbers, texts and lists of them."""
    skipped = ("_model", "params", "model")
    return {name: value for name, value in vars(callback).items() if name not in skipped and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    return isinstance(value, _PLAIN)
