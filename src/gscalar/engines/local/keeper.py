"""The keeper of one gang: the parent of its workers, which outlives the supervisor by a blink.

Run as `python -I -S keeper.py`, in a session of its own, with the standard library only. It starts
the workers, each in its own session, writes what they print to their log files, and says on stdout
when one ends. Its stdin comes from the supervisor: when that ends, the supervisor is dead, however
it died, and the keeper kills everything and goes.

"Everything" is exact: the keeper is a child subreaper (prctl(2)), so a descendant that loses its
parent, a daemon too, becomes the keeper's own child; it kills the tree below itself until the
kernel says that it has no children. Should the keeper itself be killed, the workers die of
PR_SET_PDEATHSIG, and the supervisor sweeps up their descendants by the token in their environment.

Why workers do not write to their log themselves: on a full disk `print` would raise into the
training. Here the bytes are dropped, counted and mentioned.

Protocol, one JSON object a line. In: the request, then {"signal": n, "pids": [..]} and {"kill": 1}.
Out: {"pids": [..]}, {"exit": rank, "code"|"signum"|"detail": .., "time_ns": n, "dropped": n},
{"empty": 1} after a kill, {"crash": text}.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_CHUNK: Final = 1 << 16
# A pipe that is filled as fast as it is emptied must not keep the keeper from its commands. The largest
# pipe of an unprivileged process (1 MiB) is emptied by one pump, so a dead worker's output is whole.
_MOST_CHUNKS: Final = 16
_KILL_LIMIT_S: Final = 10.0
_CAUGHT: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)


def process_table(proc: str = "/proc") -> dict[int, tuple[int, int, str]]:
    """Return (parent, session, state letter) of every process that can be seen."""
    table: dict[int, tuple[int, int, str]] = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        try:
            fd = os.open(f"{proc}/{entry.name}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.read(fd, 4096)
            finally:
                os.close(fd)
        except OSError:
            continue  # it ended meanwhile
        # The command name is in parentheses and may itself hold spaces and parentheses.
        fields = text[text.rfind(b")") + 2 :].split()
        table[int(entry.name)] = (int(fields[1]), int(fields[3]), fields[0].decode())
    return table


def descendants(root: int, table: dict[int, tuple[int, int, str]]) -> set[int]:
    """Return every process below `root`, zombies included."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    frontier = [root]
    while frontier:
        for child in children.get(frontier.pop(), ()):
            if child not in found:
                found.add(child)
                frontier.append(child)
    return found


