"""PyTorch for the runtime: what it means to connect, adopt and feed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gscalar.base.errors import UserError
from gscalar.frameworks.torch.data import FeedPlace, LoaderFeed, is_loader
from gscalar.frameworks.torch.group import HostGroup, SingleGroup
from gscalar.frameworks.torch.randomness import random_state, seed_all, set_random_state
from gscalar.frameworks.torch.replica import route
from gscalar.frameworks.torch.storage import read_arrays, weights_digest, write_arrays
from gscalar.frameworks.torch.streams import StreamFeed
from gscalar.frameworks.torch.trainee import TorchTrainee
from gscalar.model.spec import Plan
from gscalar.observation.collectives import CollectiveLedger
from gscalar.runtime.framework import Feed, Group, Tools
from gscalar.runtime.launch import Launch

_TRAINED = (nn.Module, Optimizer, LRScheduler, ReduceLROnPlateau)
# What the backends say when another rank is gone: our failure is then a consequence of theirs.
_PEER_LOSS = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "gloo/transport",
    "nccl communicator was aborted", "remote process has terminated", "socket timeout",
)  # fmt: skip


class TorchFramework:
    """PyTorch, on the CPU or one CUDA device a worker."""

    name = "torch"

    def connect(self, launch: Launch, timeout_s: float) -> Group:
        """Return the group of this launch."""
        return HostGroup(launch, timeout_s) if launch.world > 1 else SingleGroup()

    def adopt(self, objects: Sequence[Any], plan: Plan, launch: Launch) -> tuple[TorchTrainee, Mapping[str, Any]]:
        """Move models to the device, route their forwards, and keep optimizers and schedules with them.

        Raises:
            UserError: `unsupported-object`, `schedule-twice`.
        """
        _check(objects, plan)
        device = _device(launch)
        models = [item for item in objects if isinstance(item, nn.Module)]
        for model in models:
            if device.type != "cpu":
                model.to(device)
        routed = [route(model, plan, world=launch.world, device=device) for model in models]
        trainee = TorchTrainee(objects, routed)
        facts = {
            "framework": f"torch {torch.__version__}",
            "device": str(device),
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for model in models for p in model.parameters()),
            "trainable_parameters": sum(p.numel() for model in models for p in model.parameters() if p.requires_grad),
            "models": [type(model).__name__ for model in models],
            "optimizers": [type(optimizer).__name__ for optimizer in trainee.optimizers],
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
        """Return the feed of a loader or of any iterable of batches."""
        place = FeedPlace(launch, seed, _device(launch), number, global_batch)
        return LoaderFeed(data, place) if is_loader(data) else StreamFeed(data, place, sharded)

    def tools(self) -> Tools:
        """Return the small functions."""
        return _TOOLS


def _check(objects: Sequence[Any], plan: Plan) -> None:
    for item in objects:
        if not isinstance(item, _TRAINED):
            raise UserError(
                code="unsupported-object",
                what=f"run.prepare does not know what to do with a {type(item).__module__}.{type(item).__name__}.",
                next_step="Give torch modules, optimizers, learning-rate schedulers and data loaders.",
            )
    schedules = [item for item in objects if isinstance(item, LRScheduler | ReduceLROnPlateau)]
    if schedules and plan.schedule is not None:
        raise UserError(
            code="schedule-twice",
            what="The script gives run.prepare a schedule, and the plan has one too.",
            value=type(schedules[0]).__name__,
            next_step="Keep one: remove plan.schedule from the job, or the scheduler from the script.",
        )


def _is_data(item: Any) -> bool:
    return not isinstance(item, _TRAINED) and hasattr(item, "__iter__")


def _device(launch: Launch) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", launch.local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def _scalar(value: Any) -> Callable[[], float]:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise TypeError(f"a number is wanted, not a tensor of shape {tuple(value.shape)}")
        if value.device.type != "cpu":
            host = torch.empty((), dtype=torch.float64, pin_memory=True)
            host.copy_(value.detach().reshape(()), non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            return lambda: _wait_for(ready, host)
    number = float(value.detach() if isinstance(value, torch.Tensor) else value)
    return lambda: number


def _wait_for(ready: Any, host: torch.Tensor) -> float:
    ready.synchronize()
    return float(host)


def _is_peer_loss(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _PEER_LOSS)


def _watch_compilation(beat: Callable[[], None]) -> None:
    """Call `beat` when a graph begins and ends to compile, where the script uses torch.compile."""
    compiler = sys.modules.get("torch._dynamo.callback")
    if compiler is not None:
        compiler.on_compile_start(lambda *args: beat())
        compiler.on_compile_end(lambda *args: beat())


def _watch_collectives(trainee: Any, ledger: CollectiveLedger) -> None:
    for routed in trainee.routed:
        routed.exchange.ledger = ledger


def _first_nonfinite(trainee: Any) -> str:
    named = [(name, parameter) for model in trainee.models for name, parameter in model.named_parameters()]
    # Parameters first: one that is not finite makes all gradients so, those before it too.
    gradients = [(f"{name}.grad", parameter.grad) for name, parameter in named if parameter.grad is not None]
    for name, value in [*named, *gradients]:
        if not bool(torch.isfinite(value).all()):
            return str(name)
    return ""


def _gradients_finite(trainee: Any) -> bool:
    gradients = [p.grad for model in trainee.models for p in model.parameters() if p.grad is not None]
    return not gradients or bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients)))


def _digest(trainee: Any) -> str:
    named = [
        (f"model{index}/{name}" if len(trainee.models) > 1 else name, parameter)
        for index, model in enumerate(trainee.models)
        for name, parameter in model.named_parameters()
    ]
    return weights_digest(named)


_TOOLS = Tools(
    is_data=_is_data,
    seed=seed_all,
    random_state=random_state,
    set_random_state=set_random_state,
    scalar=_scalar,
    is_peer_loss=_is_peer_loss,
    first_nonfinite=_first_nonfinite,
    gradients_finite=_gradients_finite,
    weights_digest=_digest,
    write_arrays=write_arrays,
    read_arrays=read_arrays,
    device=_device,
    watch_compilation=_watch_compilation,
    watch_collectives=_watch_collectives,
)
