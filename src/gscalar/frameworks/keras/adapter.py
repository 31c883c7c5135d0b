"""Keras for the runtime: what it means to connect, adopt and feed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gscalar.base.errors import UserError
from gscalar.frameworks.keras.applied import Applied
from gscalar.frameworks.keras.backend import backend_version, check_backend, to_host
from gscalar.frameworks.keras.capture import Differentiated
from gscalar.frameworks.keras.data import Arrays, BatchList, FeedPlace, InFit, ListedFeed, Stream, StreamFeed
from gscalar.frameworks.keras.flavors import Flavor, choose, current, loaded
from gscalar.frameworks.keras.randomness import random_state, seed_all, set_random_state
from gscalar.frameworks.keras.storage import read_arrays, weights_digest, write_arrays
from gscalar.frameworks.keras.trainee import KerasTrainee, Taped
from gscalar.model.spec import Plan
from gscalar.observation.collectives import CollectiveLedger
from gscalar.runtime.framework import Feed, Group, Tools
from gscalar.runtime.host_group import HostGroup
from gscalar.runtime.launch import Launch


class KerasFramework:
    """Keras 3 on TensorFlow, PyTorch or JAX, or legacy Keras; one replica a worker."""

    name = "keras"

    def __init__(self) -> None:
        self._group: HostGroup | None = None
        self.when_adopted: Callable[[Any], None] = lambda model: None

    def connect(self, launch: Launch, timeout_s: float) -> Group:
        """Return the group of this launch."""
        self._group = HostGroup(launch, timeout_s)
        return self._group

    def adopt(self, objects: Sequence[Any], plan: Plan, launch: Launch) -> tuple[KerasTrainee, Mapping[str, Any]]:
        """Keep a built model, with its compiled optimizer or one of its own, and build the optimizer.

        Raises:
            UserError: `unsupported-object`, `model-not-built`, `backend-unsupported`, `schedule-twice`,
                `strategy-unsupported`.
        """
        flavor = choose(objects)
        check_backend()
        _check(objects, flavor)
        trainee = KerasTrainee(objects, flavor, self._group, launch.world, plan)
        if launch.world > 1:
            trainee.take_from_first(launch.rank)
        model = trainee.model
        self.when_adopted(model)
        facts = {
            "framework": f"{flavor.name} {flavor.version()}",
            "backend": backend_version(),
            "parameters": sum(math.prod(weight.shape) for weight in model.weights),
            "trainable_parameters": sum(math.prod(weight.shape) for weight in model.trainable_weights),
            "models": [type(model).__name__],
            "optimizers": [type(trainee.optimizer).__name__],
        }
        return trainee, facts

    def feed(
        self,
        data: Any,
        launch: Launch,
        seed: int,
        *,
        sharded: bool = False,
        number: int = 0,
        global_batch: int | None = None,
    ) -> Feed:
        """Return the feed of arrays, a `PyDataset`, a `tf.data.Dataset` or any iterable of batches.

        Raises:
            UserError: `unsupported-object`, for data that shards itself.
        """
        if sharded:
            raise UserError(
                code="unsupported-object",
                what="Data that shards itself over the workers is not supported with Keras.",
                value=type(data).__name__,
                next_step="Give every worker the whole data, without sharded=True; each takes its share of it.",
            )
        place = FeedPlace(launch, seed, number, global_batch)
        in_fit = isinstance(data, InFit)
        known = data.data if in_fit else _recognised(data)
        feed = StreamFeed(known, place, in_fit) if isinstance(known, Stream) else ListedFeed(known, place, in_fit)
        if in_fit:
            data.feed = feed
        return feed

    def tools(self) -> Tools:
        """Return the small functions."""
        return _TOOLS


def _check(objects: Sequence[Any], flavor: Flavor) -> None:
    for item in objects:
        if not isinstance(item, (flavor.model_class, *flavor.optimizer_classes)):
            raise UserError(
                code="unsupported-object",
                what=f"run.prepare does not know what to do with a {type(item).__module__}.{type(item).__name__}.",
                next_step="Give one Keras model, its optimizer where it is not compiled, and data.",
            )
    models = [item for item in objects if isinstance(item, flavor.model_class)]
    optimizers = [item for item in objects if isinstance(item, flavor.optimizer_classes)]
    if len(models) != 1 or len(optimizers) > 1:
        raise UserError(
            code="unsupported-object",
            what="A run trains one Keras model with one optimizer.",
            value=f"{len(models)} models and {len(optimizers)} optimizers",
            next_step=f"Put several models into one {flavor.name}.Model, or train them in runs of their own.",
        )
    model = models[0]
    if not model.built or not model.variables:
        raise UserError(
            code="model-not-built",
            what="The model has no variables yet, so nothing can be restored into it or exchanged.",
            value=type(model).__name__,
            next_step="Call it on one batch first, or model.build(input_shape).",
        )
    if not optimizers and getattr(model, "optimizer", None) is None:
        raise UserError(
            code="unsupported-object",
            what="The model has no optimizer.",
            value=type(model).__name__,
            next_step="Call model.compile(optimizer=...), or give run.prepare the optimizer too.",
        )


def _recognised(data: Any) -> Arrays | BatchList | Stream:
    if isinstance(data, Arrays | BatchList | Stream):
        return data
    if isinstance(data, current().list_class):
        num_batches = data.num_batches if hasattr(data, "num_batches") else len(data)
        if num_batches is not None:
            return BatchList(data.__getitem__, num_batches)
    return Stream(lambda: iter(data), type(data).__name__, draws=not hasattr(data, "cardinality"))


def _is_data(item: Any) -> bool:
    flavors = loaded()
    if any(isinstance(item, (each.model_class, *each.optimizer_classes)) for each in flavors):
        return False
    known = (Arrays, BatchList, InFit, Stream, Iterable, Iterator)
    return isinstance(item, (*known, *(each.list_class for each in flavors)))


def _scalar(value: Any) -> Callable[[], float]:
    if isinstance(value, Applied | Differentiated | Taped):
        value = value.loss
    if isinstance(value, str):
        raise TypeError(f"a number is wanted, not {value!r}")
    array = np.asarray(value) if isinstance(value, int | float | np.ndarray | np.generic) else to_host(value)
    if array.size != 1:
        raise TypeError(f"a number is wanted, not an array of shape {array.shape}")
    number = float(array.reshape(()))
    return lambda: number


def _first_nonfinite(trainee: Any) -> str:
    named = trainee.weights_by_path() + [(f"{name}.grad", found) for name, found in trainee.gradients_by_path()]
    return next((name for name, array in named if array.dtype.kind == "f" and not np.isfinite(array).all()), "")


def _gradients_finite(trainee: Any) -> bool:
    # Where losses are scaled the optimizer looks itself, and passes over such a step.
    found = [] if trainee.scales_losses else trainee.gradients_by_path()
    return all(bool(np.isfinite(gradient).all()) for _, gradient in found)


def _digest(trainee: Any) -> str:
    return weights_digest((name, to_host(weight)) for name, weight in trainee.weights_by_name().items())


def _watch_collectives(trainee: Any, ledger: CollectiveLedger) -> None:
    trainee.ledger = ledger


_TOOLS = Tools(
    is_data=_is_data,
    seed=seed_all,
    random_state=random_state,
    set_random_state=set_random_state,
    scalar=_scalar,
    is_peer_loss=lambda error: isinstance(error, ConnectionError),
    first_nonfinite=_first_nonfinite,
    gradients_finite=_gradients_finite,
    weights_digest=_digest,
    write_arrays=write_arrays,
    read_arrays=read_arrays,
    device=lambda launch: None,
    watch_compilation=lambda beat: None,
    watch_collectives=_watch_collectives,
)
