"""Gangs of real worker processes, as any launcher would start them."""

from __future__ import annotations

import contextlib
import os
import secrets
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
    """Return ports that nothing listened on a moment ago.

    They lie below the range from which the system hands out ports: one of those may be given to another
    connection before the script that is told it listens on it.
    """

    def find(count: int) -> list[int]:
        with contextlib.ExitStack() as stack:
            ports: list[int] = []
            for port in secrets.SystemRandom().sample(range(20_000, 32_000), 2000):
                if len(ports) == count:
                    break
                probe = stack.enter_context(socket.socket())
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    ports.append(port)
            return ports

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
