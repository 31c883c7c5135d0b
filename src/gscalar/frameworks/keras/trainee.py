"""What is trained: one Keras model, of either package, with its optimizer.

Gradients come as tensors. They go through the host only where something has to be done with them: a sum over ranks
or micro-steps, a weight, a clipped norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gscalar.base.errors import TrainingError, UserError
from gscalar.frameworks.keras.applied import Applied, Glance, check_plan
from gscalar.frameworks.keras.backend import Array, compiled, gradients_of, scope_of, to_host, to_tensor
from gscalar.frameworks.keras.capture import Differentiated, TrainStep, dense
from gscalar.frameworks.keras.flavors import Flavor
from gscalar.model.spans import CollectiveKind
from gscalar.model.spec import Plan
from gscalar.observation.collectives import GRADIENTS, CollectiveLedger
from gscalar.runtime.framework import Snapshot, Update
from gscalar.runtime.host_group import HostGroup


@dataclass(frozen=True, slots=True)
class Taped:
    """A loss of TensorFlow with the tape that saw it."""

    loss: Any
    tape: Any

    def __float__(self) -> float:
        return float(self.loss)


class KerasTrainee:
    """A model and the optimizer that moves it."""

    def __init__(self, objects: Sequence[Any], flavor: Flavor, group: HostGroup | None, world: int, plan: Plan) -> None:
        self.objects = tuple(objects)
        self.flavor = flavor
        (self.model,) = (item for item in objects if isinstance(item, flavor.model_class))
        given = [item for item in objects if isinstance(item, flavor.optimizer_classes)]
        self._given_optimizer = given[0] if given else None
        self.ledger: CollectiveLedger | None = None
        self.num_fits = 0
        self.kept: dict[str, Array] = {}  # what a fit's callbacks hold, such as the best weights so far
        self.variables: Sequence[Any] = self.model.trainable_variables
        self._group = group
        self._world = world
        self._border = True
        self._rate_seen = Glance(lambda: _rate_of(self.flavor, self.optimizer))
        self._gradients: list[Any] = []  # of the open step: tensors, arrays, or None
        self._applied: Applied | None = None  # the loss of the open step, where the optimizer has moved already
        self._plan = plan
        self._optimizer: Any = None  # that of `_base_lr`
        self._base_lr = 0.0
        self._restored: Snapshot | None = None
        self.before_training: Snapshot | None = None  # the same, until a fit of this process trains
        self._train_step: tuple[tuple[Any, ...], TrainStep] | None = None
        flavor.make_ready(self.model)
        self._apply: tuple[Any, Callable[..., Any]] | None = None
        self._meet_optimizer()

    @property
    def optimizer(self) -> Any:
        """The optimizer given to `prepare`, or that of the model, which compiling may exchange."""
        return self._given_optimizer if self._given_optimizer is not None else self.model.optimizer

    def _meet_optimizer(self) -> None:
        """Build the optimizer, and take the rate of one that was not seen before for the script's own."""
        optimizer = self.optimizer
        with scope_of(self.model):
            self.flavor.build_optimizer(optimizer, self.model.trainable_variables)
        if optimizer is self._optimizer:
            return
        if self._plan.schedule is not None and self.flavor.has_schedule(optimizer):
            raise UserError(
                code="schedule-twice",
                what="The optimizer has a learning-rate schedule, and the plan has one too.",
                value=type(optimizer).__name__,
                next_step="Keep one: remove plan.schedule from the job, or give the optimizer a number.",
            )
        self._optimizer, self._base_lr = optimizer, _rate_of(self.flavor, self.optimizer)

    def take_from_first(self, rank: int) -> None:
        """Give every rank the first one's variables: what was made before the seed was set differs."""
        assert self._group is not None
        variables = [*self.flavor.model_state(self.model), *self.flavor.optimizer_state(self.optimizer)]
        arrays = [to_host(variable) for variable in variables]
        payload = self._group.broadcast(b"".join(array.tobytes() for array in arrays) if rank == 0 else b"")
        if rank == 0:
            return
        begin = 0
        for variable, array in zip(variables, arrays, strict=True):
            taken = np.frombuffer(payload, array.dtype, array.size, begin).reshape(array.shape)
            variable.assign(taken)
            begin += array.nbytes

    def expect(self, *, border: bool) -> None:
        """Say whether the next backward ends the step."""
        self._border = border

    def evaluate(self, evaluating: bool) -> None:
        """Nothing waits for other ranks in a forward here."""

    def backward(self, loss: Any, weight: float, when_computed: Callable[[], None] | None = None) -> None:
        """Add the gradient of `weight * loss`, and average it over ranks at the border."""
        if isinstance(loss, Applied):
            if loss.lr is None:
                check_plan(self._plan)
            self._applied = loss
            if when_computed is not None:
                when_computed()
            return
        found = _differentiated(loss, self.variables)
        if when_computed is not None:
            when_computed()
        if weight != 1.0 or self._gradients or self._world > 1:
            found = [None if gradient is None else _weighed(gradient, weight) for gradient in found]
        if self._gradients:
            found = [_added(before, more) for before, more in zip(self._gradients, found, strict=True)]
        self._gradients = list(found)
        if self._border and self._world > 1:
            self._gradients = self._mean_over_ranks(self._gradients)

    @property
    def takes_whole_steps(self) -> bool:
        """Whether the next micro-step is a step by itself, and the compiled optimizer may move in it at once."""
        alone = self._world == 1 and self._border and not self._gradients
        return alone and self.optimizer is self.model.optimizer

    def _mean_over_ranks(self, gradients: list[Any]) -> list[Any]:
        assert self._group is not None
        arrays = [np.asarray(each) for each in gradients if each is not None]
        seen = None
        if self.ledger is not None:
            num_bytes = sum(array.nbytes for array in arrays)
            seen = self.ledger.ready(CollectiveKind.ALL_REDUCE, GRADIENTS, num_bytes)
        sums = iter(self._group.sum_arrays(arrays))
        if seen is not None:
            seen.done()
        return [None if each is None else next(sums) / self._world for each in gradients]

    def update(self, *, scale: float, clip_norm: float | None, lr_factor: float | None) -> Update:
        """Scale, clip, set the rate, move, and forget the gradient."""
        if self._applied is not None:
            known, self._applied = self._applied.lr, None
            return Update(lr=self._rate_seen() if known is None else float(to_host(known)), grad_norm=None)
        gradients, self._gradients = self._gradients, []
        norm = None
        if clip_norm is not None:
            norm = _norm(gradients) * scale
            if self.scales_losses:
                norm /= float(to_host(self.flavor.loss_scale(self.optimizer)))
            # A norm that is not finite must not hide: it scales by itself.
            scale *= min(1.0, clip_norm / (norm + 1e-6)) if np.isfinite(norm) else 1.0
            if self.scales_losses and not np.isfinite(norm):
                norm = None  # the optimizer passes over such a step, and lowers its scale
        if scale != 1.0:
            gradients = [None if each is None else _weighed(each, scale) for each in gradients]
        if lr_factor is not None:
            self.optimizer.learning_rate = self._base_lr * lr_factor
        lr = _rate_of(self.flavor, self.optimizer)
        pairs = [(each, variable) for each, variable in zip(gradients, self.variables, strict=True) if each is not None]
        if pairs:
            self._move([_as_tensor(each) for each, _ in pairs], [variable for _, variable in pairs])
        return Update(lr=lr, grad_norm=norm)

    @property
    def scales_losses(self) -> bool:
        """Whether the optimizer scales losses up for float16, so that gradients may overflow now and then."""
        return self.flavor.loss_scale(self.optimizer) is not None

    def _move(self, gradients: list[Any], variables: list[Any]) -> None:
        optimizer = self.optimizer
        key = (optimizer, *variables)
        if self._apply is None or not _same(self._apply[0], key):
            touched = [*variables, *self.flavor.optimizer_state(optimizer)]
            move = compiled(lambda found: self.flavor.move(optimizer, found, variables), self.model, lambda: touched)
            self._apply = (key, move)
        self._apply[1](gradients)

    def weights_by_name(self) -> dict[str, Any]:
        """Return the weights by names that are the same in every process."""
        return _named("model", self.model.weights)

    def weights_by_path(self) -> list[tuple[str, Array]]:
        """Return the weights by the paths that people know."""
        return [(_path(weight), to_host(weight)) for weight in self.model.weights]

    def gradients_by_path(self) -> list[tuple[str, Array]]:
        """Return the gradients of the open step."""
        pairs = zip(self.variables, self._gradients, strict=False)
        return [(_path(variable), to_host(gradient)) for variable, gradient in pairs if gradient is not None]

    def snapshot(self) -> Snapshot:
        """Return host copies of the model's variables, seeds and metrics included, and of the optimizer's."""
        arrays = {name: np.array(array) for name, array in self.kept.items()}
        for kind, variables in self._kinds().items():
            for name, variable in _named(kind, variables).items():
                arrays[name] = np.array(to_host(variable))
        return Snapshot(arrays=arrays, values={"fit": self.num_fits})

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back. The optimizer's part waits for its fit, the metrics' for an epoch's begin."""
        self._assign("model", self.flavor.model_state(self.model), snapshot)
        self.kept = {name: array for name, array in snapshot.arrays.items() if name.startswith("callbacks/")}
        self._restored = self.before_training = snapshot
        self._restore_optimizer()

    def train_step(self) -> TrainStep:
        """Return the model's training step; a new one where the model was compiled anew."""
        key = self.flavor.compiled_parts(self.model)
        if self._train_step is None or not _same(self._train_step[0], key):
            self._train_step = (key, TrainStep(self.model, self.flavor))
        return self._train_step[1]

    def begin_fit(self) -> int:
        """Count one more fit, whose optimizer may be another one; return its number."""
        self.num_fits += 1
        self._meet_optimizer()
        self._restore_optimizer()
        return self.num_fits

    def pass_over_fit(self) -> None:
        """Put the model back after a fit that was done before: an optimizer with averages ends with setting them."""
        if self.before_training is not None:
            self._assign("model", self.flavor.model_state(self.model), self.before_training)

    def _restore_optimizer(self) -> None:
        """Put the optimizer of the restored snapshot back, in the fit in which it was taken."""
        snapshot = self._restored
        if snapshot is None or snapshot.values["fit"] != self.num_fits:
            return
        self._assign("optimizer", self.flavor.optimizer_state(self.optimizer), snapshot)
        metrics = {name: array for name, array in snapshot.arrays.items() if name.startswith("metrics/")}
        self._restored = Snapshot(arrays=metrics, values=snapshot.values) if metrics else None

    @property
    def restores_metrics(self) -> bool:
        """Whether metrics of this fit are still to be put back."""
        return self._restored is not None and self._restored.values["fit"] == self.num_fits

    def restore_metrics(self) -> None:
        """Put back what the restored snapshot has of the metrics; the snapshot is done with."""
        snapshot, self._restored = self._restored, None
        if snapshot is not None:
            self._assign("metrics", self.flavor.metric_state(self.model), snapshot)

    def _kinds(self) -> dict[str, Sequence[Any]]:
        return {
            "model": self.flavor.model_state(self.model),
            "optimizer": self.flavor.optimizer_state(self.optimizer),
            "metrics": self.flavor.metric_state(self.model),
        }

    def _assign(self, kind: str, variables: Sequence[Any], snapshot: Snapshot) -> None:
        stored = {name for name in snapshot.arrays if name.startswith(f"{kind}/")}
        named = _named(kind, variables)
        if stored != named.keys():
            raise _mismatch(f"it has {len(stored)} {kind} variables and the script has {len(named)}, or other ones")
        for name, variable in named.items():
            there, here = tuple(snapshot.arrays[name].shape), tuple(variable.shape)
            if there != here:
                raise _mismatch(f"{_path(variable)} has shape {here} and had {there}")
        for name, variable in named.items():
            variable.assign(snapshot.arrays[name])


