"""Gangs of real worker processes, as any launcher would start them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 180.0


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """Return ports that nothing listened on a moment ago."""

    def find(count: int) -> list[int]:
        with contextlib.ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(count)]
            for probe in probes:
                probe.bind(("127.0.0.1", 0))
            return [int(probe.getsockname()[1]) for probe in probes]

    return find


@pytest.fixture
def script_environment() -> dict[str, str]:
    """The variables with which a test's script starts: one thread a worker."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def gang(
    spawn: Callable[..., subprocess.Popen[Any]],
    home: Path,
    script_environment: dict[str, str],
    free_ports: Callable[[int], list[int]],
    tmp_path: Path,
) -> Callable[..., None]:
    """Run a script on every rank of a world, without a supervisor; fail where a rank does."""

    def run(script: Path, world: int, *arguments: str | Path, **environment: str) -> None:
        (port,) = free_ports(1)
        logs = [tmp_path / f"{script.stem}-{world}-{rank}.log" for rank in range(world)]
        started = []
        for rank, log in enumerate(logs):
            place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
            variables = {name: str(value) for name, value in place.items()} if world > 1 else {}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GSCALAR_HOME": str(home)}
            with log.open("w") as file:
                command = [sys.executable, script, *arguments]
                variables = {**script_environment, **variables, **environment}
                started.append(spawn(command, stdout=file, stderr=subprocess.STDOUT, env=variables, cwd=tmp_path))
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in started:
                process.wait(LIMIT_S)
        codes = [process.poll() for process in started]  # None: it hangs, and ends with the test
        assert codes == [0] * world, "\n".join(log.read_text() for log in logs)

    return run
