"""PyTorch in the test's own process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import gscalar
from gscalar.model import events
from gscalar.runtime.launch import Launch
from gscalar.runtime.session import current_run
from gscalar.state.home import Home, RunFolder
from gscalar.state.records import Frame, read_logged, read_record

Kind = TypeVar("Kind", bound=events.Event)
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def place() -> Callable[..., Launch]:
    """Return a launch of any rank and world; nobody is there but this process."""

    def make(rank: int = 0, world: int = 1) -> Launch:
        return Launch(
            launcher="alone", identity="test", rank=rank, world=world, local_rank=rank, local_world=world,
            master_addr="127.0.0.1", master_port=1,
        )  # fmt: skip

    return make


@pytest.fixture
def process_group() -> Iterator[Any]:
    """A real gloo group of this process alone: data parallel works in it as in a larger one."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def random_numbers_of_the_test() -> Iterator[None]:
    """Give torch's and Python's generators back as they were."""
    import random

    import torch

    python_state, torch_state = random.getstate(), torch.get_rng_state()
    yield
    random.setstate(python_state)
    torch.set_rng_state(torch_state)


# ---- trainers of others, which a callback follows ---------------------------------------------------------


class Attempts:
    """One run after the other of a script's `train`, in this process, into one run's record."""

    def __init__(self, script: ModuleType, output: Path, home: Path, run_id: str) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self.output, self._script = output, script
        self.folder: RunFolder = Home(home).run(run_id)
        self.trainer: Any = None

    def train(self, *words: str, every_steps: int | None = 3, **settings: Any) -> Any:
        """Train in a run of this process and finish it; what the training raises is raised."""
        checkpoint = {"every_s": None, **({"every_steps": every_steps} if every_steps else {})}
        with gscalar.init(checkpoint=checkpoint, **settings) as run:
            try:
                self.trainer = self._script.train(self.output, list(words))
            except BaseException as error:
                run.__exit__(type(error), error, None)
                run.finish()
                raise
        return self.trainer

    def events(self, kind: type[Kind], attempt: int = 0) -> list[Kind]:
        """Return what an attempt recorded of a kind."""
        path = self.folder.worker_record(attempt, 0)
        told = [item.event for item in read_record(path) if isinstance(item, Frame)]
        return [event for event in told if isinstance(event, kind)]

    def logged(self, name: str, attempt: int = 0) -> list[tuple[int, float]]:
        """Return what was logged under a name: (step, value)."""
        points = read_logged(self.folder.worker_record(attempt, 0))
        return [(point.step, point.values[name]) for point in points if name in point.values]

    def weights(self, attempt: int) -> str:
        """Return the digest with which an attempt ended."""
        (finished,) = self.events(events.Finished, attempt)
        return finished.digests["weights"]

    def notes(self, attempt: int = 0) -> list[str]:
        """Return the codes of an attempt's notes."""
        return [note.code for note in self.events(events.Note, attempt)]


@pytest.fixture
def attempts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Attempts]]:
    """Return how to train a script's `train` in this process, attempt after attempt of one run."""

    def begin(script: str, run_id: str = "run") -> Attempts:
        monkeypatch.setenv("GSCALAR_RUN_ID", run_id)
        return Attempts(_load(script), tmp_path / run_id, home, run_id)

    yield begin
    run = current_run()
    if run is not None:
        run.finish()


@pytest.fixture
def two_workers(
    spawn: Callable[..., subprocess.Popen[Any]], home: Path, tmp_path: Path, script_environment: dict[str, str]
) -> Callable[..., Path]:
    """Return how to run a script under `gscalar run` with two workers; it returns the folder that they wrote to."""

    def run(script: str, *words: str) -> Path:
        folder = tmp_path / "two"
        folder.mkdir()
        command = [sys.executable, str(SCRIPTS / f"{script}.py"), str(folder), *words]
        text = f"command: {command!r}\nworkers: 2\ncheckpoint: {{every_steps: 3, every_s: null}}\n"
        (folder / "job.yaml").write_text(text)
        told = folder / "told.txt"
        with told.open("w") as file:
            supervise = [sys.executable, "-m", "gscalar", "run", folder / "job.yaml"]
            process = spawn(supervise, stdout=file, stderr=subprocess.STDOUT, env=script_environment)
            code = process.wait(180)
        assert code == 0, told.read_text()
        return folder

    return run


def _load(name: str) -> ModuleType:
    """Return a script as a module; its last lines do not run."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
