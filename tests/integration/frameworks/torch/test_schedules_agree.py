"""Our schedules beside torch's own, step by step, where torch has the same one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gscalar.model.spec import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    OneCycleSchedule,
    Schedule,
)
from gscalar.runtime.schedules import factor

if TYPE_CHECKING:
    from torch.optim import SGD

pytestmark = pytest.mark.torch
BASE_RATE = 0.4
NUM_STEPS = 60


def rates(build: Callable[[Any, SGD], Any]) -> list[float]:
    """Return the rate of each update under a scheduler of torch, moved once after each."""
    import torch  # here, so that collecting this file needs no torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=BASE_RATE)
    scheduler = build(torch.optim.lr_scheduler, optimizer)
    got = []
    for _ in range(NUM_STEPS):
        got.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            # SequentialLR itself passes `epoch`, which torch warns about.
            warnings.simplefilter("ignore", UserWarning)
            scheduler.step()
    return got


# torch's warm-up from factor a to 1 over n steps is (a + (1 - a) s / n); ours is (s + 1) / W for s < W.
SAME: dict[str, tuple[Schedule, Callable[[Any, Any], Any]]] = {
    "CosineAnnealingLR": (
        CosineSchedule(total_steps=NUM_STEPS, floor=0.1),
        lambda lr, opt: lr.CosineAnnealingLR(opt, T_max=NUM_STEPS, eta_min=0.1 * BASE_RATE)),
    "LinearLR": (
        LinearSchedule(total_steps=NUM_STEPS, floor=0.25),
        lambda lr, opt: lr.LinearLR(opt, start_factor=1.0, end_factor=0.25, total_iters=NUM_STEPS)),
    "PolynomialLR of power 1": (
        LinearSchedule(total_steps=NUM_STEPS), lambda lr, opt: lr.PolynomialLR(opt, total_iters=NUM_STEPS)),
    "LinearLR as a warm-up": (
        ConstantSchedule(warmup_steps=8),
        lambda lr, opt: lr.LinearLR(opt, start_factor=1 / 8, end_factor=1.0, total_iters=7)),
    "a warm-up and CosineAnnealingLR in sequence": (
        CosineSchedule(total_steps=NUM_STEPS, warmup_steps=8),
        lambda lr, opt: lr.SequentialLR(opt, [
            lr.LinearLR(opt, start_factor=1 / 8, end_factor=1.0, total_iters=7),
            lr.CosineAnnealingLR(opt, T_max=NUM_STEPS - 8)], milestones=[8])),
    "OneCycleLR": (
        OneCycleSchedule(total_steps=NUM_STEPS + 1),
        lambda lr, opt: lr.OneCycleLR(opt, max_lr=BASE_RATE, total_steps=NUM_STEPS + 1, cycle_momentum=False)),
    "OneCycleLR of another shape": (
        OneCycleSchedule(total_steps=NUM_STEPS + 1, rise=0.55, start=0.1, floor=0.001),
        lambda lr, opt: lr.OneCycleLR(opt, max_lr=BASE_RATE, total_steps=NUM_STEPS + 1, pct_start=0.55,
                                      div_factor=10, final_div_factor=100, cycle_momentum=False)),
    "LambdaLR with the formula of Vaswani et al.": (
        InverseSqrtSchedule(warmup_steps=8),
        lambda lr, opt: lr.LambdaLR(opt, lambda s: 8**0.5 * min((s + 1) ** -0.5, (s + 1) * 8**-1.5))),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_every_update_has_the_rate_that_torch_gives_it(case: str) -> None:
    schedule, build = SAME[case]
    want = rates(build)
    got = [BASE_RATE * factor(schedule, step, None) for step in range(NUM_STEPS)]
    assert got == pytest.approx(want, rel=1e-6, abs=1e-9)
