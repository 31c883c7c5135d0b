"""A process has one backend: the cases of JAX run in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jax, pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[4]
CASES = Path(__file__).parent / "jax_cases.py"
# Keras's variables on JAX do not know NumPy 2's copy=False yet.
OF_KERAS = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"


def test_all_cases_of_jax_hold() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-W", OF_KERAS, str(CASES)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
