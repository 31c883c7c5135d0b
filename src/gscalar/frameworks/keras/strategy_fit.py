"""A `fit` of legacy Keras under a strategy of tf.distribute, which has batches and steps of its own.

The run does not take them over: it hears of each step, saves and stops between two of them, and lets a resumed fit
begin where it stood. A strategy that works in step gives every worker its share of a data set; after a resume the
batches that were consumed are read again and discarded. Parameter servers work asynchronously: steps are given out
to the workers, a few at a time, and counted when their results are there; before a checkpoint none is under way.

What a step tells is what its logs call `loss`: the mean since the epoch began. Limits: what layers draw by
TensorFlow's stateful operations (dropout) is not saved, and the metrics of the epoch of a resume are those of the first
worker's share up to there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.applied import Applied
from gscalar.frameworks.keras.backend import scope_of, to_host
from gscalar.frameworks.keras.fit_place import FitPlace, adopt
from gscalar.frameworks.keras.flavors import choose
from gscalar.frameworks.keras.sources import kind_of
from gscalar.runtime.driving import Driver
from gscalar.runtime.session import Run

_PER_WORKER: Final = 2  # steps that a worker of a parameter server is given ahead


def strategy_over(model: Any, world: int) -> Any:
    """Return the strategy that shares a model's steps, or None where there is none.

    Raises:
        UserError: `strategy-unsupported`, where `fit` does not work under it, or it is not one of all workers.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or type(strategy).__name__.startswith("_DefaultDistributionStrategy"):
        return None
    num_workers = getattr(strategy.extended, "_num_workers", 1)
    if choose([model]).name == "keras":
        if world == 1 and num_workers == 1 and strategy.num_replicas_in_sync == 1:
            return None
        raise UserError(
            code="strategy-unsupported",
            what="Keras 3's model.fit does not work under this strategy of tf.distribute.",
            value=type(strategy).__name__,
            next_step="Build the model outside strategy.scope(): with the callback workers exchange gradients.",
        )
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
        with scope_of(model):
            kind_of(choose([model]).name).build(model, names)
            self._trainee = adopt(run, driver, model)
        self.place = FitPlace(run, self._trainee, int(names["initial_epoch"]), int(names["epochs"]))
        coordinator = model._cluster_coordinator
        self._most_ahead = 0 if coordinator is None else _PER_WORKER * coordinator.strategy.extended._num_workers
        self._ahead: deque[Any] = deque()
        self._own = (self._handler.enumerate_epochs, self._handler.steps, model.train_function)
        self._handler.enumerate_epochs, self._handler.steps = self._epochs, self._steps
        model.train_function = self._train
        model._train_counter.assign(self.place.num_done)
        driver.leave_sharding()
        self._looping = ExitStack()
        self._looping.enter_context(driver.looping())

    def let_go(self) -> None:
        """Leave Keras as it was found."""
        self._looping.close()
        self._handler.enumerate_epochs, self._handler.steps, _ = self._own
        self._model.train_function = None

    def end(self) -> None:
        """Take the border of the last step, with its checkpoint."""
        if self.place.done_before:
            self._trainee.pass_over_fit()
        else:
            self.place.end()
            self._driver.cross_border()
            self._driver.save_at_end()
        self.let_go()

    def _epochs(self) -> Iterator[tuple[int, Any]]:
        handler, epochs = self._handler, self._own[0]
        # Here, because Keras's own backup sets both after the callbacks have begun.
        handler._initial_epoch, handler._initial_step = self.place.epoch, 0
        if handler._adapter.should_recreate_iterator():
            for _ in self.place.past_epochs:  # what an iterator draws when it begins is drawn again
                next(iter(handler._dataset), None)
        begun = False
        for epoch, iterator in epochs():
            step = self.place.first_step()
            handler._initial_step = step
            if not begun and not self._most_ahead:
                for _ in range(step if handler._adapter.should_recreate_iterator() else self.place.num_done):
                    next(iterator, None)
            begun = True
            yield epoch, iterator

    def _steps(self) -> Iterator[int]:
        self.place.remember()
        for step in self._own[1]():
            self.place.note(step)
            self._cross_border()
            yield step
        self._await_all()
        self.place.forget()

    def _cross_border(self) -> None:
        if not self._driver.border_wanted:
            return
        self._await_all()
        self._driver.cross_border()

    def _train(self, iterator: Any) -> Any:
        """Take one step as the strategy does; this stands for Keras's `train_function`."""
        with self._driver.waiting_for_others():
            logs = self._own[2](iterator)
        if not self._most_ahead:
            self._count(logs)
            return logs
        self._ahead.append(logs)
        while len(self._ahead) > self._most_ahead:
            self._await_one()
        return logs

    def _await_all(self) -> None:
        while self._ahead:
            self._await_one()

    def _await_one(self) -> None:
        with self._driver.waiting_for_others():
            logs = self._ahead.popleft().fetch()
        self._count(logs)

    def _count(self, logs: Any) -> None:
        loss = logs.get("loss", math.nan) if isinstance(logs, dict) else math.nan
        self._run.step(Applied(float(to_host(loss)) if not isinstance(loss, float) else loss))
