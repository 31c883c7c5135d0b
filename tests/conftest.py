"""What all tests share: a home of their own, marks by folder, and skips that say how to run the test."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Two processes share two cores: an example's wall time says nothing about the code.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

FOLDER_MARKS = ("integration", "e2e")
SLOW_S = 20.0  # of a test that is marked as slow without a number
EXTRAS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "huggingface": "transformers",
    "lightning": "pytorch_lightning",
}  # mark: the module it needs; extras have the same names
# A launcher around the tests must not make a test's script believe that it is a worker.
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
    "JOBSET_NAME",
)
LAUNCHER_PREFIXES = ("GSCALAR_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MV2_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder in FOLDER_MARKS:
            if f"/tests/{folder}/" in item.path.as_posix():
                item.add_marker(folder)
    # The longest begin first, so that none of them is left to one process at the end. The rest stays shuffled.
    items.sort(key=usual_s, reverse=True)


def usual_s(item: pytest.Item) -> float:
    """Return about how long a test takes, as its mark says; 0 for those without."""
    marker = item.get_closest_marker("slow")
    return 0.0 if marker is None else float(next(iter(marker.args), SLOW_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, module in EXTRAS.items():
        if item.get_closest_marker(mark) and importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}: .venv/bin/pip install -c constraints.txt -e '.[{mark}]'")
    for marker in item.iter_markers("debian"):
        if not debian_package_installed(marker.args[0]):
            pytest.skip(f"needs a system package: apt-get install --no-install-recommends {marker.args[0]}")


def debian_package_installed(name: str) -> bool:
    """Tell whether dpkg knows the package as installed; False where there is no dpkg."""
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", name]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"


@pytest.fixture(autouse=True)
def no_launcher_around_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what a launcher or the user's shell says about ranks and homes."""
    for name in list(os.environ):
        if name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIXES):
            monkeypatch.delenv(name)
    # A child without bytecode in its venv starts in seconds instead of tenths.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, also for the processes that it starts."""
    path = tmp_path / "home"
    monkeypatch.setenv("GSCALAR_HOME", str(path))
    return path


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder with a short path, for UNIX sockets (a path holds at most 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="gs") as path:
        yield Path(path)


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[Any]]]:
    """Start a process in a group of its own; whatever is left of the group is killed after the test."""
    started: list[subprocess.Popen[Any]] = []

    def start(command: list[str | Path], **options: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen(command, start_new_session=True, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
