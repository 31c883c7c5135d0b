"""A run that is killed with SIGKILL and resumed ends with the weights of the undisturbed one, bit by bit.

A part of benchmarks/resume_matrix.py: every plan and every target, at different steps, in worlds of 2 and 3; the rest
with `make bench`. The undisturbed runs of a world are trained by one gang without a supervisor, one after the other in
the same processes.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow(40), pytest.mark.timeout(900)]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Kills = list[tuple[str, str, int]]  # plan, who is killed, after which step
KILLS = [
    pytest.param(2, [("bf16", "supervisor", 4), ("plain", "worker", 11)], id="2"),
    pytest.param(3, [("accumulated", "all", 8)], id="3"),
    pytest.param(2, [("plain", "all", 11)], id="2, more", marks=pytest.mark.long),
    pytest.param(
        3, [("plain", "worker", 7), ("accumulated", "supervisor", 8), ("bf16", "all", 10)],
        id="3, more", marks=pytest.mark.long,
    ),
    pytest.param(4, [("accumulated", "worker", 5)], id="4", marks=pytest.mark.long),
]  # fmt: skip


@pytest.fixture
def matrix_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("resume_matrix", BENCHMARKS / "resume_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "resume_matrix", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("world", "kills"), KILLS)
def test_killed_and_resumed_runs_end_with_the_weights_of_the_undisturbed_one(
    world: int, kills: Kills, matrix_module: Any, gang: Callable[..., None],
    free_ports: Callable[[int], list[int]], home: Path, tmp_path: Path,
) -> None:  # fmt: skip
    plans = sorted({plan for plan, _, _ in kills} | {"plain"})
    told = {"MATRIX_PLANS": ",".join(plans), "MATRIX_FOLDER": str(tmp_path)}
    ports = ",".join(str(port) for port in free_ports(len(plans)))
    gang(matrix_module.SCRIPT, world, **told, MATRIX_PORTS=ports)
    matrix = matrix_module.Matrix(home, tmp_path)
    undisturbed = {plan: matrix.show(f"{plan}-undisturbed") for plan in plans}
    assert len({run["digests"]["weights"] for run in undisturbed.values()}) == len(plans)
    for plan, target, step in kills:
        name = f"{plan}-{target}"
        matrix.train(name, plan, world, f"{target}:{step}")
        run = matrix.show(name)
        assert run["status"] == "completed", name
        assert len(run["attempts"]) == 2, name
        assert 0 < run["attempts"][1]["from_step"] < step, name
        assert run["steps"] == undisturbed[plan]["steps"] == 13, name
        assert run["digests"] == {**undisturbed[plan]["digests"], "spec": run["digests"]["spec"]}, name