def _differentiated(loss: Any, variables: Sequence[Any]) -> Sequence[Any]:
    if isinstance(loss, Differentiated):
        return loss.gradients
    if isinstance(loss, Taped):
        return [dense(gradient) for gradient in loss.tape.gradient(loss.loss, list(variables))]
    return gradients_of(loss, variables)


def _rate_of(flavor: Flavor, optimizer: Any) -> float:
    return float(to_host(flavor.rate(optimizer)))


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _mismatch(text: str) -> TrainingError:
    return TrainingError(
        code="state-mismatch",
        what=f"The checkpoint does not fit this model: {text}.",
        next_step="Resume with the script that wrote it, or start a new run.",
    )


def _named(kind: str, variables: Sequence[Any]) -> dict[str, Any]:
    """Return variables by names that are the same in every process.

    Keras numbers layers by how many the process has made before, so a path is none; the place in the model is. An
    optimizer's variables carry the layers' numbers in their names.
    """
    if kind == "optimizer":
        return {f"{kind}/{index:05d}": variable for index, variable in enumerate(variables)}
    return {f"{kind}/{index:05d}.{_own_name(variable)}": variable for index, variable in enumerate(variables)}


def _path(variable: Any) -> str:
    """Return the name by which people know a variable: with its layer's."""
    return str(getattr(variable, "path", variable.name))


def _own_name(variable: Any) -> str:
    """Return a variable's name without its layer's, which legacy Keras puts before it."""
    return str(variable.name).rpartition("/")[2].removesuffix(":0")


def _weighed(gradient: Any, weight: float) -> Array:
    array = to_host(gradient)
    if array.dtype.kind != "f":  # bfloat16 and its like are no numbers to NumPy's sums
        array = array.astype(np.float32)
    product: Array = array * array.dtype.type(weight)
    return product


def _added(before: Any, more: Any) -> Any:
    if before is None or more is None:
        return more if before is None else before
    return to_host(before) + to_host(more)


def _norm(gradients: Sequence[Any]) -> float:
    squares = [float(np.sum(np.square(to_host(each), dtype=np.float64))) for each in gradients if each is not None]
    return float(np.sqrt(sum(squares)))


def _as_tensor(gradient: Any) -> Any:
    return to_tensor(gradient) if isinstance(gradient, np.ndarray) else gradient
