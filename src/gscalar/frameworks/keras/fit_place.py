"""Where a call of `fit` stands, in the run's state: how many fits were done, the epoch, and the batch in it.

With it goes what the script's other callbacks remember in plain attributes and lists of arrays: the patience and the
best weights of EarlyStopping, the history.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.flavors import choose
from gscalar.frameworks.keras.trainee import KerasTrainee
from gscalar.runtime.driving import Driver
from gscalar.runtime.session import Run

_STATE: Final = "keras"
_PLAIN: Final = (bool, int, float, str, type(None), np.bool_, np.integer, np.floating)


def adopt(run: Run, driver: Driver, model: Any) -> KerasTrainee:
    """Return what the run trains: this model, which is prepared where the script has not done so.

    Raises:
        UserError: `prepare-twice`, `not-distributed`.
    """
    if driver.trainee is None:
        _prepare(run, model)
    trainee = driver.trainee
    assert isinstance(trainee, KerasTrainee)
    if trainee.model is not model:
        raise UserError(
            code="prepare-twice",
            what="This run trains another model already.",
            value=model.name,
            next_step="Train each model in a run of its own.",
        )
    return trainee


def _prepare(run: Run, model: Any) -> None:
    try:
        run.prepare(model)
    except UserError as error:
        if error.code != "not-distributed":
            raise
        # The general advice is for loops too.
        raise UserError(
            code=error.code, what=error.what, value=error.value, next_step=servers_advice(choose([model]).name)
        ) from None


def servers_advice(package: str) -> str:
    """Return what to do about a `fit` of this Keras package in a job with parameter servers."""
    if package == "tf_keras":
        return (
            "Call strategy = gscalar.keras.distribute() right after gscalar.init and build and compile the model in "
            "strategy.scope(), or set plan.sync.kind=allreduce."
        )
    return (
        "Set plan.sync.kind=allreduce: Keras 3's model.fit does not work with parameter servers. tf_keras's does "
        "(TF_USE_LEGACY_KERAS=1), in the scope of gscalar.keras.distribute()."
    )


class FitPlace:
    """The place of one fit, from where the run stands. `others` are the script's callbacks."""

    def __init__(self, run: Run, trainee: KerasTrainee, first: int, last: int) -> None:
        self._run = run
        self._trainee = trainee
        self.others: list[Any] = []
        self._number = trainee.begin_fit()
        place = run.state.get(_STATE) or {"fit": 1, "epoch": None, "step": 0, "began": 0, "callbacks": []}
        self.done_before = place["fit"] > self._number
        resumed = place["fit"] == self._number
        self.began: int = place["began"] if resumed else run.state.step
        self.epoch: int = first if not resumed or place["epoch"] is None else place["epoch"]
        self.past_epochs = range(first, self.epoch)  # those that this fit did before it was resumed
        self._step: int = place["step"] if resumed else 0
        self._remembered: list[dict[str, Any]] = place["callbacks"] if resumed else []
        self._baseline: list[dict[str, Any]] = []
        if self.done_before:
            self.epoch, self.past_epochs = last, range(0)
        else:
            trainee.before_training = None

    @property
    def num_done(self) -> int:
        """The optimizer steps that this fit has taken."""
        return 0 if self.done_before else self._run.state.step - self.began

    def first_step(self) -> int:
        """Return the batch at which the epoch that begins goes on: 0 but for the first epoch after a resume."""
        step, self._step = self._step, 0
        return step

    def begin_epoch(self, epoch: int) -> None:
        """Put back what the other callbacks remembered, in the first epoch of this process."""
        self.epoch = epoch
        if not self._baseline:
            self._baseline = [_plain_values(each) for each in self.others]
        for index, (callback, remembered) in enumerate(zip(self.others, self._remembered, strict=False)):
            if remembered["kind"] == type(callback).__name__:
                vars(callback).update(remembered["values"])
                for name, count in remembered["arrays"].items():
                    kept = [self._trainee.kept[f"callbacks/{index}.{name}/{number}"] for number in range(count)]
                    setattr(callback, name, kept)
        self._remembered = []

    def remember(self) -> None:
        """Take what the other callbacks have come to: what is plain and has changed, and lists of arrays."""
        self._remembered, self._trainee.kept = [], {}
        for index, callback in enumerate(self.others):
            before = self._baseline[index] if index < len(self._baseline) else {}
            values = {name: value for name, value in _plain_values(callback).items() if before.get(name, ...) != value}
            arrays = {name: value for name, value in vars(callback).items() if _is_arrays(value)}
            for name, those in arrays.items():
                for number, array in enumerate(those):
                    self._trainee.kept[f"callbacks/{index}.{name}/{number}"] = np.array(array)
            counts = {name: len(those) for name, those in arrays.items()}
            self._remembered.append({"kind": type(callback).__name__, "values": values, "arrays": counts})

    def forget(self) -> None:
        """Let go of it: the epoch is over."""
        self._remembered = []

    def note(self, step: int) -> None:
        """Write into the run's state that this batch of the epoch comes next."""
        self._run.state[_STATE] = {
            "fit": self._number, "epoch": self.epoch, "step": step, "began": self.began, "callbacks": self._remembered,
        }  # fmt: skip

    def end(self) -> None:
        """Write into the run's state that the fit is over, and the next one comes."""
        self._trainee.kept = {}
        self._run.state[_STATE] = {
            "fit": self._number + 1, "epoch": None, "step": 0, "began": self._run.state.step, "callbacks": []
        }  # fmt: skip


def _plain_values(callback: Any) -> dict[str, Any]:
    """Return what a callback remembers in attributes of plain numbers, texts and lists of them."""
    skipped = ("_model", "params", "model")
    return {
        name: _as_plain(value) for name, value in vars(callback).items() if name not in skipped and _is_plain(value)
    }


def _is_arrays(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, np.ndarray) for item in value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    return isinstance(value, _PLAIN)


def _as_plain(value: Any) -> Any:
    """Return a plain value with NumPy's numbers, such as a rate that was logged, as Python's."""
    if isinstance(value, list):
        return [_as_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_plain(item) for name, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value
