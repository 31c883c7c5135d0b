"""Real runs under `gscalar run`, of workers that do what they are told (gscalar.testing.scripted_worker)."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gscalar.control.indexer import refresh
from gscalar.model import events
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home, RunFolder
from gscalar.state.records import Frame, read_record
from gscalar.testing.processes import kill_marked, wait_until
from gscalar.views.show import show_run

GSCALAR = [sys.executable, "-m", "gscalar"]
WORKER = ["python", "-m", "gscalar.testing.scripted_worker"]
LIMIT_S = 60.0
Kind = TypeVar("Kind", bound=events.Event)


class Supervised:
    """One `gscalar run` process and its run."""

    def __init__(self, process: subprocess.Popen[Any], home: Path, out: Path, err: Path, known: set[str]) -> None:
        self.process = process
        self._home = home
        self._out = out
        self._err = err
        self._known = known

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def folder(self) -> RunFolder:
        """The run's folder; waits until there is one."""
        return Home(self._home).run(self.run)

    @property
    def run(self) -> str:
        found: list[str] = []

        def look() -> bool:
            found[:] = sorted(names_in(self._home / "runs") - self._known)
            return bool(found)

        wait_until(look, LIMIT_S, "a run")
        assert len(found) == 1, found
        return found[0]

    def wait(self) -> int:
        """Return the exit code."""
        return self.process.wait(LIMIT_S)

    def events(self, kind: type[Kind], *, file: str = "supervisor-a000.rec") -> list[Kind]:
        """Return the events of a kind in one of the run's records."""
        path = self.folder.records / file
        if not path.exists():
            return []
        told = [item.event for item in read_record(path) if isinstance(item, Frame)]
        return [event for event in told if isinstance(event, kind)]

    def wait_for_step(self, step: int = 1, *, attempt: int = 0, ranks: int = 1) -> None:
        """Wait until these ranks have done a step of this attempt."""
        for rank in range(ranks):
            file = f"a{attempt:03d}-r{rank:05d}.rec"
            wait_until(
                lambda file=file: any(each.step >= step for each in self.events(events.Step, file=file)),  # type: ignore[misc]
                LIMIT_S,
                f"step {step} of {file}:\n{self.err}",
            )

    def pids(self, attempt: int = 0) -> tuple[int, ...]:
        """Return the workers' process ids."""
        return self.events(events.AttemptStarted)[attempt].pids

    def failure(self, attempt: int = 0) -> dict[str, Any]:
        """Return the failure with which an attempt ended."""
        failure = self.events(events.AttemptEnded)[attempt].failure
        assert failure is not None
        return failure


def names_in(folder: Path) -> set[str]:
    """Return the names in a folder that may not exist."""
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture
def mark() -> Iterator[str]:
    """A word for the command lines of all processes of a test; what carries it is killed after the test."""
    mark = f"supervisor-test-{uuid.uuid4().hex}"
    yield mark
    kill_marked(mark)


@pytest.fixture
def begin(
    spawn: Callable[..., subprocess.Popen[Any]], home: Path, tmp_path: Path, mark: str
) -> Callable[..., Supervised]:
    """Start `gscalar run` with actions for scripted workers (or another command)."""
    count = 0

    def start(
        *actions: str,
        workers: int = 1,
        options: tuple[str, ...] = (),
        command: list[str] | None = None,
        arguments: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Supervised:
        nonlocal count
        count += 1
        out, err = tmp_path / f"out-{count}", tmp_path / f"err-{count}"
        known = names_in(home / "runs")
        words = arguments or [
            "--workers",
            str(workers),
            *options,
            "--",
            *(command or WORKER),
            *actions,
            f"print={mark}",
        ]
        with out.open("w") as out_file, err.open("w") as err_file:
            process = spawn(
                [*GSCALAR, "run", *words],
                stdout=out_file,
                stderr=err_file,
                stdin=subprocess.DEVNULL,
                cwd=tmp_path,
                env={**os.environ, **(environment or {})},
            )
        return Supervised(process, home, out, err, known)

    return start


@pytest.fixture
def gscalar(home: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a short command."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GSCALAR, *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, check=False
        )

    return call


@pytest.fixture
def show(home: Path) -> Callable[[str], dict[str, Any]]:
    """Return what `gscalar show --json` says."""

    def call(run: str) -> dict[str, Any]:
        place = Home(home)
        with open_catalog(place) as catalog:
            refresh(place, catalog, run)
            return show_run(place, catalog, run)

    return call
