"""`model.fit` under a run: the callback that gives it its data, takes its steps and continues it.

Keras keeps its loop over epochs, its validation, its callbacks and its progress bar. When `fit` begins, the callback
takes two things over: where batches come from (the run's global order, this worker's share, from where the run
stands), and what a batch does (the model's `train_step` up to the gradients, then `run.step`). Both are attributes
of the objects of this one call of `fit`, which is found on the call stack; nothing of Keras's classes is changed.
`sources` has what differs between the packages.

What a fit has reached lies in the run's state (`fit_place`). A model under a strategy of tf.distribute keeps its own
batches and steps (`strategy_fit`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from typing import Any

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.applied import Applied
from gscalar.frameworks.keras.capture import Differentiated
from gscalar.frameworks.keras.data import InFit, Marked, steps_of
from gscalar.frameworks.keras.fit_place import FitPlace, adopt
from gscalar.frameworks.keras.flavors import choose, loaded
from gscalar.frameworks.keras.sources import Source, kind_of
from gscalar.frameworks.keras.strategy_fit import StrategyFit, strategy_over
from gscalar.runtime.driving import Driver
from gscalar.runtime.session import Run


class Handed:
    """A batch on its way from our iterator through Keras to our step."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _One:
    """An iterator over one batch, as Keras hands it to a `train_function` on TensorFlow."""

    def __init__(self, handed: Handed) -> None:
        self._handed: Handed | None = handed

    def __iter__(self) -> _One:
        return self

    def __next__(self) -> Handed:
        handed, self._handed = self._handed, None
        if handed is None:
            raise StopIteration
        return handed


def make_callback(run: Run) -> Any:
    """Return the callback of a run: a `Callback` of each Keras package that is loaded."""
    return _as_callback(FitCallback)(run)


def _as_callback(hooks: type[Any]) -> type[Any]:
    return type(hooks.__name__, (hooks, *(flavor.callback_class for flavor in loaded())), {})


class FitCallback:
    """Records, resumes and shards the calls of `model.fit` that it is given to.

    Which package's model it is only `fit` tells; all that Keras asks of a callback beside these hooks comes from the
    package's own class.
    """

    model: Any

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._driver = Driver(run)
        self._fit: _Fit | StrategyFit | None = None
        # Legacy Keras asks for this where steps are still under way when hooks are called; none here reads their logs.
        self._supports_tf_logs = True

    def on_train_begin(self, logs: Any = None) -> None:
        """Take the batches and the steps of this fit over."""
        if self._fit is not None:  # one that was interrupted
            self._fit.let_go()
        names = _running_fit(self.model)
        callbacks = names["callbacks"].callbacks
        _check_alone(callbacks)
        kind = StrategyFit if strategy_over(self.model, self._run.world) is not None else _Fit
        self._fit = kind(self._run, self._driver, self.model, names)
        # First, so that what it puts into an epoch's logs (means over ranks) is what all others see; and last, so
        # that the run's end comes after what others do to the weights.
        callbacks.remove(self)
        callbacks.insert(0, self)
        self._fit.place.others = [each for each in callbacks if each is not self]
        callbacks.append(_as_callback(_Last)(self._fit))
        names["callbacks"].set_params({**names["callbacks"].params, "steps": self._fit.steps_of_an_epoch})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Put back what the other callbacks remembered in a resumed epoch."""
        assert self._fit is not None
        self._fit.place.begin_epoch(epoch)

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
        self._driver.begin_evaluation()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Give a sign of life."""
        self._driver.beat_evaluation()

    def on_test_end(self, logs: Any = None) -> None:
        """Go on with the step."""
        self._driver.end_evaluation()


class _Last:
    """Ends a fit, after all other callbacks."""

    def __init__(self, fit: _Fit | StrategyFit) -> None:
        super().__init__()
        self._fit = fit

    def on_train_end(self, logs: Any = None) -> None:
        self._fit.end()


