"""A step whose optimizer has moved already.

By a strategy of tf.distribute, which keeps the gradients to itself; or in the one graph of a step of `model.fit`, where
nothing else has to be done with them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gscalar.base.errors import UserError
from gscalar.model.spec import Plan

_LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Applied:
    """The loss of a step that is done, and the learning rate where the step tells it."""

    loss: Any
    lr: Any = None

    def __float__(self) -> float:
        return float(self.loss)


class Glance:
    """A number that is looked at once a second: on a parameter server a look takes longer than a step."""

    def __init__(self, look: Callable[[], float]) -> None:
        self._look = look
        self._seen, self._seen_s = math.nan, -math.inf

    def __call__(self) -> float:
        now_s = time.monotonic()
        if now_s - self._seen_s >= _LOOK_EVERY_S:
            self._seen, self._seen_s = self._look(), now_s
        return self._seen


def check_plan(plan: Plan) -> None:
    """Raise where the plan wants something of gradients that nobody here sees.

    Raises:
        UserError: `plan-unsupported`.
    """
    wanted = {
        "plan.accumulate": plan.accumulate > 1,
        "plan.clip_norm": plan.clip_norm is not None,
        "plan.schedule": plan.schedule is not None,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise UserError(
                code="plan-unsupported",
                what=f"{name} acts on a step's gradients, and the script's strategy moves its optimizer by itself.",
                value=name,
                next_step="Leave it out of the job and do it in the script, or use run.step without a strategy.",
            )
