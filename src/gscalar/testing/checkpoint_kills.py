"""Kills a process that saves checkpoints, again and again, and looks at what it leaves.

A server process (`python -m gscalar.testing.checkpoint_kills`, or any that calls `serve_writers`)
forks one writer after the other, so that a writer starts in milliseconds whatever it has imported.
A writer goes on from the newest checkpoint that loads, like a resumed training: first the same step
again (so that a replacement is under way too), then the next ones, pruning after each. The killer
lets it finish a few saves, waits a random part of a save's time, sends SIGKILL, and then demands:

- `latest` names a checkpoint whose checksums hold (and which `load` can load);
- no committed checkpoint is damaged;
- no save that was reported as done is lost.

Where the kills fell is counted, since a kill that misses the saves proves nothing.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final, Protocol, TypeVar

from gscalar.state.checkpoints import (
    find_loadable,
    prune_checkpoints,
    read_latest,
    save_checkpoint,
    verify_checkpoint,
)

KEEP: Final = 2
_MAX_SAVES_BEFORE_KILL: Final = 3
# A writer whose killer is gone ends by itself.
_WRITER_LIMIT_S: Final = 120

SERVER_COMMAND: Final = (sys.executable, "-m", "gscalar.testing.checkpoint_kills")
T = TypeVar("T")


@dataclass
class KillReport:
    """What came of the kills: how many, where they fell, and every promise that was broken."""

    kills: int = 0
    saves: int = 0
    while_writing: int = 0  # a draft is left
    before_latest: int = 0  # the newest is committed and `latest` names the one before
    while_removing: int = 0  # a trash folder is left
    broken: list[str] = field(default_factory=list)

    @property
    def in_a_save(self) -> int:
        """How many kills cut a save or its pruning short."""
        return self.while_writing + self.before_latest + self.while_removing


def kill_writers(
    folder: Path,
    kills: int,
    seed: int,
    *,
    command: tuple[str, ...] = SERVER_COMMAND,
    load: Callable[[Path], object] = lambda _path: None,
) -> KillReport:
    """Return what is left after this many kills of writers of this folder, at instants drawn from the seed."""
    rng, report, durations_s = random.Random(seed), KillReport(), [0.02]
    done = 0
    with _server(command) as server:
        for number in range(kills):
            before = {path.name for path in folder.iterdir()}
            steps = _one_writer(server, folder, rng, durations_s)
            report.kills += 1
            report.saves += len(steps)
            done = max([done, *steps])
            _count_place(folder, before, report)
            report.broken += [f"kill {number}: {sentence}" for sentence in _broken(folder, done, load)]
    return report


class Writer(Protocol):
    """Fills a draft folder with what belongs to a step."""

    def __call__(self, draft: Path, step: int) -> object: ...


def serve_writers(write: Writer) -> None:
    """Fork a writer for every folder that stdin names, until stdin ends."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(_WRITER_LIMIT_S)
            try:
                _save_for_ever(Path(line.strip()), write)
            finally:
                os._exit(1)
        _say(f"pid {pid}")
        os.waitpid(pid, 0)
        _say("ended")


def write_random_files(draft: Path, step: int) -> None:
    """Fill a draft with a few small files that follow from the step."""
    rng = random.Random(step)
    (draft / "arrays").mkdir()
    for name in ("state.json", "arrays/.metadata", "arrays/__0_0.distcp"):
        (draft / name).write_bytes(rng.randbytes(rng.randrange(1, 100_000)))


def _save_for_ever(folder: Path, write: Writer) -> None:
    found = find_loadable(folder).found
    step = found.step if found else 1
    while True:
        saved = save_checkpoint(folder, step, {"world": 1}, partial(write, step=step))
        _say(f"saved {step}")
        prune_checkpoints(folder, KEEP, trusted=saved)
        step += 1


def _say(line: str) -> None:
    # One system call, so that a line is whole whenever the process is killed.
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


@contextmanager
def _server(command: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield server
    finally:
        # The writer is of the same group, and may be alive where the killer itself failed.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        for stream in (server.stdin, server.stdout):
            _there(stream).close()


def _one_writer(server: subprocess.Popen[str], folder: Path, rng: random.Random, durations_s: list[float]) -> list[int]:
    """Return the steps that one writer reported as saved before it was killed."""
    stdin, stdout = _there(server.stdin), _there(server.stdout)
    stdin.write(f"{folder}\n")
    stdin.flush()
    pid = int(_word(stdout, "pid"))
    steps, last_s = [], time.monotonic()
    for _ in range(rng.randint(0, _MAX_SAVES_BEFORE_KILL)):
        steps.append(int(_word(stdout, "saved")))
        now_s = time.monotonic()
        durations_s.append(now_s - last_s)
        last_s = now_s
    time.sleep(rng.uniform(0, 1.2 * statistics.median(durations_s[-50:])))
    os.kill(pid, signal.SIGKILL)
    while (line := _line(stdout)) != "ended":
        steps.append(int(line.removeprefix("saved ")))
    return steps


def _count_place(folder: Path, before: set[str], report: KillReport) -> None:
    names = {path.name for path in folder.iterdir()}
    left = {name for name in names - before if name.startswith(".")}
    newest = max((name for name in names if name.startswith("step-")), default="")
    latest = read_latest(folder)
    if any(name.startswith(".draft-") for name in left):
        report.while_writing += 1
    elif newest and (latest is None or latest.name != newest):
        report.before_latest += 1
    elif any(name.startswith(".trash-") for name in left):
        report.while_removing += 1


def _broken(folder: Path, done: int, load: Callable[[Path], object]) -> Iterator[str]:
    loadable = find_loadable(folder)
    for path, reason in loadable.damaged:
        yield f"{path.name} is damaged: {reason}"
    if loadable.found is not None:
        load(loadable.found.path)
    if done > (loadable.found.step if loadable.found else 0):
        yield f"step {done} was saved and is lost"
    if not (folder / "latest").exists():
        if done:
            yield "there is no latest"
        return
    latest = read_latest(folder)
    if latest is None:
        yield "latest names nothing"
        return
    load(verify_checkpoint(latest).path)


def _word(stream: IO[str], expected: str) -> str:
    word, _, value = _line(stream).partition(" ")
    assert word == expected, (word, value, expected)
    return value


def _line(stream: IO[str]) -> str:
    line = stream.readline()
    assert line, "the server ended; its error is on stderr"
    return line.strip()


def _there(value: T | None) -> T:
    assert value is not None
    return value


if __name__ == "__main__":
    serve_writers(write_random_files)
