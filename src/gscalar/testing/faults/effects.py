"""What each fault does, step by step.

An effect is a generator: it acts, and yields the time at which it wants to go on. Between two yields the injector
does everything else. To end an effect early it is closed, and its `with` blocks let go of what they hold.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from gscalar.base.errors import UserError
from gscalar.state.home import RunFolder
from gscalar.testing.faults.disk import change_file, fill_disk
from gscalar.testing.faults.duty_cycle import DutyCycle
from gscalar.testing.faults.holding import Holds, Tell
from gscalar.testing.faults.plan import Corrupt, Delay, FillDisk, Kill, Settled, Slow, SlowLoader, Stop
from gscalar.testing.faults.process_table import Process, ProcessTable, Writer, find_loaders, find_writer
from gscalar.testing.faults.run_watch import RunState

# A rank's children come and go (a DataLoader starts its processes anew each epoch).
_RESCAN_S: Final = 0.5
_TICK_S: Final = 0.005
# The first batch may be asked for some time after the first heartbeat: files are read, shards are dealt.
_LOADER_WAIT_S: Final = 10.0

Effect: TypeAlias = Generator[float, None, None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Injected:
    """One thing that was done."""

    fault: int  # its place in the plan
    kind: str  # kill, stop, slow, delay, slow-loader, fill-disk, corrupt
    did: str  # killed, stopped, continued, slowed, held, released, filled, removed, damaged, skipped
    time_ns: int  # just before it was done
    attempt: int
    rank: int  # -1 where it is about none
    step: int  # of that rank, or of rank 0
    pids: tuple[int, ...] = ()
    detail: str = ""


@dataclass(slots=True)
class Stage:
    """What effects act on: the run as it is now, its processes, the clock, and the log."""

    folder: RunFolder
    run_id: str
    table: ProcessTable
    holds: Holds
    tell: Tell
    clock: Callable[[], float]
    state: RunState = field(default_factory=RunState)
    injected: list[Injected] = field(default_factory=list)
    on_injected: Callable[[Injected], object] = lambda _: None

    def rank(self, rank: int) -> Process | None:
        """Return a rank's living process."""
        writer = self.state.workers[rank] if rank < self.state.world else None
        return self._own(writer)

    def supervisor(self) -> Process | None:
        """Return the supervisor's living process."""
        return self._own(self.state.supervisor)

    def family(self, rank: int, *, children: bool) -> list[Process]:
        """Return a rank's process, and what lives below it; none where the rank does not live."""
        process = self.rank(rank)
        if process is None:
            return []
        return [process, *(self.table.descendants(process.pid) if children else ())]

    def is_there(self, process: Process) -> bool:
        """Return whether this very process still lives."""
        now = self.table.find(process.pid)
        return now is not None and now.alive and now.start_ticks == process.start_ticks

    def step(self, rank: int | None) -> int:
        """Return the last step that a rank has done."""
        return self.state.steps[rank or 0] if (rank or 0) < len(self.state.steps) else 0

    def say(self, settled: Settled, did: str, processes: Sequence[Process] = (), detail: str = "") -> None:
        """Log what is done now."""
        entry = Injected(
            fault=settled.index,
            kind=settled.kind,
            did=did,
            time_ns=time.time_ns(),
            attempt=self.state.attempt,
            rank=-1 if settled.rank is None else settled.rank,
            step=self.step(settled.rank),
            pids=tuple(process.pid for process in processes),
            detail=detail,
        )
        self.injected.append(entry)
        self.on_injected(entry)

    def _own(self, writer: Writer | None) -> Process | None:
        process = find_writer(self.table, writer, self.run_id)
        if process is not None and process.pid == os.getpid():
            raise UserError(
                code="fault-impossible",
                what="The target is the injector's own process.",
                value=process.pid,
                next_step="Start the injector in a process of its own, beside the run.",
            )
        return process


def begin(stage: Stage, settled: Settled) -> Effect | None:
    """Return the effect of a fault whose time has come, or None while its target does not live."""
    fault = settled.fault
    if settled.rank is not None and stage.rank(settled.rank) is None:
        return None
    match fault:
        case Kill(target="supervisor" | "all") if stage.state.supervised and stage.supervisor() is None:
            return None
        case Kill():
            return _kill(stage, settled, fault)
        case Stop():
            return _stop(stage, settled, fault)
        case Slow():
            return _slow(stage, settled, fault)
        case SlowLoader():
            return _slow_loader(stage, settled, fault)
        case Delay():
            return _delay(stage, settled, fault)
        case FillDisk():
            return _fill(stage, settled, fault)
        case Corrupt():
            return _corrupt(stage, settled, fault)


def _kill(stage: Stage, settled: Settled, fault: Kill) -> Effect:
    targets: list[Process | None] = []
    if isinstance(fault.target, int):
        targets.append(stage.rank(fault.target))
    else:
        targets.append(stage.supervisor())
    if fault.target == "all":
        targets += [stage.rank(rank) for rank in range(stage.state.world)]
    found = [process for process in targets if process is not None]
    stage.say(settled, "killed", found)
    for process in found:
        stage.table.send(process, signal.SIGKILL)
    yield from ()


