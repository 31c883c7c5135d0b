"""The step engine: micro-steps in, optimizer steps out, exactly weighted.

A step's gradient is that of the mean loss over all samples (or tokens) of all ranks and all
accumulated micro-steps:

    g = sum_{r,i} w_{r,i} * grad(loss_{r,i}) / sum_{r,i} w_{r,i}

`loss_{r,i}` is the mean over micro-batch i of rank r and `w_{r,i}` its number of samples, or the
weight the script gives (tokens). A framework's data parallel averages over ranks, so what is
missing is the factor world / sum(w). With the default weights the sum is known before the forward,
and the factor goes into the loss; given weights are summed over ranks by a collective that runs
while gradients are exchanged, and the gradient is scaled afterwards.

The same collective carries what all ranks must decide together: a stop asked of any rank, a
checkpoint that is due by rank 0's clock, a non-finite loss anywhere, and whether some micro-steps
were given a weight and others not, which no factor could put right. So every rank acts at the
same step, at the price of one small message a step. It is sent when a rank has nothing left to compute and waits
for gradients anyway: sent earlier, it would wake threads that take the cores from the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gscalar.base.errors import UserError
from gscalar.model.shares import Share
from gscalar.model.spans import CollectiveKind
from gscalar.observation.collectives import HOST_SUMS, CollectiveLedger, OpenCollective
from gscalar.runtime.framework import Batch, Group, Trainee, Update


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know at the end of a step: totals over ranks, and decisions."""

    samples: float
    tokens: float
    stop: bool
    checkpoint: bool
    nonfinite: bool


class OwnPart(NamedTuple):
    """What this rank's micro-steps consumed of the step; NaN where nobody knows."""

    samples: float = math.nan
    tokens: float = math.nan
    weight: float = math.nan


