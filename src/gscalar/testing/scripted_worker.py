"""A worker that does what it is told, without a framework: for tests of whoever supervises it.

    python -m gscalar.testing.scripted_worker ACTION...

It writes the record that a real worker would write (as far as a supervisor looks at it) and obeys
SIGTERM at a step border. An action may be kept to a rank (`r1:`) or an attempt (`a0:`), or both.

    init            call `init`: header and WorkerStarted
    step=N          N steps, `pace` seconds each
    meet=NAME       wait until all ranks have come here
    pace=S          seconds a step takes from now on (0.01 at first)
    until=N         steps until step N is done
    resume=N        go on from a checkpoint of step N
    forever         steps until somebody stops it
    beat=PHASE      one heartbeat
    silent=S        do nothing for S seconds, without a heartbeat
    print=TEXT      one line on stdout
    raise=TEXT      a ValueError, recorded as the runtime would
    peerloss        a broken collective, as the runtime would record it
    exit=CODE       leave at once
    signal=N        send itself a signal
    daemon=MARK     leave a daemon behind that hides: own session, empty environment
    child=MARK      start a child that ignores SIGTERM
    deaf            ignore SIGTERM
    finish          end in order
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from gscalar.model import events
from gscalar.state.home import Home
from gscalar.state.records import RecordWriter, own_header

_PREFIX = re.compile(r"^([ra]\d+):")
_HIDER = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]], {})
    os._exit(0)
os.wait()
"""
_DEAF_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


class ScriptedWorker:
    """The state of one scripted process."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.attempt = int(os.environ["GSCALAR_ATTEMPT"])
        self.writer: RecordWriter | None = None
        self.step = 0
        self.pace_s = 0.01
        self.stop_requested = False

    def play(self, actions: list[str]) -> None:
        """Do the actions that are meant for this rank and attempt."""
        for action in actions:
            while match := _PREFIX.match(action):
                number = self.rank if match[1][0] == "r" else self.attempt
                if int(match[1][1:]) != number:
                    break
                action = action[match.end() :]
            else:
                name, _, value = action.partition("=")
                getattr(self, f"do_{name}")(value)

    def do_init(self, value: str) -> None:
        folder = Home(Path(os.environ["GSCALAR_HOME"])).run(os.environ["GSCALAR_RUN_ID"])
        header = own_header(
            os.environ["GSCALAR_RUN_ID"], "worker", attempt=self.attempt, rank=self.rank, world=self.world
        )
        self.writer = RecordWriter(folder.worker_record(self.attempt, self.rank), header)
        self.emit(events.WorkerStarted(time.time_ns(), "default", "scripted", {}, {}, {}))
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def do_step(self, value: str) -> None:
        for _ in range(int(value or 1)):
            self._one_step()

    def do_until(self, value: str) -> None:
        while self.step < int(value):
            self._one_step(int(value))

    def do_forever(self, value: str) -> None:
        while True:
            self._one_step()

    def do_pace(self, value: str) -> None:
        self.pace_s = float(value)

    def do_meet(self, value: str) -> None:
        folder = Home(Path(os.environ["GSCALAR_HOME"])).run(os.environ["GSCALAR_RUN_ID"]).control
        name = f"meet-{value}-a{self.attempt}"
        (folder / f"{name}-{self.rank}").touch()
        while sum(1 for _ in folder.glob(f"{name}-*")) < self.world:
            time.sleep(0.01)

    def do_resume(self, value: str) -> None:
        self.step = int(value)
        self.emit(events.Resumed(time.time_ns(), self.step, f"checkpoints/step-{self.step}"))

    def do_beat(self, value: str) -> None:
        self.emit(events.Beat(time.time_ns(), value or "init"))

    def do_silent(self, value: str) -> None:
        deadline = time.monotonic() + float(value)
        while time.monotonic() < deadline:
            time.sleep(0.05)

    def do_print(self, value: str) -> None:
        sys.stdout.write(value + "\n")

    def do_raise(self, value: str) -> None:
        try:
            raise ValueError(value)
        except ValueError:
            text = traceback.format_exc()
        if self.writer is not None:
            self._fail("ValueError", value, text, secondary=False)
        sys.stderr.write(text)
        os._exit(1)

    def do_peerloss(self, value: str) -> None:
        message = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
        text = f"Traceback (most recent call last):\nRuntimeError: {message}\n"
        self._fail("RuntimeError", message, text, secondary=True)
        sys.stderr.write(text)
        os._exit(1)

    def do_exit(self, value: str) -> None:
        os._exit(int(value))

    def do_signal(self, value: str) -> None:
        os.kill(os.getpid(), int(value))
        time.sleep(600 if int(value) == signal.SIGKILL else 0.01)

    def do_daemon(self, value: str) -> None:
        subprocess.run([sys.executable, "-c", _HIDER, value], check=True)

    def do_child(self, value: str) -> None:
        subprocess.Popen([sys.executable, "-c", _DEAF_CHILD, value])

    def do_deaf(self, value: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_finish(self, value: str) -> None:
        self.emit(events.Finished(time.time_ns(), self.step, 0.0, 0.0, {"weights": "0" * 64}))
        self._close()

    def emit(self, event: events.Event) -> None:
        """Record one event."""
        assert self.writer is not None, "init comes first"
        self.writer.emit(event)

    def _one_step(self, total_steps: int = 0) -> None:
        time.sleep(self.pace_s)
        self.step += 1
        now_ns = time.time_ns()
        self.emit(events.Step(self.step, now_ns, self.pace_s, 8.0, 64.0, 1e-3, 1 / self.step, 0, total_steps))
        if self.stop_requested:
            self.emit(events.StopAcknowledged(time.time_ns(), self.step))
            self._close()
            os._exit(75)

    def _fail(self, kind: str, message: str, text: str, *, secondary: bool) -> None:
        now_ns = time.time_ns()
        self.emit(events.Failure(now_ns, self.rank, self.step, "user_error", kind, message, text, secondary))
        self._close()

    def _close(self) -> None:
        assert self.writer is not None
        self.writer.close()

    def _on_sigterm(self, signum: int, frame: object) -> None:
        self.stop_requested = True


def main() -> None:
    """Play the actions of the command line."""
    ScriptedWorker().play(sys.argv[1:])


if __name__ == "__main__":
    main()
