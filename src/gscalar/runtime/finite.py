"""`on_nonfinite: stop`: a loss or a gradient that is not finite ends the training before it does harm.

A loss is looked at on its own rank, and the ranks agree on it. A gradient is looked at once it is averaged, when all
ranks have the same, and before the optimizer moves: the weights and the last checkpoint stay as they were.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gscalar.base.errors import TrainingError
from gscalar.model.events import Nonfinite
from gscalar.model.sink import Sink
from gscalar.runtime.framework import Tools, Trainee

_NEXT_STEP = "Lower the learning rate, set plan.clip_norm, or look at the batch; `on_nonfinite: warn` goes on."


def nonfinite_loss(step: int, ranks: Sequence[int], name: str) -> TrainingError:
    """Return the error that ends a training whose loss is not finite on these ranks."""
    places = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return TrainingError(
        code="nonfinite",
        what=f"The loss is not finite in step {step} on {places}; "
        f"first non-finite parameter or gradient: {name or 'none'}.",
        next_step=_NEXT_STEP,
    )


def check_gradients(tools: Tools, trainee: Trainee, sink: Sink, *, step: int, rank: int) -> None:
    """Record and raise where a gradient of this step is not finite.

    Raises:
        TrainingError: `nonfinite`, on all ranks together.
    """
    if tools.gradients_finite(trainee):
        return
    name = tools.first_nonfinite(trainee)
    if not name:  # only their norm is beyond what a number can hold
        return
    sink.emit(Nonfinite(time.time_ns(), step, rank, "gradient", name))
    raise TrainingError(
        code="nonfinite",
        what=f"A gradient is not finite in step {step}, and the loss is; first: {name}.",
        next_step=_NEXT_STEP,
    )