def _stop(stage: Stage, settled: Settled, fault: Stop) -> Effect:
    assert fault.rank is not None, "settled"
    family = stage.family(fault.rank, children=fault.children)
    ends_s = stage.clock() + fault.for_s
    stage.say(settled, "stopped", family)
    try:
        with stage.holds.holding(family):
            # A rank that is killed meanwhile is stopped no more.
            while stage.clock() < ends_s and stage.is_there(family[0]):
                yield min(ends_s, stage.clock() + _RESCAN_S)
    finally:
        stage.say(settled, "continued", family)


def _slow(stage: Stage, settled: Settled, fault: Slow) -> Effect:
    rank, children = fault.rank, fault.children
    assert rank is not None, "settled"
    yield from _run_slowly(stage, settled, fault, lambda: stage.family(rank, children=children))


def _slow_loader(stage: Stage, settled: Settled, fault: SlowLoader) -> Effect:
    rank = fault.rank
    assert rank is not None, "settled"

    def loaders() -> list[Process]:
        return find_loaders(stage.family(rank, children=True)[1:])

    limit_s = stage.clock() + _LOADER_WAIT_S
    while not loaders():
        if stage.clock() >= limit_s:
            raise UserError(
                code="fault-impossible",
                what=f"Rank {rank} has no DataLoader processes that could be slowed: its data is loaded by itself.",
                value="num_workers=0",
                where=f"fault {settled.index}, slow-loader",
                next_step="Give the DataLoader num_workers of 1 or more, or slow the rank itself (slow, delay).",
            )
        yield stage.clock() + _RESCAN_S / 5
    yield from _run_slowly(stage, settled, fault, loaders)


def _run_slowly(stage: Stage, settled: Settled, fault: Slow | SlowLoader, look: Callable[[], list[Process]]) -> Effect:
    """Hold what `look` returns for its share of the time. Where there is none, as between attempts, wait."""
    duty = DutyCycle(fault.factor, fault.period_s)
    ends_s = _end_s(stage, fault.for_s)
    family = look()
    looked_s = stage.clock()
    stage.say(settled, "slowed", family, f"by a factor of {fault.factor:g}")
    try:
        while stage.clock() < ends_s:
            if stage.clock() - looked_s >= _RESCAN_S:
                family, looked_s = look(), stage.clock()
            if not family:
                yield min(ends_s, looked_s + _RESCAN_S)
                continue
            began_s = stage.clock()
            yield began_s + duty.plan_run_s()
            held_s = stage.clock()
            duty.ran(held_s - began_s)
            if (hold_s := duty.plan_hold_s()) > 0:
                with stage.holds.holding(family):
                    yield held_s + hold_s
                duty.held(stage.clock() - held_s)
    finally:
        total_s = duty.ran_s + duty.held_s
        share = f"{duty.held_s / total_s:.3f}" if total_s else "nothing"
        stage.say(settled, "released", family, f"held for {share} of {total_s:.2f} s")


def _delay(stage: Stage, settled: Settled, fault: Delay) -> Effect:
    assert fault.rank is not None, "settled"
    ends_s = _end_s(stage, fault.for_s)
    before = stage.step(fault.rank)
    while stage.clock() < ends_s:
        step = stage.step(fault.rank)
        # Several short steps may end between two looks; a step that goes back is that of a new attempt.
        if step // fault.every_steps > before // fault.every_steps:
            family = stage.family(fault.rank, children=False)
            stage.say(settled, "held", family, f"for {fault.delay_s:g} s")
            with stage.holds.holding(family):
                yield stage.clock() + fault.delay_s
        before = step
        yield stage.clock() + _TICK_S
    stage.say(settled, "released")


def _fill(stage: Stage, settled: Settled, fault: FillDisk) -> Effect:
    path = fault.path / f".gscalar-filler-{os.getpid()}-{settled.index}"
    # Told first, so that a filler that is made is one that is removed.
    stage.tell("file", os.fspath(path.absolute()))
    ends_s = _end_s(stage, fault.for_s)
    try:
        num_bytes = fill_disk(path, leave_bytes=fault.leave_bytes, most_bytes=fault.most_bytes)
        stage.say(settled, "filled", detail=f"{fault.path} with {num_bytes} bytes")
        while stage.clock() < ends_s:
            yield min(ends_s, stage.clock() + _RESCAN_S)
    finally:
        if path.exists():
            path.unlink()
            stage.say(settled, "removed", detail=f"the filler of {fault.path}")
    stage.tell("gone", os.fspath(path.absolute()))


def _corrupt(stage: Stage, settled: Settled, fault: Corrupt) -> Effect:
    path = _inside(stage.folder.path, fault.file)
    rng = random.Random(settled.seed)
    change_file(path, fault.how, fault.num_bytes, rng)
    stage.say(settled, "damaged", detail=f"{fault.file}: {fault.how}, {fault.num_bytes} bytes")
    yield from ()


def _inside(folder: Path, file: str) -> Path:
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise UserError(
            code="fault-impossible",
            what="Only a file of the run's own folder can be damaged, and there is none of this name.",
            value=file,
            next_step=f"Give the name of a file below {folder}, such as records/a000-r00000.rec.",
        )
    return path


def _end_s(stage: Stage, for_s: float | None) -> float:
    return math.inf if for_s is None else stage.clock() + for_s


def close_all(effects: Sequence[Effect]) -> None:
    """End effects; each lets go of what it holds, also where another one cannot."""
    problems: list[Exception] = []
    for effect in effects:
        try:
            effect.close()
        except Exception as problem:  # noqa: BLE001 - every effect must end before one may complain
            problems.append(problem)
    if problems:
        raise problems[0]
