"""A `fit` of legacy Keras under a strategy of tf.distribute, which has batches and steps of its own.

The run does not take them over: it hears of each step, saves and stops between two of them, and lets a resumed fit
begin where it stood. A strategy that works in step gives every worker its share of a data set; after a resume the
batches that were consumed are read again and discarded. Parameter servers work asynchronously: steps are given out
to the workers, a few at a time, and counted when their results are there (`steps_ahead`).

What a step tells is what its logs call `loss`: the mean since the epoch began. Limits: what layers draw by
TensorFlow's stateful operations (dropout) is not saved, and the metrics of the epoch of a resume begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.applied import Applied
from gscalar.frameworks.keras.backend import scope_of, to_host
from gscalar.frameworks.keras.fit_place import FitPlace, adopt
from gscalar.frameworks.keras.flavors import choose, is_default
from gscalar.frameworks.keras.sources import kind_of
from gscalar.frameworks.keras.steps_ahead import StepsAhead
from gscalar.frameworks.keras.under_strategy import unsupported
from gscalar.runtime.driving import Driver
from gscalar.runtime.session import Run


def strategy_over(model: Any, world: int) -> Any:
    """Return the strategy that shares a model's steps, or None where there is none.

    Raises:
        UserError: `strategy-unsupported`, where `fit` does not work under it, or it is not one of all workers.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or is_default(strategy):
        return None
    num_workers = getattr(strategy.extended, "_num_workers", 1)
    if choose([model]).name == "keras":
        if world == 1 and num_workers == 1 and strategy.num_replicas_in_sync == 1:
            return None
        raise unsupported(strategy)
    if world > 1 and num_workers != world:
        raise UserError(
            code="strategy-unsupported",
            what=f"The model's strategy is one process's own, and there are {world} workers.",
            value=type(strategy).__name__,
            next_step="Build the model in the scope of gscalar.keras.distribute(), or outside of any strategy.",
        )
    return strategy


class StrategyFit:
    """One call of `fit` that a run hears of."""

    def __init__(self, run: Run, driver: Driver, model: Any, names: dict[str, Any]) -> None:
        self._run = run
        self._driver = driver
        self._model = model
        self._handler = names["data_handler"]
        self.steps_of_an_epoch = names["steps_per_epoch"] or self._handler.inferred_steps
        _check_steps(self._handler, self.steps_of_an_epoch)
        with scope_of(model):
            kind_of(choose([model]).name).build(model, names)
            self._trainee = adopt(run, driver, model)
        self._last = int(names["epochs"])
        self.place = FitPlace(run, self._trainee, int(names["initial_epoch"]), self._last)
        self._samples = int(names["batch_size"] or 1)
        coordinator = model._cluster_coordinator
        self._ahead = None if coordinator is None else StepsAhead(driver, coordinator, _loss_of, self._samples)
        self._own_epochs, self._own_steps = self._handler.enumerate_epochs, self._handler.steps
        # Anew: what is there may still be that of a fit that an exception has left.
        self._own_train = model.make_train_function(force=True)
        self._handler.enumerate_epochs, self._handler.steps = self._epochs, self._steps
        model.train_function = self._train
        model._train_counter.assign(self.place.num_done)
        self._is_going = False
        driver.leave_sharding()

    def let_go(self) -> None:
        """Leave Keras as it was found."""
        self._is_going = False
        self._handler.enumerate_epochs, self._handler.steps = self._own_epochs, self._own_steps
        self._model.train_function = None

    def end(self) -> None:
        """Take the border of the last step, with its checkpoint."""
        if self.place.done_before:
            self._trainee.pass_over_fit()
            self.let_go()
            return
        if self._ahead is not None:
            self._ahead.settle()
        self.place.end()
        self._cross_border()
        self._driver.save_at_end()
        self.let_go()

    def _epochs(self) -> Iterator[tuple[int, Any]]:
        handler, place = self._handler, self.place
        # Here, because Keras's own backup sets both after the callbacks have begun.
        handler._initial_epoch, handler._initial_step = place.epoch, 0
        begins_anew = handler._adapter.should_recreate_iterator()
        for _ in place.past_epochs if begins_anew else ():  # what an iterator draws when it begins is drawn again
            next(iter(handler._dataset), None)
        num_left = self.steps_of_an_epoch * (self._last - place.epoch)
        with self._driver.looping(total_steps=place.began + place.num_done + num_left):
            self._is_going, begun = True, False
            try:
                for epoch, iterator in self._own_epochs():
                    step = place.first_step()
                    handler._initial_step = step
                    if not begun and self._ahead is None:
                        for _ in range(step if begins_anew else place.num_done):
                            next(iterator, None)
                    begun = True
                    yield epoch, iterator
            finally:
                self._is_going = False

    def _steps(self) -> Iterator[int]:
        self.place.remember()
        try:
            for step in self._own_steps():
                self.place.note(step)
                self._cross_border()
                yield step
            if self._ahead is not None:
                self._ahead.settle()
        finally:
            self.place.forget()

    def _cross_border(self) -> None:
        if self._ahead is None:
            if self._driver.border_wanted:
                self._driver.cross_border()
        elif self._ahead.border_due:
            self._ahead.settle()
            self._ahead.cross_border()

    def _train(self, iterator: Any) -> Any:
        """Take one step as the strategy does; this stands for Keras's `train_function`."""
        if not self._is_going:  # of another fit, after this one was interrupted
            self.let_go()
            return self._model.make_train_function(force=True)(iterator)
        logs = self._own_train(iterator)
        if self._ahead is None:
            self._driver.expect(self._samples)
            self._run.step(Applied(_loss_of(logs)))
            return logs
        self._ahead.add(logs)
        while not self._ahead.has_room:
            self._ahead.count_oldest()
        return logs


def _check_steps(handler: Any, steps_of_an_epoch: int | None) -> None:
    """Raise where batches cannot be told apart by their number.

    Raises:
        UserError: `endless-epoch`, `strategy-unsupported`.
    """
    if steps_of_an_epoch is None or steps_of_an_epoch < 0:
        raise UserError(
            code="endless-epoch",
            what="Nothing says how many steps an epoch has, which a fit under a strategy must know to go on in one.",
            value=type(handler._adapter).__name__,
            next_step="Give model.fit(..., steps_per_epoch=...).",
        )
    if int(handler._steps_per_execution.numpy()) > 1:
        raise UserError(
            code="strategy-unsupported",
            what="Under a strategy each call must be one step.",
            value=f"steps_per_execution={int(handler._steps_per_execution.numpy())}",
            next_step="Compile the model without steps_per_execution.",
        )


def _loss_of(logs: Any) -> float:
    loss = logs.get("loss", math.nan) if isinstance(logs, dict) else math.nan
    return loss if isinstance(loss, float) else float(to_host(loss))
