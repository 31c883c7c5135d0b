"""A model that stays the user's own, and yet exchanges gradients and computes in bf16.

The user's module is not wrapped: its class, attributes and `state_dict` keys stay. Only its
`forward` is routed, by an attribute of the instance: through DistributedDataParallel while a
training forward runs on several ranks, under autocast where the plan says bf16, and straight to the
class's own forward in evaluation, so that ranks may evaluate different numbers of batches.

Bitwise resume needs one layout of gradient buckets for the whole life of a run. DDP starts with one
layout and builds another one after its first backward, in the order in which gradients became
ready; with more than two ranks the order of summation follows the layout, so a run that restarts
sums its first step differently. `_settle_buckets` therefore runs one backward of zeros before
training, on a fresh start and on every resume: it makes gradients ready in reverse order of
registration, DDP rebuilds its buckets from that, and never again.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gscalar.model.spans import CollectiveKind
from gscalar.model.spec import AllReduce, Plan
from gscalar.observation.collectives import GRADIENTS, CollectiveLedger


class RoutedForward:
    """The `forward` of an adopted model."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        self.model = model
        self.precision = precision
        self.device = device
        self.own: Callable[..., Any] = model.forward
        self.ddp: DistributedDataParallel | None = None
        self.exchange = Exchange()
        self.share = 1.0  # of its own loss that a rank adds to the mean over ranks; 1 where DDP divides
        self.evaluating = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        exchange = self.ddp is not None and not self.evaluating and torch.is_grad_enabled()
        forward = self.ddp if exchange and self.ddp is not None else self.own
        if self.precision == "fp32":
            return forward(*args, **kwargs)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            result = forward(*args, **kwargs)
        return _as_float32(result)

    def expect(self, border: bool) -> None:
        """Say whether the next backward ends the step; DDP reads this in its forward."""
        if self.ddp is not None:
            self.ddp.require_backward_grad_sync = border

    # A copied or pickled model (an EMA, torch.save of a whole module) is a plain model again: its
    # forward must not lead into this one's gradient exchange.
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self.model), self.model)
        return types.MethodType(type(self.model).forward, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        # Asked while the model is being loaded, before it has attributes: this gives its class's forward.
        return getattr, (self.model, "forward")


class Once:
    """Calls a function, where there is one, the first time that it is called."""

    def __init__(self, function: Callable[[], None] | None) -> None:
        self._function = function

    def __call__(self) -> None:
        function, self._function = self._function, None
        if function is not None:
            function()


class Exchange:
    """How DDP adds a bucket of gradients up over the ranks, seen by a ledger.

    The ledger only notes times; the future that DDP waits for is that of the collective. It is a sum: DDP leaves
    the division to a hook, and dividing the loss (`RoutedForward.share`) saves a pass over all gradients. A backward
    that the script calls by itself has the plain loss, and its sum is divided.
    """

    def __init__(self) -> None:
        self.ledger: CollectiveLedger | None = None
        self.when_computed: Callable[[], None] | None = None  # called with the last bucket
        self.divides = True  # the sum, by the ranks; not where the loss is divided

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        seen = None
        if self.ledger is not None:
            num_bytes = buffer.numel() * buffer.element_size()
            seen = self.ledger.ready(CollectiveKind.ALL_REDUCE, GRADIENTS, num_bytes)
        group = dist.group.WORLD
        assert group is not None
        # Not dist.all_reduce: its checks and its logging cost a tenth of a millisecond a bucket.
        work = group.allreduce([buffer])
        divisor = group.size() if self.divides else 1
        if self.when_computed is not None and bucket.is_last():
            self.when_computed()

        def over(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            if seen is not None:
                seen.done()
            reduced: torch.Tensor = future.value()[0]
            return reduced.div_(divisor) if divisor > 1 else reduced

        summed: torch.futures.Future[torch.Tensor] = work.get_future().then(over)
        return summed


class _Replica(nn.Module):
    """What DDP sees: the parameters of the model, and its own forward."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.run: Callable[..., Any] = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def route(model: nn.Module, plan: Plan, *, world: int, device: torch.device) -> RoutedForward:
    """Return the routed forward of the model, installed on it."""
    routed = RoutedForward(model, plan.precision, device)
    trainable = any(parameter.requires_grad for parameter in model.parameters())
    if world > 1 and trainable:
        assert isinstance(plan.sync, AllReduce), plan.sync  # other kinds do not come here
        replica = _Replica(model, routed.own)
        # Found by id, not by position: a CPU model must not be given device ids.
        ids = None if device.type == "cpu" else [device]
        routed.ddp = DistributedDataParallel(
            replica,
            device_ids=ids,
            find_unused_parameters=plan.sync.unused_parameters,
            gradient_as_bucket_view=True,
        )
        if device.type == "cpu":
            # On a device a collective's end is an event in its stream, which no callback on the host sees.
            # A lambda, because DDP reads a hook's annotations and knows no postponed ones.
            routed.ddp.register_comm_hook(None, lambda state, bucket: routed.exchange(bucket))
            routed.share = 1 / world
        if not plan.sync.unused_parameters:
            _settle_buckets(routed.ddp, replica)
    model.forward = routed
    return routed


def _settle_buckets(ddp: DistributedDataParallel, replica: _Replica) -> None:
    parameters = [parameter for parameter in replica.model.parameters() if parameter.requires_grad]

    def zeros() -> torch.Tensor:
        total = torch.zeros((), device=parameters[0].device)
        # Autograd runs the newest node first, so the last registered gradient is ready first.
        for parameter in parameters:
            total = total + (parameter.reshape(-1)[:1].sum() * 0.0).float()
        return total

    own, replica.run = replica.run, zeros
    try:
        # The layout is rebuilt at the beginning of the second forward. That forward needs its backward
        # too, or the reducer would exchange in the next one, whatever it is told.
        for _ in range(2):
            ddp().backward()
    finally:
        replica.run = own
    for parameter in parameters:
        parameter.grad = None


def _as_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is torch.bfloat16 else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_as_float32(item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_as_float32(item) for item in value)
    if isinstance(value, dict):
        changed = {name: _as_float32(item) for name, item in value.items()}
        # Output classes of model libraries are dicts with attributes: they keep their class.
        with contextlib.suppress(TypeError):
            return type(value)(**changed) if type(value) is not dict else changed
        return changed
    return value
