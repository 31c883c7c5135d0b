"""The same seed ends with the same weights, in other processes and under another launcher; another seed does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "_resume_script.py"
GSCALAR = [sys.executable, "-m", "gscalar"]


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(4, marks=pytest.mark.long)])
def test_the_same_seed_twice_has_equal_digests_and_another_seed_has_not(
    world: int, gang: Callable[..., None], free_ports: Callable[[int], list[int]], script_environment: dict[str, str],
    home: Path, tmp_path: Path,
) -> None:  # fmt: skip
    told = {"MATRIX_PLANS": "plain:5,plain:6", "MATRIX_FOLDER": str(tmp_path)}
    gang(SCRIPT, world, **told, MATRIX_PORTS=",".join(map(str, free_ports(2))))
    told["MATRIX_PLANS"] = "plain:5"
    command = [*GSCALAR, "run", "--workers", str(world), "--name", "again", "--", "python", str(SCRIPT)]
    environment = {**script_environment, **told, "GSCALAR_HOME": str(home), "PYTHONHASHSEED": "7"}
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=240)
    first, other, again = (show(name) for name in ("plain-5", "plain-6", "again"))
    assert [run["attempts"][-1]["world"] for run in (first, other, again)] == [world] * 3
    assert {run["status"] for run in (first, other, again)} == {"completed"}
    for name in ("weights", "data"):
        assert first["digests"][name] == again["digests"][name]
        assert first["digests"][name] != other["digests"][name]
    assert first["metrics"]["train/loss"]["last"] == again["metrics"]["train/loss"]["last"]


def show(run: str) -> dict[str, Any]:
    done = subprocess.run([*GSCALAR, "show", run, "--json"], check=True, capture_output=True, timeout=60)
    return dict(json.loads(done.stdout))
