"""Learning-rate schedules: each a plain function of the optimizer step, returning a share of the base rate.

`step` is the number of optimizer steps already done, so the first update is made at step 0 and the
last of T at step T - 1; the world and the accumulation do not enter. A warm-up of W steps gives
(step + 1) / W, so that the first update moves by 1/W and not by nothing, and update W by the whole
rate. What falls afterwards is a function of the progress p = (step - W) / (T - W), held between 0
and 1: the floor is the value at step T, and stays. A training that is shorter than its warm-up
just warms up. docs/schedules.md shows the formulas and their sources side by side.
"""

from __future__ import annotations

import math
from typing import Literal

from gscalar.base.errors import UserError
from gscalar.model.spec import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    OneCycleSchedule,
    Schedule,
    WarmupStableDecaySchedule,
)


def factor(schedule: Schedule, step: int, total_steps: int | None) -> float:
    """Return the share of the base rate for the update made after `step` others.

    `total_steps` is the training's length where it is known; a schedule's own `total_steps` wins.

    Raises:
        UserError: `impossible-value`, when the schedule needs a length and nobody knows it.
    """
    match schedule:
        case ConstantSchedule():
            return constant(step, warmup_steps=schedule.warmup_steps)
        case InverseSqrtSchedule():
            return inverse_sqrt(step, warmup_steps=schedule.warmup_steps)
        case LinearSchedule(warmup_steps=warmup, floor=floor):
            return linear(step, _length(schedule, total_steps), warmup_steps=warmup, floor=floor)
        case CosineSchedule(warmup_steps=warmup, floor=floor):
            return cosine(step, _length(schedule, total_steps), warmup_steps=warmup, floor=floor)
        case WarmupStableDecaySchedule(warmup_steps=warmup, floor=floor):
            length = _length(schedule, total_steps)
            decay_steps = schedule.decay_steps or max(1, length // 10)
            shape = schedule.decay
            return warmup_stable_decay(
                step, length, warmup_steps=warmup, decay_steps=decay_steps, decay=shape, floor=floor
            )
        case OneCycleSchedule(rise=rise, start=start, floor=floor):
            return one_cycle(step, _length(schedule, total_steps), rise=rise, start=start, floor=floor)


def constant(step: int, *, warmup_steps: int = 0) -> float:
    """Return min(1, (step + 1) / W)."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def linear(step: int, total_steps: int, *, warmup_steps: int = 0, floor: float = 0.0) -> float:
    """Return 1 - (1 - floor) p after the warm-up.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017 (arXiv:1706.02677), section 2.2, for the
    warm-up; Devlin et al., "BERT", 2019 (arXiv:1810.04805), A.2, for the line.
    """
    if step < warmup_steps:
        return constant(step, warmup_steps=warmup_steps)
    return _fall(1 - _progress(step, warmup_steps, total_steps), floor)


def cosine(step: int, total_steps: int, *, warmup_steps: int = 0, floor: float = 0.0) -> float:
    """Return floor + (1 - floor) (1 + cos(pi p)) / 2 after the warm-up.

    Source: Loshchilov and Hutter, "SGDR", 2017 (arXiv:1608.03983), equation 5, without restarts.
    """
    if step < warmup_steps:
        return constant(step, warmup_steps=warmup_steps)
    return _fall(_half_cosine(_progress(step, warmup_steps, total_steps)), floor)


def warmup_stable_decay(
    step: int,
    total_steps: int,
    *,
    decay_steps: int,
    warmup_steps: int = 0,
    decay: Literal["linear", "cosine", "sqrt"] = "linear",
    floor: float = 0.0,
) -> float:
    """Return 1 up to the last D steps and then floor + (1 - floor) f(q), q the progress through those.

    f(q) is 1 - q (linear), (1 + cos(pi q)) / 2 (cosine) or 1 - sqrt(q) (sqrt). The warm-up is never cut:
    where it and the decay do not fit, the decay is shorter.

    Source: Hu et al., "MiniCPM", 2024 (arXiv:2404.06395), section 4; for 1 - sqrt, Haegele et al., "Scaling
    Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024 (arXiv:2405.18392).
    """
    if step < warmup_steps:
        return constant(step, warmup_steps=warmup_steps)
    progress = _progress(step, max(warmup_steps, total_steps - decay_steps), total_steps)
    if decay == "linear":
        return _fall(1 - progress, floor)
    return _fall(_half_cosine(progress) if decay == "cosine" else 1 - math.sqrt(progress), floor)


def inverse_sqrt(step: int, *, warmup_steps: int) -> float:
    """Return min((step + 1) / W, sqrt(W / (step + 1))).

    Source: Vaswani et al., "Attention Is All You Need", 2017 (arXiv:1706.03762), equation 3, scaled so that
    the peak, at update W, is the base rate.
    """
    updates = step + 1
    return min(updates / warmup_steps, math.sqrt(warmup_steps / updates))


def one_cycle(step: int, total_steps: int, *, rise: float, start: float, floor: float) -> float:
    """Return a half cosine from `start` up to 1 at step rise T - 1, then one down to `floor` at step T - 1.

    Source: Smith and Topin, "Super-Convergence", 2018 (arXiv:1708.07120), in the form of
    torch.optim.lr_scheduler.OneCycleLR, whose `div_factor` is 1 / start and whose `final_div_factor` is
    start / floor.
    """
    peak, last = rise * total_steps - 1, total_steps - 1
    if step <= peak:
        return 1 - (1 - start) * _half_cosine(step / peak if peak > 0 else 1.0)
    return _fall(_half_cosine(min(1.0, (step - peak) / (last - peak)) if last > peak else 1.0), floor)


def _length(
    schedule: LinearSchedule | CosineSchedule | WarmupStableDecaySchedule | OneCycleSchedule,
    total_steps: int | None,
) -> int:
    length = schedule.total_steps or total_steps
    if not length:
        raise UserError(
            code="impossible-value",
            what=f"The {schedule.kind} schedule needs the number of optimizer steps of the whole training, "
            "and the data does not tell it.",
            where="plan.schedule.total_steps",
            next_step="Set plan.schedule.total_steps, or give run.batches(...) epochs or steps.",
        )
    return length


def _progress(step: int, begin: int, end: int) -> float:
    """Return how far the step is on the way from begin to end, between 0 and 1."""
    if step >= end:
        return 1.0
    return max(0, step - begin) / (end - begin)


def _half_cosine(progress: float) -> float:
    """Return 1 at progress 0 and 0 at progress 1, along half a cosine."""
    return (1 + math.cos(math.pi * progress)) / 2


def _fall(height: float, floor: float) -> float:
    """Return the height above the floor: 1 for height 1, the floor for height 0."""
    return floor + (1 - floor) * height
