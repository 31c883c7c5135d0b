"""The injector: follows a run, begins each fault when its time has come, and leaves nothing behind.

One loop in one thread: look at the run, begin what is due, let effects go on whose time has come, sleep. A fault whose
target does not live at that moment (between two attempts) begins when it does. The loop ends when every fault is done,
or with the run; where the supervisor is gone without a word, the run has `resume_within_s` to be resumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError
from gscalar.state.home import Home
from gscalar.testing.faults.effects import Effect, Injected, Stage, begin, close_all
from gscalar.testing.faults.holding import GuardProcess, Holds
from gscalar.testing.faults.plan import AfterS, AtStep, FaultPlan, Settled, settle
from gscalar.testing.faults.process_table import LinuxProcesses
from gscalar.testing.faults.run_watch import RunState, RunWatch

RESUME_WITHIN_S: Final = 30.0
# A step is noticed within this time; where nothing waits for a step, looks are rarer.
_TICK_S: Final = 0.005
_SLOW_TICK_S: Final = 0.05
_BEAT_S: Final = 1.0
_OWNER_LOOK_S: Final = 0.5


@dataclass(slots=True)
class _Active:
    settled: Settled
    effect: Effect
    next_s: float


@dataclass(slots=True)
class Injector:
    """One plan on one run. `look` gives the run's state, `pause` sleeps and says whether to stop."""

    plan: FaultPlan
    stage: Stage
    look: Callable[[float], RunState]
    pause: Callable[[float], bool]
    resume_within_s: float = RESUME_WITHIN_S
    _pending: list[Settled] | None = None  # None: the world is not known yet
    _active: list[_Active] = field(default_factory=list)
    _ownerless_s: float | None = None
    _owner_looked_s: float = float("-inf")
    _beat_s: float = float("-inf")

    def run(self) -> list[Injected]:
        """Return what was done, after the last fault or with the run.

        Raises:
            UserError: `impossible-value`, `fault-impossible`; all is let go.
        """
        clock = self.stage.clock
        began_s, stopped = clock(), False
        try:
            while not stopped:
                now_s = clock()
                self.stage.state = self.look(now_s)
                self._beat(now_s)
                if self._pending is None and self.stage.state.world:
                    self._pending = list(settle(self.plan, self.stage.state.world))
                if self._is_over(now_s):
                    break
                self._begin_due(now_s - began_s)
                self._go_on()
                if self._pending == [] and not self._active:
                    break
                stopped = self.pause(self._pause_s(clock()))
        finally:
            active, self._active = self._active, []
            close_all([each.effect for each in active])
        for settled in self._pending or ():
            self.stage.say(settled, "skipped", detail="its time did not come, or its target did not live")
        return self.stage.injected

    def _begin_due(self, elapsed_s: float) -> None:
        for settled in list(self._pending or ()):
            if not is_due(settled, self.stage.state, elapsed_s):
                continue
            effect = begin(self.stage, settled)
            if effect is not None:
                assert self._pending is not None
                self._pending.remove(settled)
                self._active.append(_Active(settled, effect, self.stage.clock()))

    def _go_on(self) -> None:
        for each in list(self._active):
            if self.stage.clock() < each.next_s:
                continue
            next_s = next(each.effect, None)
            if next_s is None:
                self._active.remove(each)
            else:
                each.next_s = next_s

    def _pause_s(self, now_s: float) -> float:
        by_step = any(isinstance(settled.when, AtStep) for settled in self._pending or ())
        wake_s = now_s + (_TICK_S if by_step else _SLOW_TICK_S)
        return max(0.0, min([wake_s, *(each.next_s for each in self._active)]) - now_s)

    def _beat(self, now_s: float) -> None:
        if now_s - self._beat_s >= _BEAT_S:
            self._beat_s = now_s
            self.stage.tell("beat", 1)

    def _is_over(self, now_s: float) -> bool:
        state = self.stage.state
        if state.ended:
            return True
        if now_s - self._owner_looked_s >= _OWNER_LOOK_S:
            self._owner_looked_s = now_s
            if self._has_owner(state):
                self._ownerless_s = None
            elif self._ownerless_s is None:
                self._ownerless_s = now_s
        return self._ownerless_s is not None and now_s - self._ownerless_s >= self.resume_within_s

    def _has_owner(self, state: RunState) -> bool:
        if state.supervised:
            return self.stage.supervisor() is not None
        return any(self.stage.rank(rank) is not None for rank in range(state.world))


