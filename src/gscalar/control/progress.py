"""How a training goes, for the live line: from steps to rates, a time to go and where the time goes.

Rates are over rank 0's last steps within `WINDOW_S`, and not since the start: a slow first step
(compilation, cold files) would weigh on the rate for minutes. Shares of the step are over the same window of every
rank. The figures are asked for many times a second, so sums are kept and not taken anew each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, NamedTuple

from gscalar.model.accounts import unpack_accounts
from gscalar.model.events import Step
from gscalar.observation.slowest import find_slowest

WINDOW_S: Final = 15.0
_MOST_STEPS: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Shares of a step, means over ranks, and the rank that the others wait for, if there is one."""

    data: float
    compute: float
    exposed_communication: float
    slowest_rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What the live line shows. None: not known (yet)."""

    attempt: int
    world: int
    phase: str  # starting, training, evaluation, checkpoint, ..., waiting
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    lr: float | None = None
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None
    shares: Shares | None = None


@dataclass(slots=True)
class StepWindow:
    """The last steps of one attempt."""

    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS))

    def add(self, step: Step) -> None:
        """Take a step; older ones than the window fall out, but two stay, for a rate."""
        self.steps.append(step)
        while len(self.steps) > 2 and step.time_ns - self.steps[0].time_ns > WINDOW_S * 1e9:
            self.steps.popleft()

    def progress(self, attempt: int, world: int, phase: str, ranks: Iterable[AccountWindow] = ()) -> Progress:
        """Return the figures of now; `ranks` are the windows of all ranks, in their order."""
        if not self.steps:
            return Progress(attempt=attempt, world=world, phase=phase)
        first, last = self.steps[0], self.steps[-1]
        seconds = (last.time_ns - first.time_ns) / 1e9 if len(self.steps) > 1 else last.duration_s
        counted = list(self.steps)[1:] or [last]
        rate = len(counted) / seconds if seconds > 0 else None
        left = last.total_steps - last.step
        return Progress(
            attempt=attempt,
            world=world,
            phase=phase,
            step=last.step,
            total_steps=last.total_steps,
            epoch=last.epoch,
            loss=last.loss,
            lr=last.lr,
            steps_per_s=rate,
            tokens_per_s=_per_second(sum(step.tokens for step in counted), seconds),
            samples_per_s=_per_second(sum(step.samples for step in counted), seconds),
            eta_s=left / rate if rate and last.total_steps and left >= 0 else None,
            shares=_shares(ranks),
        )


class _Row(NamedTuple):
    time_ns: int
    total_s: float
    data_s: float
    compute_s: float
    exposed_s: float


@dataclass(slots=True, eq=False)
class AccountWindow:
    """The accounts of one rank's last steps, and their sums in seconds."""

    rows: deque[_Row] = field(default_factory=deque)
    total_s: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    exposed_s: float = 0.0
    num_added: int = 0

    def add(self, step: Step) -> None:
        """Take a step; what is older than the window, or one too many, falls out. The newest step stays."""
        accounts = unpack_accounts(step.accounts)
        if not accounts:
            return
        row = _Row(
            step.time_ns,
            sum(accounts.values()),
            accounts.get("data_wait", 0.0),
            accounts.get("compute", 0.0),
            accounts.get("exposed_communication", 0.0),
        )
        self.rows.append(row)
        self._count(row, 1)
        self.num_added += 1
        if self.num_added == 2:  # the attempt's first step warms up
            self._count(self.rows.popleft(), -1)
        while len(self.rows) > 1 and (
            len(self.rows) > _MOST_STEPS or step.time_ns - self.rows[0].time_ns > WINDOW_S * 1e9
        ):
            self._count(self.rows.popleft(), -1)

    @property
    def busy_s(self) -> float:
        """The mean step without its exposed communication."""
        return (self.total_s - self.exposed_s) / len(self.rows)

    def _count(self, row: _Row, sign: int) -> None:
        self.total_s += sign * row.total_s
        self.data_s += sign * row.data_s
        self.compute_s += sign * row.compute_s
        self.exposed_s += sign * row.exposed_s


def _shares(ranks: Iterable[AccountWindow]) -> Shares | None:
    known = {rank: each for rank, each in enumerate(ranks) if each.rows and each.total_s > 0}
    if not known:
        return None
    slowest = find_slowest({rank: each.busy_s for rank, each in known.items()})
    return Shares(
        data=fmean(each.data_s / each.total_s for each in known.values()),
        compute=fmean(each.compute_s / each.total_s for each in known.values()),
        exposed_communication=fmean(each.exposed_s / each.total_s for each in known.values()),
        slowest_rank=slowest.rank if slowest else None,
    )


def _per_second(amount: float, seconds: float) -> float | None:
    return amount / seconds if amount > 0 and seconds > 0 else None
