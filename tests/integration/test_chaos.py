"""One short seed of benchmarks/chaos.py: a small training under random faults ends as the undisturbed one."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from pathlib import Path

import pytest

from gscalar.testing.faults.disk import change_file

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
SMALL = {
    "d_model": 32, "layers": 1, "heads": 2, "context": 32, "batch_size": 4, "eval_every": 100, "max_bytes": 60_000,
}  # fmt: skip
STEPS, CHECKPOINT_EVERY, SEED = 400, 30, 1


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", CHAOS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "chaos", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow(50)
def test_a_training_under_random_faults_ends_as_the_undisturbed_one(chaos: types.ModuleType, tmp_path: Path) -> None:
    arena = chaos.Arena(tmp_path, chaos.Setting(minutes=0.15, hang_after_s=5.0, config=SMALL))
    want = arena.train_undisturbed(STEPS, CHECKPOINT_EVERY)["digests"]["weights"]
    result = arena.disturb(SEED, STEPS, CHECKPOINT_EVERY, want)
    print(result.line())
    assert result.broken == []
    assert result.counts["kill"] >= 1
    assert result.counts["stop"] >= 1
    assert len(result.shown["attempts"]) >= 2
    # What it demands, it would miss.
    assert arena.judge(result.shown, "0" * 64) == ["OTHER WEIGHTS"]
    folder = Path(result.shown["folder"])
    change_file(folder / "records" / "a000-r00001.rec", "zero", 64, random.Random(1))
    assert chaos.unnamed_damage(folder, None) == ["a000-r00001.rec is damaged"]
    assert chaos.unnamed_damage(folder, {"files": ["a000-r00001.rec"]}) == []


def test_what_a_run_has_left_is_found(chaos: types.ModuleType, tmp_path: Path) -> None:
    assert chaos.what_is_left("no such run", tmp_path) == []
    with (tmp_path / "open").open("w"):
        (told,) = chaos.what_is_left("no such run", tmp_path)
    assert str(tmp_path / "open") in told


def test_the_plan_of_a_seed_is_always_the_same_and_has_every_kind(chaos: types.ModuleType) -> None:
    setting = chaos.Setting(minutes=3.0)
    plans = [chaos.draw_plan(seed, 1000, setting) for seed in range(10)]
    assert plans == [chaos.draw_plan(seed, 1000, setting) for seed in range(10)]
    assert len(set(plans)) == 10
    for plan in plans:
        stops_s = [fault.for_s for fault in plan.faults if isinstance(fault, chaos.Stop)]
        assert min(stops_s) < setting.hang_after_s < max(stops_s)
        assert {type(fault).__name__ for fault in plan.faults} == {"Kill", "Stop", "Slow", "Delay"}
