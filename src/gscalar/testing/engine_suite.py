"""What every engine must do, as tests that run on every engine.

Subclass `EngineSuite`, set `make_engine` to a statement that binds `engine`, and pytest runs all of
it. The suite looks at the workers from outside, through /proc, so it runs where the engine's
workers are processes of this machine.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gscalar.control.engine import Engine, Gang, GangRequest, WorkerExit
from gscalar.testing.processes import alive, kill_marked, marked, wait_until

LOG = logging.getLogger(__name__)

# A grandchild that hides: own session, parent gone, empty environment.
DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', MARK], {})
    os._exit(0)
os.wait()
"""
# A plain subprocess that ignores what it can.
CHILD = """
import subprocess, sys
code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'
child = subprocess.Popen([sys.executable, '-c', code, MARK])
"""
SLEEP = "import time; print('ready', flush=True); time.sleep(600)\n"

LAUNCH_ELSEWHERE = """
import json, sys, time
from pathlib import Path
from gscalar.control.engine import GangRequest
{make_engine}
fields = json.loads(sys.argv[1])
fields |= dict(command=tuple(fields['command']), folder=Path(fields['folder']))
fields |= dict(logs=tuple(Path(log) for log in fields['logs']))
gang = engine.launch(GangRequest(**fields))
print('launched', flush=True)
time.sleep(600)
"""