class _Log:
    """One worker's pipe and log file."""

    def __init__(self, path: str, pipe: int) -> None:
        self.pipe = pipe
        self.open = True  # somebody may still write
        self.dropped = 0
        self._unsaid = 0
        self._path = path
        self._file = -1
        try:
            self._open()  # a worker that prints nothing has a log too
        except OSError:
            pass  # tried again at the first output, and counted

    def pump(self) -> None:
        """Move what is there to the file; where more comes all the time, the rest with the next call."""
        for _ in range(_MOST_CHUNKS):
            if not self.open:
                return
            try:
                chunk = os.read(self.pipe, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                self.close()
                return
            self._write(chunk)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def _write(self, chunk: bytes) -> None:
        try:
            if self._file < 0:
                self._open()
            if self._unsaid:
                mention = b"\n[gscalar: %d bytes of output were dropped here, the disk was full]\n"
                os.write(self._file, mention % self._unsaid)
                self._unsaid = 0
            while chunk:
                chunk = chunk[os.write(self._file, chunk) :]
        except OSError:
            self.dropped += len(chunk)
            self._unsaid += len(chunk)

    def close(self) -> None:
        if self.open:
            os.close(self.pipe)
        if self._file >= 0:
            os.close(self._file)
        self.open, self._file = False, -1


class Keeper:
    """The state of one gang. Single-threaded; `run` returns when nothing of the gang is left."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands = commands
        self._events = events
        self._buffer = b""
        self._logs: dict[int, _Log] = {}  # by rank
        self._ranks: dict[int, int] = {}  # by pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in _CAUGHT:
            # Handlers and not SIG_IGN: exec sets handlers back to the default, and keeps SIG_IGN.
            signal.signal(signum, lambda *_: None)

    def run(self) -> None:
        lines = self._read_lines()
        while lines is not None and not lines:
            lines = self._read_lines()
        if lines is None:
            return
        os.chdir("/")
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._launch(json.loads(lines[0]))
        pending = lines[1:]
        while True:
            for line in pending:
                self._obey(json.loads(line))
            pending = []
            ready = self._wait(None)
            self._pump(ready)
            self._reap()
            if self._commands in ready:
                more = self._read_lines()
                if more is None:
                    self._kill_all()
                    return
                pending = more

    # Starting

    def _launch(self, request: dict[str, Any]) -> None:
        if request["held_fd"] is not None:
            os.set_inheritable(request["held_fd"], False)
        pids = []
        failures = []
        for rank, worker in enumerate(request["workers"]):
            environment = request["environment"] | worker["environment"]
            pid, problem = self._start(rank, request["command"], request["folder"], environment, worker["log"])
            pids.append(pid)
            if problem:
                failures.append((rank, problem))
        self._say({"pids": pids})
        for rank, problem in failures:
            self._say({"exit": rank, "detail": problem, "time_ns": time.time_ns(), "dropped": 0})

    def _start(
        self, rank: int, command: list[str], folder: str, environment: dict[str, str], log: str
    ) -> tuple[int, str]:
        output_read, output_write = os.pipe2(os.O_CLOEXEC)
        problem_read, problem_write = os.pipe2(os.O_CLOEXEC)
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(keeper, command, folder, environment, output_write, problem_write)
        os.close(output_write)
        os.close(problem_write)
        problem = b""
        while chunk := os.read(problem_read, _CHUNK):  # ends at exec, which closes the other end
            problem += chunk
        os.close(problem_read)
        os.set_blocking(output_read, False)
        if problem:
            os.close(output_read)
            os.waitpid(pid, 0)
            return 0, problem.decode(errors="replace")
        self._logs[rank] = _Log(log, output_read)
        self._ranks[pid] = rank
        return pid, ""

    def _become(
        self,
        keeper: int,
        command: list[str],
        folder: str,
        environment: dict[str, str],
        output: int,
        problem: int,
    ) -> None:
        """In the child: turn into the worker. Does not return."""
        try:
            os.setsid()
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != keeper:
                os._exit(1)  # the keeper died before the line above took effect
            # All of them: a shell's background job starts with SIGINT and SIGQUIT ignored, nohup with SIGHUP.
            for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(problem, f"{error.strerror}: {error.filename or command[0]}".encode())
        except ValueError as error:  # a null byte in an argument or a variable
            os.write(problem, str(error).encode())
        finally:
            os._exit(127)

    # Running

    def _wait(self, timeout_s: float | None) -> set[int]:
        poller = select.poll()
        pipes = [log.pipe for log in self._logs.values() if log.open]
        for fd in (self._commands, self._wake, *pipes):
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._wake in ready:
            os.read(self._wake, _CHUNK)
        return ready

    def _pump(self, ready: set[int]) -> None:
        for log in self._logs.values():
            if log.open and log.pipe in ready:
                log.pump()

    def _reap(self) -> bool:
        """Report the workers that ended; False when no child is left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._report(rank, status)

    def _report(self, rank: int, status: int) -> None:
        now_ns = time.time_ns()
        log = self._logs[rank]
        log.pump()  # so that the log is whole before the exit is known
        event: dict[str, Any] = {"exit": rank, "time_ns": now_ns, "dropped": log.dropped}
        if os.WIFSIGNALED(status):
            event["signum"] = os.WTERMSIG(status)
        else:
            event["code"] = os.WEXITSTATUS(status)
        self._say(event)

    def _obey(self, command: dict[str, Any]) -> None:
        if "kill" in command:
            stuck = self._kill_all()
            self._say({"empty": 1, "stuck": stuck})
            return
        mine = descendants(os.getpid(), process_table())
        for pid in command["pids"]:
            if pid in mine:
                _send(pid, command["signal"])

    def _kill_all(self) -> list[int]:
        """Kill the tree below until no child is left; return those that are stuck in the kernel."""
        deadline = time.monotonic() + _KILL_LIMIT_S
        while True:
            left = descendants(os.getpid(), process_table())
            for pid in left:
                _send(pid, signal.SIGKILL)
            if not self._reap():
                break
            if time.monotonic() > deadline:
                return sorted(left)
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            if poller.poll(20):
                os.read(self._wake, _CHUNK)
        for log in self._logs.values():
            log.pump()
            log.close()
        return []

    # Talking to the supervisor

    def _read_lines(self) -> list[bytes] | None:
        chunk = os.read(self._commands, _CHUNK)
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return lines

    def _say(self, event: dict[str, Any]) -> None:
        try:
            os.write(self._events, json.dumps(event).encode() + b"\n")
        except OSError:
            pass  # the supervisor is gone; the end of its pipe says so next


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def main() -> None:
    """Keep one gang, whose request comes on stdin."""
    try:
        Keeper(commands=0, events=1).run()
    except Exception as error:  # noqa: BLE001 - a process boundary: said to the supervisor, which sweeps up
        os.write(1, json.dumps({"crash": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
