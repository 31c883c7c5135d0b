"""Trainings with Keras, each in processes of its own, since a process has one backend for life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "scripts" / "digits.py"
LIGHT = Path(__file__).parent / "light"
LIMIT_S = 240.0
GSCALAR = [sys.executable, "-m", "gscalar"]


class Trained(NamedTuple):
    """A training that is over: how its command ended, its weights, and what `gscalar show` says."""

    code: int
    weights: list[Any]
    shown: dict[str, Any]
    output: str


@pytest.fixture
def train(home: Path, tmp_path: Path) -> Callable[..., Trained]:
    """Train the digits under `gscalar run`; `resume` goes on with the run of this name."""

    def run(
        name: str,
        *,
        workers: int = 1,
        resume: bool = False,
        script: Path = SCRIPT,
        hang_after_s: float = 60,
        plan: str = "{kind: allreduce}",
        **environment: str,
    ) -> Trained:
        out = tmp_path / f"{name}.npz"
        paths = [str(LIGHT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(paths),
            **environment,
        }  # fmt: skip
        command = [*GSCALAR, "run", "--home", str(home)]
        command += ["--resume", name] if resume else ["--name", name, "--workers", str(workers)]
        command += [] if resume else ["--set", f"hang_after_s={hang_after_s}", "--set", f"plan.sync={plan}"]
        command += [] if resume else ["--", sys.executable, str(script), str(out)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        shown = subprocess.run(
            [*GSCALAR, "show", "--home", str(home), name, "--json"], capture_output=True, text=True, check=True
        )
        weights = [array for _, array in sorted(np.load(out).items())] if out.exists() else []
        return Trained(done.returncode, weights, json.loads(shown.stdout), done.stdout + done.stderr)

    return run
