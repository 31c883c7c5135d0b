"""What shall go wrong, when and to whom; and how a seed decides what a plan leaves open.

A fault has a trigger and a target. Either may be left open (a rank of None, a trigger between two bounds): `settle`
draws it. Fault i of a plan draws from a generator of its own, seeded by (seed, i), so the same plan and seed give the
same decisions, and a fault that is added at the end changes none before it. Ranks and bounds are drawn as shares, so
one number is drawn for each whatever the world.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gscalar.base.errors import UserError

# Shorter phases than some milliseconds are lost in the scheduler's own; longer ones are stops of their own.
PERIOD_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class AtStep:
    """When a rank has done this step: the target's own rank, or rank 0 where the target is none."""

    step: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class AfterS:
    """So many seconds after the injector has begun."""

    seconds: float


@dataclass(frozen=True, slots=True)
class BetweenSteps:
    """At a step from `first` to `last`, drawn from the seed."""

    first: int
    last: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class BetweenS:
    """After some seconds from `first_s` to `last_s`, drawn from the seed."""

    first_s: float
    last_s: float


Trigger: TypeAlias = AtStep | AfterS | BetweenSteps | BetweenS


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """SIGKILL for a rank, the supervisor, or the supervisor and all ranks. None: a rank from the seed."""

    target: int | Literal["supervisor", "all"] | None
    when: Trigger


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """SIGSTOP for a rank, and SIGCONT after `for_s`. With `children`, for all that it has started too."""

    rank: int | None
    for_s: float
    when: Trigger
    children: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A rank's speed divided by `factor`: it is held for 1 - 1/factor of the time, in short phases."""

    rank: int | None
    factor: float
    when: Trigger
    for_s: float | None = None  # None: until the run ends
    children: bool = True  # the data workers too
    period_s: float = PERIOD_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Delay:
    """A rank is held for `delay_s` after every `every_steps` steps."""

    rank: int | None
    delay_s: float
    when: Trigger
    every_steps: int = 1
    for_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowLoader:
    """The speed of a rank's DataLoader processes divided by `factor`; the rank itself is left alone."""

    rank: int | None
    factor: float
    when: Trigger
    for_s: float | None = None
    period_s: float = PERIOD_S


@dataclass(frozen=True, kw_only=True, slots=True)
class FillDisk:
    """A file that leaves so many bytes free on the file system mounted at `path`; removed at the end."""

    path: Path
    when: Trigger
    leave_bytes: int = 0
    for_s: float | None = None
    most_bytes: int = 1 << 30  # a larger filler is taken for a mistake


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrupt:
    """Damage to one file of the run's folder; `file` is relative to that.

    `flip` changes one bit in each of `num_bytes` bytes, `zero` overwrites a region of that many, `truncate` cuts
    that many off the end.
    """

    file: str
    how: Literal["flip", "truncate", "zero"]
    when: Trigger
    num_bytes: int = 16


Fault: TypeAlias = Kill | Stop | Slow | Delay | SlowLoader | FillDisk | Corrupt
OfARank: TypeAlias = Stop | Slow | Delay | SlowLoader


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults and the seed of what they leave open."""

    faults: tuple[Fault, ...]
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """A fault with nothing left open. `seed` is what `Corrupt` draws its places from."""

    index: int  # in the plan
    fault: Fault
    when: AtStep | AfterS
    seed: str

    @property
    def rank(self) -> int | None:
        """The rank whose processes it is about, or None."""
        if isinstance(self.fault, Kill):
            return self.fault.target if isinstance(self.fault.target, int) else None
        return None if isinstance(self.fault, FillDisk | Corrupt) else self.fault.rank

    @property
    def kind(self) -> str:
        """The fault's name, as in the command's options."""
        words = {SlowLoader: "slow-loader", FillDisk: "fill-disk"}
        return words.get(type(self.fault), type(self.fault).__name__.lower())


def settle(plan: FaultPlan, world: int) -> tuple[Settled, ...]:
    """Return the plan's faults with ranks and triggers decided, for a world of this size.

    Raises:
        UserError: `impossible-value`, for a fault that can never happen.
    """
    return tuple(_settle(plan.seed, index, fault, world) for index, fault in enumerate(plan.faults))


def _settle(seed: int, index: int, fault: Fault, world: int) -> Settled:
    for where, what, value in _mistakes(fault, world):
        raise UserError(
            code="impossible-value",
            what=f"A fault cannot be so: {what}.",
            value=value,
            where=f"fault {index}, {where}",
            next_step="See docs/faults.md for what each fault takes.",
        )
    rng = random.Random(f"{seed}:{index}")
    rank_share, when_share = rng.random(), rng.random()
    rank = int(rank_share * world)
    if isinstance(fault, Kill):
        fault = replace(fault, target=rank) if fault.target is None else fault
    elif isinstance(fault, OfARank):
        fault = replace(fault, rank=rank) if fault.rank is None else fault
    when = _settle_trigger(fault.when, when_share)
    settled = Settled(index=index, fault=fault, when=when, seed=f"{seed}:{index}:damage")
    if isinstance(when, AtStep) and when.rank is None:
        settled = replace(settled, when=AtStep(when.step, settled.rank or 0))
    return settled


def _settle_trigger(when: Trigger, share: float) -> AtStep | AfterS:
    if isinstance(when, BetweenSteps):
        return AtStep(when.first + int(share * (when.last - when.first + 1)), when.rank)
    if isinstance(when, BetweenS):
        return AfterS(when.first_s + share * (when.last_s - when.first_s))
    return when


def _mistakes(fault: Fault, world: int) -> Iterator[tuple[str, str, object]]:
    """Yield the place, the reason and the value of everything that can never work."""
    when = fault.when
    ranks = [getattr(when, "rank", None), getattr(fault, "target", None), getattr(fault, "rank", None)]
    for rank in ranks:
        if isinstance(rank, int) and not 0 <= rank < world:
            yield "rank", f"the run has ranks 0 to {world - 1}", rank
    if isinstance(when, BetweenSteps) and when.last < when.first:
        yield "when", "the last step is before the first", (when.first, when.last)
    if isinstance(when, BetweenS) and when.last_s < when.first_s:
        yield "when", "the last second is before the first", (when.first_s, when.last_s)
    for name in ("for_s", "delay_s", "period_s", "every_steps", "num_bytes"):
        value = getattr(fault, name, None)
        if value is not None and value <= 0:
            yield name, "it must be above 0", value
    if isinstance(fault, Slow | SlowLoader) and fault.factor <= 1:
        yield "factor", "a factor of 1 or less slows nothing", fault.factor
    if isinstance(fault, FillDisk) and fault.leave_bytes < 0:
        yield "leave_bytes", "less than nothing cannot be free", fault.leave_bytes