NOT_TOLD: Final = OwnPart()


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step that is done."""

    update: Update
    agreement: Agreement
    loss: Callable[[], float] | None  # this rank's weighted mean; waits for the device. None where nobody tells
    shares: tuple[Share, ...] = ()  # of the samples that this rank's micro-steps consumed
    own: OwnPart = NOT_TOLD


@dataclass(slots=True)
class _Open:
    """What the micro-steps of the open step have added up to."""

    micro_steps: int = 0
    weight: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    uncounted: bool = False  # whether a micro-step's samples are not known, and stand for one
    unweighed: bool = False  # the same, where no weight was given either
    unscaled: int = 0  # micro-steps whose loss does not carry the whole factor yet
    nonfinite: bool = False
    losses: list[tuple[float, Callable[[], float]]] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)


class StepEngine:
    """Counts micro-steps, weighs losses and closes optimizer steps for one trainee."""

    def __init__(
        self,
        trainee: Trainee,
        group: Group,
        *,
        world: int,
        accumulate: int,
        clip_norm: float | None,
        scalar: Callable[[Any], Callable[[], float]],
        check_every_loss: bool,
        ledger: CollectiveLedger,
    ) -> None:
        self._trainee = trainee
        self._group = group
        self._world = world
        self._accumulate = accumulate
        self._clip_norm = clip_norm
        self._scalar = scalar
        self._check_every_loss = check_every_loss
        self._ledger = ledger
        self._host_sum: OpenCollective | None = None
        self._open = _Open()
        self._batch: Batch | None = None
        self._border = accumulate == 1
        self._totals: Callable[[], list[float]] | None = None

    @property
    def at_border(self) -> bool:
        """Whether the current micro-step ends its optimizer step."""
        return self._border

    @property
    def nonfinite(self) -> bool:
        """Whether this rank saw a loss in the open step that is not finite (where it looks)."""
        return self._open.nonfinite

    def expect(self, batch: Batch | None) -> None:
        """Make ready for the next micro-step; without a batch (a loop of the user's own) only count."""
        self._batch = batch
        step_size = batch.step_size if batch is not None else None
        last = self._open.micro_steps + 1 >= (step_size or self._accumulate)
        self._border = last or (batch is not None and batch.ends_epoch)
        self._trainee.expect(border=self._border)

    def backward(
        self, loss: Any, *, weight: float | None, tokens: float | None, stop: bool, checkpoint: bool
    ) -> float | None:
        """Add one micro-step's gradient; return the loss where it had to be looked at now."""
        batch, step = self._batch, self._open
        num_samples = float(batch.num_samples) if batch is not None else 1.0
        padding = batch is not None and batch.num_samples == 0
        given = 0.0 if padding else num_samples if weight is None else float(weight)
        known = batch.group_samples if batch is not None and weight is None else None
        factor = given
        if known is not None:
            factor = given * self._world / known
        if batch is None:
            step.uncounted = True
            step.unweighed |= weight is None
        step.unscaled += known is None
        step.micro_steps += 1
        step.weight += given
        step.samples += num_samples
        step.tokens += 0.0 if padding or tokens is None else float(tokens)
        step.shares += batch.shares if batch is not None else ()
        value = self._scalar(loss)
        step.losses.append((given, value))
        seen = value() if self._check_every_loss and not padding else None
        if seen is not None and not math.isfinite(seen):
            step.nonfinite = True
        if self._border:
            self._trainee.backward(loss, factor, lambda: self._start_sum(stop=stop, checkpoint=checkpoint))
        else:
            self._trainee.backward(loss, factor)
        return seen

    def _start_sum(self, *, stop: bool, checkpoint: bool) -> None:
        step = self._open
        wants = [
            step.weight,
            step.samples,
            step.tokens,
            float(stop),
            float(checkpoint),
            float(step.nonfinite),
            float(step.micro_steps),
            float(step.unscaled),
        ]
        if self._world > 1:
            self._host_sum = self._ledger.ready(CollectiveKind.ALL_REDUCE, HOST_SUMS, 8 * len(wants))
        self._totals = self._group.start_sum(wants)

    def sync(self) -> tuple[Agreement, float]:
        """Wait for the totals of all ranks; return what was agreed and the factor the gradient still needs.

        Raises:
            UserError: `mixed-weights`, on all ranks together.
        """
        assert self._totals is not None, "sync follows the backward of a border"
        weight, samples, tokens, stop, checkpoint, nonfinite, micro_steps, unscaled = self._totals()
        self._totals = None
        if self._host_sum is not None:
            self._host_sum.done()
        agreement = Agreement(samples, tokens, stop > 0, checkpoint > 0, nonfinite > 0)
        if not unscaled:
            return agreement, 1.0
        if unscaled < micro_steps:
            raise UserError(
                code="mixed-weights",
                what="Some micro-steps of one optimizer step were given a weight and others not.",
                value=f"{int(unscaled)} of {int(micro_steps)} with a weight",
                next_step="Give run.step(loss, weight=...) in every micro-step and on every rank, or in none.",
            )
        return agreement, self._world / weight if weight > 0 else 0.0

    def update(self, agreement: Agreement, scale: float, lr_factor: float | None) -> StepResult:
        """Move the optimizers and begin a new step."""
        step, losses = self._open, self._open.losses
        own = OwnPart(
            samples=math.nan if step.uncounted else step.samples,
            tokens=step.tokens,
            weight=math.nan if step.unweighed else step.weight,
        )
        update = self._trainee.update(scale=scale, clip_norm=self._clip_norm, lr_factor=lr_factor)
        self._open = _Open()
        self.expect(None)
        return StepResult(update, agreement, lambda: _weighted_mean(losses), tuple(step.shares), own)


def _weighted_mean(losses: list[tuple[float, Callable[[], float]]]) -> float:
    if len(losses) == 1:
        return losses[0][1]()
    total = sum(weight for weight, _ in losses)
    if total == 0:
        return losses[-1][1]()
    return sum(weight * value() for weight, value in losses if weight > 0) / total
