"""The injector's loop, on a run, a process table and a clock of the test's own."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.state.home import RunFolder
from gscalar.testing.faults.effects import Injected, Stage
from gscalar.testing.faults.holding import Holds
from gscalar.testing.faults.injecting import Injector
from gscalar.testing.faults.plan import (
    AfterS,
    AtStep,
    BetweenS,
    Corrupt,
    Delay,
    Fault,
    FaultPlan,
    Kill,
    Slow,
    SlowLoader,
    Stop,
)
from gscalar.testing.faults.process_table import Process, Writer
from gscalar.testing.faults.run_watch import RunState

RUN = "7k2m9qx4tz0a"
SUPERVISOR, RANK0, RANK1, LOADER = 100, 200, 201, 300
STEP_S = 0.1
NOW = AfterS(0.0)


def process(pid: int, parent: int = SUPERVISOR, name: str = "python") -> Process:
    return Process(pid=pid, parent=parent, start_ticks=pid * 10, started_s=float(pid), state="S", name=name)


@dataclass
class World:
    """A supervised run of two ranks that do a step every 0.1 s of a clock that moves when somebody sleeps."""

    now_s: float = 0.0
    supervisor: int = SUPERVISOR
    state: RunState = field(
        default_factory=lambda: RunState(
            attempt=0,
            steps=(0, 0),
            workers=(Writer(pid=RANK0, started_s=RANK0), Writer(pid=RANK1, started_s=RANK1)),
            supervisor=Writer(pid=SUPERVISOR, started_s=SUPERVISOR),
            supervised=True,
        )
    )
    processes: dict[int, Process] = field(
        default_factory=lambda: {pid: process(pid) for pid in (SUPERVISOR, RANK0, RANK1)}
    )
    sent: list[tuple[float, int, int]] = field(default_factory=list)  # when, pid, signal
    told: list[tuple[str, object]] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)
    stopped_s: dict[int, float] = field(default_factory=dict)
    later: list[tuple[float, Callable[[World], None]]] = field(default_factory=list)
    done_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    late_s: Callable[[], float] = lambda: 0.0
    ends_s: float = 20.0

    # What is below: the table, the run's state, the sleep, the guard.

    def find(self, pid: int) -> Process | None:
        return self.processes.get(pid)

    def descendants(self, pid: int) -> list[Process]:
        return [each for each in self.processes.values() if each.parent == pid]

    def run_of(self, pid: int) -> str | None:
        return RUN

    def send(self, target: Process, signum: int) -> bool:
        assert self.processes.get(target.pid) == target, "a signal for somebody who is not there"
        self.sent.append((self.now_s, target.pid, signum))
        if signum == signal.SIGSTOP:
            assert ("hold", (target.pid, target.start_ticks)) in self.told, "the guard is told first"
            self.stopped.add(target.pid)
        elif signum == signal.SIGCONT:
            self.stopped.discard(target.pid)
        elif signum == signal.SIGKILL:
            del self.processes[target.pid]
        return True

    def look(self, now_s: float) -> RunState:
        ended = "completed" if now_s >= self.ends_s else self.state.ended
        return replace(self.state, steps=tuple(int(done / STEP_S + 1e-9) for done in self.done_s), ended=ended)

    def pause(self, seconds: float) -> bool:
        seconds = max(seconds, 1e-4) + self.late_s()
        self.now_s += seconds
        for rank, writer in enumerate(self.state.workers):
            if writer is not None and writer.pid in self.processes and writer.pid not in self.stopped:
                self.done_s[rank] += seconds
        for pid in self.stopped:
            self.stopped_s[pid] = self.stopped_s.get(pid, 0.0) + seconds
        for due in [each for each in self.later if each[0] <= self.now_s]:
            self.later.remove(due)
            due[1](self)
        return False

    def tell(self, word: str, value: object) -> None:
        self.told.append((word, value))

    def inject(self, *faults: Fault, seed: int = 0, folder: Path = Path("/nowhere")) -> list[Injected]:
        stage = Stage(
            folder=RunFolder(folder), run_id=RUN, table=self, holds=Holds(self, self.tell), tell=self.tell,
            clock=lambda: self.now_s,
        )  # fmt: skip
        return Injector(FaultPlan(faults, seed), stage, self.look, self.pause).run()

    def signals(self, pid: int) -> list[tuple[float, int]]:
        return [(at_s, signum) for at_s, target, signum in self.sent if target == pid]


@pytest.fixture
def world() -> World:
    return World()


def said(injected: list[Injected]) -> list[str]:
    return [entry.did for entry in injected]


def test_a_kill_waits_for_its_step_and_is_logged_with_who_and_when(world: World) -> None:
    (entry,) = world.inject(Kill(target=1, when=AtStep(7)))
    assert (entry.kind, entry.did, entry.rank, entry.step, entry.pids) == ("kill", "killed", 1, 7, (RANK1,))
    [(at_s, signum)] = world.signals(RANK1)
    assert signum == signal.SIGKILL
    assert 0.7 <= at_s < 0.71


def test_a_step_may_be_that_of_another_rank(world: World) -> None:
    world.done_s = [0.5, 0.0]
    world.inject(Kill(target=1, when=AtStep(7, rank=0)))
    [(at_s, _)] = world.signals(RANK1)
    assert 0.2 <= at_s < 0.21


def test_the_supervisor_and_all_are_killed(world: World) -> None:
    world.inject(Kill(target="supervisor", when=AfterS(1.0)))
    assert [pid for _, pid, _ in world.sent] == [SUPERVISOR]
    again = World()
    (entry,) = again.inject(Kill(target="all", when=AfterS(1.0)))
    assert [pid for _, pid, _ in again.sent] == [SUPERVISOR, RANK0, RANK1]
    assert entry.pids == (SUPERVISOR, RANK0, RANK1)
    assert 1.0 <= again.sent[0][0] < 1.06


def test_a_stop_lasts_its_time(world: World) -> None:
    injected = world.inject(Stop(rank=0, for_s=2.5, when=AfterS(1.0)))
    assert said(injected) == ["stopped", "continued"]
    [(began_s, first), (ended_s, last)] = world.signals(RANK0)
    assert (first, last) == (signal.SIGSTOP, signal.SIGCONT)
    assert ended_s - began_s == pytest.approx(2.5, abs=0.001)
    assert [word for word, _ in world.told if word != "beat"] == ["hold", "free"]
    assert world.signals(RANK1) == []


def test_a_stop_of_children_too(world: World) -> None:
    world.processes[LOADER] = process(LOADER, RANK0)
    world.inject(Stop(rank=0, for_s=1.0, when=NOW, children=True))
    assert {pid for _, pid, _ in world.sent} == {RANK0, LOADER}


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_a_slow_rank_does_one_over_the_factor_of_its_steps(world: World, factor: float) -> None:
    rng = random.Random(3)
    world.late_s = lambda: rng.expovariate(1000.0)  # a millisecond, as on a busy machine
    injected = world.inject(Slow(rank=0, factor=factor, when=NOW))
    assert said(injected) == ["slowed", "released"]
    assert world.done_s[1] / world.done_s[0] == pytest.approx(factor, rel=0.03)
    assert f"held for {1 - 1 / factor:.2f}" in injected[1].detail
    assert world.stopped == set()


def test_a_slow_rank_is_slow_in_the_next_attempt_too(world: World) -> None:
    def restart(world: World) -> None:
        del world.processes[RANK0]
        world.stopped.discard(RANK0)
        world.processes[400] = process(400)
        workers = (Writer(pid=400, started_s=400), world.state.workers[1])
        world.state = replace(world.state, attempt=1, workers=workers)

    def send(target: Process, signum: int) -> bool:
        return target.pid in world.processes and honest(target, signum)

    honest, world.send = world.send, send  # type: ignore[method-assign]
    world.later.append((5.0, restart))
    world.ends_s = 10.0
    world.inject(Slow(rank=0, factor=2.0, when=NOW))
    assert world.stopped_s[RANK0] == pytest.approx(2.5, abs=0.1)
    assert world.stopped_s[400] == pytest.approx(2.5, abs=0.4)
    assert world.stopped == set()


def test_two_faults_on_one_rank_let_it_go_when_the_last_has_ended(world: World) -> None:
    world.inject(Stop(rank=0, for_s=3.0, when=NOW), Stop(rank=0, for_s=1.0, when=AfterS(1.0)))
    assert [signum for _, signum in world.signals(RANK0)] == [signal.SIGSTOP, signal.SIGCONT]
    assert world.signals(RANK0)[1][0] == pytest.approx(3.0, abs=0.01)


def test_a_delay_holds_once_every_so_many_steps(world: World) -> None:
    world.ends_s = 10.05
    injected = world.inject(Delay(rank=1, delay_s=0.3, every_steps=2, when=NOW))
    # Two steps take 0.2 s and the hold 0.3 s, and a step is noticed up to a tick late.
    assert said(injected).count("held") == pytest.approx(20, abs=1)
    assert [entry.step % 2 for entry in injected if entry.did == "held"].count(1) == 0
    assert world.done_s[0] / world.done_s[1] == pytest.approx(2.5, rel=0.05)
    assert {pid for _, pid, _ in world.sent} == {RANK1}


def test_only_the_processes_of_a_loader_are_slowed(world: World) -> None:
    world.processes[LOADER] = process(LOADER, RANK1, "pt_data_worker")
    world.processes[301] = process(301, RANK1, "python")
    world.inject(SlowLoader(rank=1, factor=3.0, when=NOW, for_s=6.0))
    assert {pid for _, pid, _ in world.sent} == {LOADER}
    assert world.stopped_s[LOADER] == pytest.approx(4.0, abs=0.1)


def test_a_loader_without_processes_is_an_error_and_not_nothing(world: World) -> None:
    with pytest.raises(UserError, match="num_workers=0") as caught:
        world.inject(Stop(rank=0, for_s=60.0, when=NOW), SlowLoader(rank=1, factor=3.0, when=NOW))
    assert caught.value.code == "fault-impossible"
    assert caught.value.where == "fault 1, slow-loader"
    assert world.stopped == set(), "the other fault has let go"


def test_a_target_that_does_not_live_is_waited_for(world: World) -> None:
    gone = world.processes.pop(RANK1)
    world.later.append((4.0, lambda world: world.processes.update({RANK1: gone})))
    world.inject(Kill(target=1, when=AfterS(1.0)))
    [(at_s, _)] = world.signals(RANK1)
    assert 4.0 <= at_s < 4.1


def test_a_reused_pid_is_never_touched(world: World) -> None:
    world.processes[RANK1] = replace(process(RANK1), started_s=RANK1 + 60.0)
    world.ends_s = 5.0
    injected = world.inject(Kill(target=1, when=NOW), Stop(rank=1, for_s=1.0, when=NOW))
    assert world.sent == []
    assert said(injected) == ["skipped", "skipped"]


def test_the_injector_does_not_kill_itself(world: World) -> None:
    own = os.getpid()
    world.processes[own] = replace(process(own), started_s=1.0)
    world.state = replace(world.state, supervisor=Writer(pid=own, started_s=1.0))
    with pytest.raises(UserError) as caught:
        world.inject(Kill(target="supervisor", when=NOW))
    assert caught.value.code == "fault-impossible"
    assert world.sent == []


def test_the_end_of_the_run_ends_everything(world: World) -> None:
    world.ends_s = 5.0
    injected = world.inject(
        Stop(rank=0, for_s=60.0, when=AfterS(1.0)), Kill(target=0, when=AtStep(10_000)), Kill(target=1, when=AfterS(60))
    )
    assert world.now_s < 6.0
    assert said(injected) == ["stopped", "continued", "skipped", "skipped"]
    assert world.stopped == set()


def test_a_supervisor_that_is_gone_may_be_resumed_for_a_while(world: World) -> None:
    gone = world.processes.pop(SUPERVISOR)
    world.ends_s = 1000.0
    injected = world.inject(Kill(target="supervisor", when=NOW))
    assert said(injected) == ["skipped"]
    assert 30.0 <= world.now_s < 31.0
    again = World(ends_s=1000.0)
    del again.processes[SUPERVISOR]
    again.later.append((20.0, lambda world: world.processes.update({SUPERVISOR: gone})))
    injected = again.inject(Kill(target="supervisor", when=NOW), Kill(target=1, when=AfterS(50.0)))
    assert said(injected) == ["killed", "skipped"], "killed again, and gone for good"
    resumed = World(ends_s=1000.0)
    del resumed.processes[SUPERVISOR]
    resumed.later.append((20.0, lambda world: world.processes.update({SUPERVISOR: gone})))
    assert said(resumed.inject(Kill(target=1, when=AfterS(100.0)))) == ["killed"]


def test_an_error_in_the_middle_lets_everything_go(world: World) -> None:
    def tell(word: str, value: object) -> None:
        if world.now_s > 3.0:
            raise EnvironmentProblem(code="fault-impossible", what="The guard is gone.")
        world.told.append((word, value))

    world.tell = tell  # type: ignore[method-assign]
    with pytest.raises(EnvironmentProblem):
        world.inject(
            Stop(rank=0, for_s=60.0, when=NOW), Stop(rank=1, for_s=60.0, when=NOW), Slow(rank=1, factor=2.0, when=NOW)
        )
    assert world.stopped == set()


def test_the_guard_hears_of_the_injector_all_the_time(world: World) -> None:
    world.inject(Stop(rank=0, for_s=9.0, when=NOW))
    assert [word for word, _ in world.told].count("beat") >= 8


def test_the_same_seed_does_the_same(world: World) -> None:
    faults = (
        Kill(target=None, when=BetweenS(2.0, 8.0)),
        Stop(rank=None, for_s=0.5, when=BetweenS(0.0, 1.5)),
        Delay(rank=None, delay_s=0.2, when=AfterS(0.5), for_s=1.0),
    )
    first, again, other = World(), World(), World()
    first.inject(*faults, seed=5)
    again.inject(*faults, seed=5)
    other.inject(*faults, seed=6)
    assert first.sent == again.sent
    assert first.sent != other.sent


@pytest.mark.parametrize("file", ["../other/file", "/etc/hostname", "records/absent.rec", "records"])
def test_no_file_outside_the_runs_folder_is_damaged(world: World, tmp_path: Path, file: str) -> None:
    (tmp_path / "run" / "records").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x" * 100)
    with pytest.raises(UserError) as caught:
        world.inject(Corrupt(file=file, how="zero", when=NOW), folder=tmp_path / "run")
    assert caught.value.code == "fault-impossible"
    assert (tmp_path / "other" / "file").read_bytes() == b"x" * 100