class EngineSuite:
    """The contract of `gscalar.control.engine.Engine` and `Gang`."""

    make_engine: str  # such as "from somewhere import E; engine = E()"

    @pytest.fixture
    def mark(self) -> Iterator[str]:
        """Return a word that all processes of the test have on their command line."""
        mark = f"engine-suite-{uuid.uuid4().hex}"
        yield mark
        kill_marked(mark)

    @pytest.fixture
    def engine(self) -> Engine:
        """Return an engine."""
        scope: dict[str, Any] = {}
        exec(self.make_engine, scope)  # noqa: S102 - the statement is the subclass's own
        engine: Engine = scope["engine"]
        return engine

    def test_every_worker_gets_the_rendezvous_that_torchrun_users_know(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        gang = engine.launch(_request(tmp_path, mark, code, workers=3, environment={"GSCALAR_X": "ü y"}))
        try:
            exits = _wait(gang, 3)
        finally:
            gang.close()
        assert all(exit.done for exit in exits), exits
        seen = [json.loads(_log(tmp_path, rank).read_text()) for rank in range(3)]
        assert [env["RANK"] for env in seen] == ["0", "1", "2"]
        assert [env["LOCAL_RANK"] for env in seen] == ["0", "1", "2"]
        for env in seen:
            assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("3", "3")
            assert env["MASTER_ADDR"]
            assert env["MASTER_PORT"] == seen[0]["MASTER_PORT"]
            assert (env["GSCALAR_GANG"], env["GSCALAR_X"]) == (mark, "ü y")
            assert env["PYTHONUNBUFFERED"] == "1"
            assert int(env["OMP_NUM_THREADS"]) >= 1

    def test_the_users_thread_count_is_left_alone(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        code = "import os; print(os.environ['OMP_NUM_THREADS'])"
        gang = engine.launch(_request(tmp_path, mark, code, environment={"OMP_NUM_THREADS": "37"}))
        try:
            _wait(gang, 1)
        finally:
            gang.close()
        assert _log(tmp_path, 0).read_text() == "37\n"

    def test_every_gang_has_a_rendezvous_of_its_own(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        ports = set()
        for attempt in range(3):
            code = "import os; print(os.environ['MASTER_PORT'])"
            gang = engine.launch(_request(tmp_path / str(attempt), mark, code))
            try:
                _wait(gang, 1)
            finally:
                gang.close()
            ports.add(_log(tmp_path / str(attempt), 0).read_text())
        assert len(ports) == 3

    def test_exit_codes_and_signals_are_told_apart_and_returned_once(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        code = (
            "import os, signal, sys; rank = int(os.environ['RANK'])\n"
            "if rank == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "sys.exit((0, 3, 75)[rank])"
        )
        gang = engine.launch(_request(tmp_path, mark, code, workers=4))
        try:
            exits = sorted(_wait(gang, 4), key=lambda exit: exit.rank)
            again = gang.poll(0.1)
        finally:
            gang.close()
        assert [(exit.code, exit.signum) for exit in exits] == [(0, None), (3, None), (75, None), (None, 9)]
        assert not any(exit.oom_killed for exit in exits)
        assert abs(exits[0].time_ns - time.time_ns()) < 60e9
        assert again == []

    def test_a_killed_worker_is_seen_at_once(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        gang = engine.launch(_request(tmp_path, mark, SLEEP, workers=2))
        try:
            _wait_ready(tmp_path, 2)
            started = time.monotonic()
            os.kill(gang.pids[1], signal.SIGKILL)
            exits = gang.poll(5.0)
            seen_s = time.monotonic() - started
        finally:
            gang.close()
        assert [(exit.rank, exit.signum) for exit in exits] == [(1, signal.SIGKILL)]
        LOG.info("a killed worker was seen after %.1f ms", seen_s * 1000)
        assert seen_s < 1.0

    def test_the_log_holds_both_streams_in_order_and_is_whole_when_the_exit_is_known(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        code = (
            "import os, subprocess, sys\nfor i in range(2000):\n"
            "    print('out', i, 'x' * 100)\n    print('err', i, file=sys.stderr)\n"
            "subprocess.run([sys.executable, '-c', 'print(\"from a child\")'], check=True)\n"
            "os.write(1, b'\\xff\\n'); raise SystemExit(1)"
        )
        gang = engine.launch(_request(tmp_path, mark, code))
        try:
            _wait(gang, 1)
            got = _log(tmp_path, 0).read_bytes().splitlines()
        finally:
            gang.close()
        want = [line for i in range(2000) for line in (f"out {i} {'x' * 100}".encode(), f"err {i}".encode())]
        assert got == [*want, b"from a child", b"\xff"]

    def test_a_worker_may_close_its_output_and_go_on(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        code = "import os, time; os.close(1); os.close(2); time.sleep(0.3); os._exit(5)"
        gang = engine.launch(_request(tmp_path, mark, code))
        try:
            assert [exit.code for exit in _wait(gang, 1)] == [5]
        finally:
            gang.close()

    def test_a_command_that_cannot_be_started_is_an_exit_with_a_reason(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        request = _request(tmp_path, mark, "", command=(str(tmp_path / "absent"),), workers=2)
        gang = engine.launch(request)
        try:
            exits = _wait(gang, 2)
        finally:
            gang.close()
        assert {(exit.code, exit.signum) for exit in exits} == {(None, None)}
        assert all("absent" in exit.detail for exit in exits), exits

    def test_a_signal_reaches_the_workers_and_not_their_children(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        child = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('child got it'))\ntime.sleep(600)"
        code = (
            "import os, signal, subprocess, sys, time\n"
            f"child = subprocess.Popen([sys.executable, '-c', {child!r}, {mark!r}])\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('got it', child.poll()), os._exit(75)))\n"
            "time.sleep(0.3); print('ready'); time.sleep(600)"
        )
        gang = engine.launch(_request(tmp_path, mark, code, workers=2))
        try:
            _wait_ready(tmp_path, 2)
            gang.signal(signal.SIGTERM)
            exits = _wait(gang, 2)
        finally:
            gang.close()
        assert [exit.code for exit in exits] == [75, 75]
        assert _log(tmp_path, 1).read_text() == "ready\ngot it None\n"

    def test_a_signal_can_go_to_a_process_below_the_worker_and_to_no_stranger(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        inner = (
            "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit(75))\n"
            "print(os.getpid()); time.sleep(600)"
        )
        script = f'{sys.executable} -c "$0" {mark}\nexit $?'
        request = _request(tmp_path, mark, "", command=("bash", "-c", script, inner))
        gang = engine.launch(request)
        try:
            wait_until(lambda: _log(tmp_path, 0).exists() and _log(tmp_path, 0).read_text().endswith("\n"), 30)
            below = int(_log(tmp_path, 0).read_text())
            assert below != gang.pids[0]
            gang.signal(signal.SIGCONT, {0: os.getppid()})  # harmless, and not this gang's
            gang.signal(signal.SIGTERM, {0: below})
            exits = _wait(gang, 1)
        finally:
            gang.close()
        assert [exit.code for exit in exits] == [75]

    def test_workers_start_with_no_signal_ignored_or_blocked(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        command = ("grep", "-hE", "Sig(Ign|Blk)", "/proc/self/status")
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
        try:
            gang = engine.launch(_request(tmp_path, mark, "", command=command))
            try:
                _wait(gang, 1)
            finally:
                gang.close()
        finally:
            signal.signal(signal.SIGINT, before)
        masks = [int(line.split()[1], 16) for line in _log(tmp_path, 0).read_text().splitlines()]
        # Signals 32 and 33 are the C library's own: no program can set them, and make leaves 32 ignored.
        settable = ~(1 << 31 | 1 << 32)
        assert [mask & settable for mask in masks] == [0, 0]

    def test_a_stopped_worker_is_told_from_a_running_one(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        gang = engine.launch(_request(tmp_path, mark, SLEEP, workers=2))
        try:
            _wait_ready(tmp_path, 2)
            os.kill(gang.pids[1], signal.SIGSTOP)
            wait_until(lambda: gang.inspect() == {0: "running", 1: "stopped"}, 5)
        finally:
            gang.close()

    def test_kill_leaves_nothing_neither_children_nor_daemons_nor_stopped_workers(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        gang = engine.launch(_request(tmp_path, mark, _family(mark), workers=2))
        try:
            _wait_ready(tmp_path, 2)
            assert len(marked(mark)) >= 6
            os.kill(gang.pids[0], signal.SIGSTOP)
            started = time.monotonic()
            gang.kill()
            LOG.info("killed in %.0f ms", (time.monotonic() - started) * 1000)
            assert marked(mark) == []
            assert sorted((exit.rank, exit.signum) for exit in _wait(gang, 2)) == [(0, 9), (1, 9)]
        finally:
            gang.close()

    def test_close_kills_what_finished_workers_left(self, engine: Engine, tmp_path: Path, mark: str) -> None:
        code = _family(mark, then="import time; print('ready'); time.sleep(0.2)")
        gang = engine.launch(_request(tmp_path, mark, code))
        assert [exit.code for exit in _wait(gang, 1)] == [0]
        gang.close()
        gang.close()
        assert marked(mark) == []

    def test_when_the_launching_process_is_killed_all_are_gone_within_two_seconds(
        self, tmp_path: Path, mark: str
    ) -> None:
        supervisor = self._launch_elsewhere(tmp_path, mark)
        try:
            assert len(marked(mark)) >= 6
            os.kill(supervisor.pid, signal.SIGKILL)
            gone_s = wait_until(lambda: not marked(mark), 10, f"{mark} gone")
        finally:
            _end(supervisor)
        LOG.info("all were gone %.0f ms after the launching process", gone_s * 1000)
        assert gone_s < 2.0

    def test_a_held_descriptor_stays_open_until_nobody_of_the_gang_is_left(
        self, engine: Engine, tmp_path: Path, mark: str
    ) -> None:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        gang = engine.launch(_request(tmp_path, mark, SLEEP, held_fd=write_fd))
        os.close(write_fd)
        try:
            _wait_ready(tmp_path, 1)
            with pytest.raises(BlockingIOError):
                os.read(read_fd, 1)
            gang.close()
            wait_until(lambda: os.read(read_fd, 1) == b"", 5)
        finally:
            gang.close()
            os.close(read_fd)

    def _launch_elsewhere(self, folder: Path, mark: str) -> subprocess.Popen[str]:
        request = _request(folder, mark, _family(mark), workers=2)
        fields = {
            "run": request.run,
            "attempt": 0,
            "token": request.token,
            "command": request.command,
            "folder": str(request.folder),
            "workers": request.workers,
            "logs": [str(log) for log in request.logs],
        }
        code = LAUNCH_ELSEWHERE.format(make_engine=self.make_engine)
        process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(fields)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "launched\n"
        _wait_ready(folder, 2)
        # The request itself holds the mark: what counts are the workers and what they started.
        return process


def _family(mark: str, then: str = SLEEP) -> str:
    return f"MARK = {mark!r}\n{DAEMON}{CHILD}import time; time.sleep(0.2)\n{then}"


def _request(
    folder: Path,
    mark: str,
    code: str,
    *,
    workers: int = 1,
    command: tuple[str, ...] | None = None,
    environment: dict[str, str] | None = None,
    held_fd: int | None = None,
) -> GangRequest:
    folder.mkdir(exist_ok=True)
    return GangRequest(
        run="run",
        attempt=0,
        token=mark,
        command=command or (sys.executable, "-c", code, mark),
        folder=folder,
        workers=workers,
        logs=tuple(_log(folder, rank) for rank in range(workers)),
        environment=environment or {},
        held_fd=held_fd,
    )


def _log(folder: Path, rank: int) -> Path:
    return folder / "logs" / f"{rank}.log"


def _wait(gang: Gang, count: int, limit_s: float = 30.0) -> list[WorkerExit]:
    deadline = time.monotonic() + limit_s
    exits: list[WorkerExit] = []
    while len(exits) < count and time.monotonic() < deadline:
        exits += gang.poll(0.2)
    assert len(exits) == count, exits
    return exits


def _wait_ready(folder: Path, workers: int) -> None:
    for rank in range(workers):
        log = _log(folder, rank)
        wait_until(lambda log=log: log.exists() and "ready" in log.read_text(), 30, f"{log} ready")  # type: ignore[misc]


def _end(process: subprocess.Popen[str]) -> None:
    if alive(process.pid):
        process.kill()
    process.communicate()