class _Fit:
    """One call of `fit` that is taken over."""

    def __init__(self, run: Run, driver: Driver, model: Any, names: dict[str, Any]) -> None:
        self._run = run
        self._driver = driver
        self._model = model
        self._steps_per_epoch: int | None = names["steps_per_epoch"]
        kind = kind_of(choose([model]).name)
        self._source: Source = kind.open_source(model, names, lambda: self._train_step)
        self._data = InFit(self._source.data)
        kind.build(model, names)
        self._trainee = adopt(run, driver, model)
        first, last = int(names["initial_epoch"]), int(names["epochs"])
        self.place = FitPlace(run, self._trainee, first, last)
        self._train_step = self._trainee.train_step()
        self.steps_of_an_epoch = self._steps_per_epoch or steps_of(self._data.data, run.world)
        self._batches = self._begin(last - first)
        self._may_move_at_once = driver.leaves_gradients and self._train_step.is_graph
        num_done = self.place.num_done * driver.accumulate
        self._source.take_over(self.place.epoch, num_done, self._one_epoch, self._take_step)
        for _ in self.place.past_epochs:
            self._source.end_epoch()

    def _begin(self, num_epochs: int) -> Generator[Any, None, None]:
        if self._steps_per_epoch is None:
            return self._driver.batches(self._data, epochs=num_epochs, steps=None)
        steps = math.ceil(num_epochs * self._steps_per_epoch / self._driver.accumulate)
        return self._driver.batches(self._data, epochs=None, steps=self.place.began + steps)

    def let_go(self) -> None:
        """Leave Keras and the data as they were found."""
        self._batches.close()
        self._source.let_go()
        self._data.release()

    def end(self) -> None:
        """Let the run take the step's border that is still open, with its checkpoint."""
        if self.place.done_before:
            self._trainee.pass_over_fit()
            self.let_go()
            return
        self.place.end()
        # The end of the batches takes a checkpoint; a callback that stops the training comes before it.
        if self._model.stop_training or next(self._batches, None) is not None:
            self._batches.close()
            self._driver.save_at_end()
        self.let_go()

    def _one_epoch(self) -> Iterator[tuple[int, int, Iterator[Any]]]:
        """Yield as Keras's own iterator does: first step, last step, and an iterator over what to train on."""
        self.place.remember()
        self._source.begin_epoch()
        step = self.place.first_step()
        while self._steps_per_epoch is None or step < self._steps_per_epoch:
            self.place.note(step)
            batch: Marked | None = next(self._batches, None)
            if batch is None:
                break
            if self._trainee.restores_metrics:
                # The compiled metrics have no variables before they have seen a batch, if only its shapes.
                self._source.meet_metrics(batch.value)
                self._trainee.restore_metrics()
            yield step, step, _One(Handed(batch.value))
            step += 1
            if self._steps_per_epoch is None and batch.ends_epoch:
                break
        self._source.end_epoch()
        self.place.forget()

    def _take_step(self, *given: Any) -> Any:
        """Take one step on what Keras hands over; this stands for its `train_function`.

        On JAX a state comes first, and goes back with what the step logs.
        """
        *state, received = given
        item = next(received) if isinstance(received, _One) else received[0] if isinstance(received, list) else None
        if not isinstance(item, Handed):  # of another fit, after this one was interrupted
            self.let_go()
            self._model.make_train_function(force=True)
            return self._model.train_function(*given)
        held = self._train_step.held
        if held is not None:
            held.take_back(state[0])
        loss: Applied | Differentiated
        if self._may_move_at_once and self._trainee.takes_whole_steps:
            logs, loss = self._train_step.whole(item.value)
        else:
            logs, loss = self._train_step(item.value)
        self._trainee.variables = self._train_step.variables
        self._run.step(loss)
        return logs if held is None else (logs, held.EMPTY_STATE)


def _running_fit(model: Any) -> dict[str, Any]:
    """Return the names of the call of `fit` that is beginning."""
    name, frame = kind_of(choose([model]).name).LOCAL_NAME, sys._getframe()
    while frame is not None:
        names = frame.f_locals
        if frame.f_code.co_name == "fit" and names.get("self") is model and name in names:
            return dict(names)
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError(
        code="fit-unknown",
        what="The callback was not begun by Keras's own model.fit.",
        value=type(model).__name__,
        next_step="Give it to model.fit(..., callbacks=[...]); for a loop of your own use run.prepare and run.step.",
    )


def _check_alone(callbacks: list[Any]) -> None:
    count = sum(isinstance(each, FitCallback) for each in callbacks)
    if count > 1:
        raise UserError(
            code="callback-twice",
            what="model.fit was given more than one callback of gscalar.keras.",
            value=count,
            next_step="Give one.",
        )