def is_due(settled: Settled, state: RunState, elapsed_s: float) -> bool:
    """Return whether a fault's time has come."""
    match settled.when:
        case AfterS(seconds=seconds):
            return elapsed_s >= seconds
        case AtStep(step=step, rank=rank):
            rank = rank or 0
            return rank < len(state.steps) and state.steps[rank] >= step


def inject(
    plan: FaultPlan,
    home: Home | Path,
    run_id: str,
    *,
    on_injected: Callable[[Injected], object] = lambda _: None,
    resume_within_s: float = RESUME_WITHIN_S,
    stop: threading.Event | None = None,
    injected: list[Injected] | None = None,
) -> list[Injected]:
    """Inject a plan into a run that goes on; return what was done, after the last fault or with the run.

    `on_injected` is called with each entry at once, and `injected` is the list to which entries are added. `stop`
    ends the injection early. Whatever the end, no process stays stopped and no filler stays.

    Raises:
        UserError: `run-not-found`; `run-not-active`, it had ended before; `impossible-value`, a fault can never
            happen; `fault-impossible`, a fault cannot happen to this run.
        EnvironmentProblem: `fault-impossible`, the guard is gone.
    """
    folder = (home if isinstance(home, Home) else Home(home)).run(run_id)
    stop = stop or threading.Event()
    if not folder.records.is_dir():
        raise UserError(
            code="run-not-found",
            what="No run has this id.",
            value=run_id,
            next_step="`gscalar runs` lists those that are there.",
        )
    watch = RunWatch(folder)
    if ended := watch.look(time.monotonic()).ended:
        raise UserError(
            code="run-not-active",
            what=f"The run has ended ({ended}), and nothing can be injected.",
            value=run_id,
            next_step="Start the injector while the run goes on.",
        )
    guard, table = GuardProcess(), LinuxProcesses()
    try:
        stage = Stage(
            folder=folder,
            run_id=run_id,
            table=table,
            holds=Holds(table, guard),
            tell=guard,
            clock=time.monotonic,
            injected=[] if injected is None else injected,
            on_injected=on_injected,
        )
        return Injector(plan, stage, watch.look, stop.wait, resume_within_s).run()
    finally:
        guard.close()


class Injection:
    """An injection in a thread of its own."""

    def __init__(self, plan: FaultPlan, home: Home | Path, run_id: str, resume_within_s: float) -> None:
        self.injected: list[Injected] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(plan, home, run_id, resume_within_s), name="fault-injector", daemon=True
        )
        self._thread.start()

    def wait(self, limit_s: float) -> list[Injected]:
        """Return what was done when all is done; after `limit_s` what was done until then.

        Raises:
            ScalarError: what `inject` raises.
        """
        self._thread.join(limit_s)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.injected

    def end(self) -> None:
        """Let everything go, and wait until that is done."""
        self._stop.set()
        self._thread.join()

    def _run(self, plan: FaultPlan, home: Home | Path, run_id: str, resume_within_s: float) -> None:
        try:
            inject(plan, home, run_id, resume_within_s=resume_within_s, stop=self._stop, injected=self.injected)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error


@contextmanager
def injecting(
    plan: FaultPlan, home: Home | Path, run_id: str, *, resume_within_s: float = RESUME_WITHIN_S
) -> Iterator[Injection]:
    """Inject a plan during a `with` block, at whose end everything is let go.

    Raises:
        ScalarError: at the end, what `inject` raises, unless the block raises itself.
    """
    injection = Injection(plan, home, run_id, resume_within_s)
    try:
        yield injection
    finally:
        injection.end()
    injection.wait(0.0)
