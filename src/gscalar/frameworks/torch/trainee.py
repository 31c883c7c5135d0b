"""What is trained: the adopted models, optimizers and schedule objects of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gscalar.frameworks.torch.replica import Once, RoutedForward
from gscalar.frameworks.torch.state import (
    from_plain,
    mismatch,
    restore_model,
    restore_optimizer,
    snapshot_model,
    snapshot_optimizer,
    to_plain,
)
from gscalar.runtime.framework import Snapshot, Update


class TorchTrainee:
    """Models whose forward is routed, with the optimizers that move them."""

    def __init__(self, objects: Sequence[Any], routed: Sequence[RoutedForward]) -> None:
        self.objects = tuple(objects)
        self.models = [item for item in objects if isinstance(item, nn.Module)]
        self.optimizers = [item for item in objects if isinstance(item, Optimizer)]
        self.schedules = [item for item in objects if isinstance(item, LRScheduler | ReduceLROnPlateau)]
        self.routed = list(routed)
        self._share = min((each.share for each in routed), default=1.0)
        self._exchanges = [each.exchange for each in routed if each.share != 1.0]
        parameters = [p for optimizer in self.optimizers for g in optimizer.param_groups for p in g["params"]]
        # Two optimizers may share a parameter; its gradient is scaled once.
        self._parameters = list({id(parameter): parameter for parameter in parameters}.values())
        self._base_lr = [[float(g["lr"]) for g in optimizer.param_groups] for optimizer in self.optimizers]

    def expect(self, *, border: bool) -> None:
        """Exchange gradients only in the backward that ends a step."""
        for routed in self.routed:
            routed.expect(border)

    def evaluate(self, evaluating: bool) -> None:
        """Keep gradient exchange out of evaluation."""
        for routed in self.routed:
            routed.evaluating = evaluating

    def backward(self, loss: torch.Tensor, weight: float, when_computed: Callable[[], None] | None = None) -> None:
        """Add the gradient of `weight * loss`."""
        factor = weight * self._share
        weighed = loss if factor == 1.0 else loss * factor
        call = Once(when_computed)
        if not self._exchanges:
            call()
        for exchange in self._exchanges:
            exchange.when_computed, exchange.divides = call, False
        try:
            weighed.backward()
        finally:
            for exchange in self._exchanges:
                exchange.when_computed, exchange.divides = None, True
        call()  # where no bucket was exchanged, such as a loss that touches no parameter

    @torch.no_grad()
    def update(self, *, scale: float, clip_norm: float | None, lr_factor: float | None) -> Update:
        """Scale, clip, set the rate, move, and zero the gradient."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = self._clip(gradients, scale, clip_norm)
        if lr_factor is not None:
            for optimizer, rates in zip(self.optimizers, self._base_lr, strict=True):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    _set_rate(group, rate * lr_factor)
        lr = float(self.optimizers[0].param_groups[0]["lr"]) if self.optimizers else 0.0
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self.schedules:
            schedule.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return Update(lr=lr, grad_norm=norm)

    def _clip(self, gradients: list[torch.Tensor], scale: float, clip_norm: float | None) -> float | None:
        if clip_norm is None or not gradients:
            if scale != 1.0 and gradients:
                torch._foreach_mul_(gradients, scale)
            return None
        norm = float(torch.nn.utils.get_total_norm(gradients)) * scale
        # Scaling and clipping are one pass. A norm that is not finite must not hide: it scales by itself.
        factor = scale * min(1.0, clip_norm / (norm + 1e-6)) if norm == norm else scale
        if factor != 1.0:
            torch._foreach_mul_(gradients, factor)
        return norm

    def snapshot(self) -> Snapshot:
        """Return host copies of all models, optimizers and schedules."""
        arrays: dict[str, Any] = {}
        values: dict[str, Any] = {"models": [], "optimizers": [], "schedules": []}
        for index, model in enumerate(self.models):
            values["models"].append(snapshot_model(model, f"model{index}", arrays))
        for index, optimizer in enumerate(self.optimizers):
            values["optimizers"].append(snapshot_optimizer(optimizer, self.models, f"optimizer{index}", arrays))
        for schedule in self.schedules:
            values["schedules"].append(_plain_schedule(schedule.state_dict()))
        return Snapshot(arrays=arrays, values=values)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back into the objects."""
        for kind, own in (("models", self.models), ("optimizers", self.optimizers), ("schedules", self.schedules)):
            saved = len(snapshot.values[kind])
            if saved != len(own):
                raise mismatch(kind, f"it has {saved} and run.prepare was given {len(own)}")
        for index, model in enumerate(self.models):
            restore_model(model, f"model{index}", snapshot)
        for index, optimizer in enumerate(self.optimizers):
            restore_optimizer(optimizer, self.models, index, snapshot)
        for schedule, plain in zip(self.schedules, snapshot.values["schedules"], strict=True):
            schedule.load_state_dict(from_plain(plain))


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):  # capturable optimizers keep the rate on the device
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _plain_schedule(state: dict[str, Any]) -> dict[str, Any]:
    # LambdaLR and its like keep functions in their state; the script makes those anew.
    return {name: to_plain(value, f"schedule, {name}") for name, value in state.items() if not callable(value)}
