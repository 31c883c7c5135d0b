"""A fault injector for runs that go on: kills, stops, slow ranks and loaders, full disks, damaged files.

It works from outside the user's script: from the run's records, the process table and signals.

    plan = FaultPlan((Kill(target=1, when=AtStep(20)), Slow(rank=None, factor=2.0, when=AfterS(5.0))), seed=3)
    with injecting(plan, home, run_id) as injection:
        ...                          # the run goes on
    injection.injected               # what was done, when, to whom

`inject` does the same and returns when everything is done or the run has ended. docs/faults.md is for people.
"""

from gscalar.testing.faults.effects import Injected
from gscalar.testing.faults.injecting import Injection, inject, injecting
from gscalar.testing.faults.plan import (
    AfterS,
    AtStep,
    BetweenS,
    BetweenSteps,
    Corrupt,
    Delay,
    Fault,
    FaultPlan,
    FillDisk,
    Kill,
    Slow,
    SlowLoader,
    Stop,
    Trigger,
    settle,
)

__all__ = [
    "inject",
    "injecting",
    "Injection",
    "Injected",
    "FaultPlan",
    "Fault",
    "Kill",
    "Stop",
    "Slow",
    "Delay",
    "SlowLoader",
    "FillDisk",
    "Corrupt",
    "Trigger",
    "AtStep",
    "AfterS",
    "BetweenSteps",
    "BetweenS",
    "settle",
]
