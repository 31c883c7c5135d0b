"""What a run's records say of its processes and steps, as they grow."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gscalar.base.errors import UserError
from gscalar.model import events
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder
from gscalar.testing.faults.process_table import Writer
from gscalar.testing.faults.run_watch import RunState, RunWatch


class Watched:
    """A run that is built, and its watch, whose clock makes every look a full one."""

    def __init__(self, tmp_path: Path, *, alone: bool = False, host: str = "") -> None:
        self.run = RunBuilder(Home(tmp_path), alone=alone)
        self.run.host = host or socket.gethostname()
        self.watch = RunWatch(self.run.folder)
        self.now_s = 0.0

    def look(self) -> RunState:
        self.now_s += 1.0
        return self.watch.look(self.now_s)


WRITER = Writer(pid=4242, started_s=1.0)


def test_nothing_is_known_of_a_run_that_has_no_record(tmp_path: Path) -> None:
    assert Watched(tmp_path).look() == RunState()


def test_a_supervised_run_is_followed_from_attempt_to_attempt(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.run.launch(world=2)
    got = watched.look()
    assert (got.attempt, got.steps, got.workers) == (0, (0, 0), (WRITER, WRITER))
    assert (got.supervised, got.supervisor, got.ended) == (True, WRITER, "")
    watched.run.train(3)
    assert watched.look().steps == (3, 3)
    watched.run.train(1)
    assert watched.look().steps == (4, 4)
    watched.run.end_attempt("failed").launch(world=2, from_step=2)
    got = watched.look()
    assert (got.attempt, got.steps) == (1, (2, 2))
    watched.run.train(5).end()
    assert watched.look().ended == "completed"


def test_a_worker_that_has_no_record_yet_is_known_by_its_pid(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.run.launch(world=1)
    supervisor = watched.run._supervisor
    assert supervisor is not None
    supervisor.emit(events.AttemptStarted(1, 1, 2, (501, 502)))
    got = watched.look()
    assert (got.attempt, got.workers, got.steps) == (1, (Writer(pid=501), Writer(pid=502)), (0, 0))


def test_a_script_alone_is_followed_by_its_own_record(tmp_path: Path) -> None:
    watched = Watched(tmp_path, alone=True)
    watched.run.launch(world=1).train(4)
    got = watched.look()
    assert (got.supervised, got.supervisor, got.attempt, got.steps, got.workers) == (False, None, 0, (4,), (WRITER,))
    watched.run.end("failed")
    assert watched.look().ended == "failed"


def test_a_file_that_has_not_grown_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path)
    watched.run.launch(world=2).train(3)
    want = watched.look()
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("a file was opened"))
    assert watched.look() == want


def test_a_run_on_another_host_is_refused(tmp_path: Path) -> None:
    watched = Watched(tmp_path, host="elsewhere")
    watched.run.launch(world=1)
    with pytest.raises(UserError, match="elsewhere") as caught:
        watched.look()
    assert caught.value.code == "fault-impossible"
