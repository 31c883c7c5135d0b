"""`model.fit` under a run: the same training on one worker and on two, undisturbed and killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).parent / "scripts" / "digits.py"


def assert_same_training(disturbed: Any, undisturbed: Any) -> None:
    assert disturbed.code == undisturbed.code == 0, disturbed.output + undisturbed.output
    assert len(disturbed.shown["attempts"]) == 2
    assert disturbed.shown["attempts"][1]["from_step"] > 0
    assert disturbed.shown["steps"] == undisturbed.shown["steps"]
    assert disturbed.shown["digests"]["weights"] == undisturbed.shown["digests"]["weights"]
    assert disturbed.shown["digests"]["data"] == undisturbed.shown["digests"]["data"]
    last = {name: values["last"] for name, values in undisturbed.shown["metrics"].items() if "/" not in name}
    assert {name: disturbed.shown["metrics"][name]["last"] for name in last} == last


@pytest.mark.slow(40)
def test_one_worker_undisturbed_killed_stopped_and_with_another_seed(train: Callable[..., Any]) -> None:
    undisturbed = train("undisturbed", DROPOUT="1")
    metrics = undisturbed.shown["metrics"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= metrics.keys()
    assert metrics["accuracy"]["last"] > 0.6  # of ten classes, after three epochs
    accounts = undisturbed.shown["accounts"]
    assert all(accounts[name]["mean"] > 0 for name in ("compute", "data_wait", "optimizer"))
    assert_same_training(train("killed", DROPOUT="1", SIGKILL="13:0"), undisturbed)  # amid the second epoch
    stopped = train("stopped", DROPOUT="1", SIGTERM="10:0")
    assert stopped.code == 75, stopped.output
    assert stopped.shown["status"] == "interrupted"
    assert_same_training(train("stopped", resume=True, DROPOUT="1"), undisturbed)
    other = train("other", DROPOUT="1", SEED="6")
    assert other.shown["digests"]["weights"] != undisturbed.shown["digests"]["weights"]


@pytest.mark.parametrize(
    ("how", "backend", "workers", "kill"),
    [
        ("dataset", "tensorflow", 2, "16:1"),  # after the second epoch's last step
        pytest.param("arrays", "jax", 1, "13:0", marks=pytest.mark.jax),
        ("loader", "torch", 1, "12:0"),
        pytest.param("dataset", "tensorflow", 1, "16:0", marks=pytest.mark.long),
        pytest.param("dataset", "tensorflow", 2, "13:0", marks=pytest.mark.long),
        pytest.param("arrays", "tensorflow", 2, "13:1", marks=pytest.mark.long),
    ],
)
def test_a_killed_worker_is_restarted_and_ends_with_the_undisturbed_weights(
    how: str, backend: str, workers: int, kill: str, train: Callable[..., Any]
) -> None:
    settings = {"HOW": how, "KERAS_BACKEND": backend, "DROPOUT": "1", "BATCH": "64" if workers == 1 else "32"}
    undisturbed = train("undisturbed", workers=workers, **settings)
    assert_same_training(train("killed", workers=workers, SIGKILL=kill, **settings), undisturbed)


@pytest.mark.slow(30)
def test_a_second_fit_goes_on_where_it_was_with_its_own_optimizer_and_the_best_weights(
    train: Callable[..., Any],
) -> None:
    settings = {"HOW": "twice", "DROPOUT": "1", "BEST": "1"}
    undisturbed = train("undisturbed", **settings)
    # Before the second fit's first checkpoint, where the newest is of the first one's end; and in its last epoch.
    for kill in ("26:0", "44:0"):
        assert_same_training(train(f"killed-{kill[:2]}", SIGKILL=kill, **settings), undisturbed)


@pytest.mark.parametrize(
    ("how", "backend"),
    [
        ("arrays", "tensorflow"),
        ("arrays", "torch"),
        pytest.param("arrays", "jax", marks=pytest.mark.jax),
        ("loop", "tensorflow"),
    ],
)
def test_two_workers_train_as_one_with_the_doubled_batch(how: str, backend: str, train: Callable[..., Any]) -> None:
    settings = {"HOW": how, "KERAS_BACKEND": backend}
    alone = train("alone", BATCH="64", **settings)
    both = train("both", workers=2, BATCH="32", **settings)
    assert alone.code == both.code == 0, alone.output + both.output
    assert alone.shown["steps"] == both.shown["steps"] == 24  # 500 samples are 8 batches, the last of 52
    assert max(float(np.abs(a - b).max()) for a, b in zip(alone.weights, both.weights, strict=True)) < 1e-6
    assert both.shown["accounts"]["exposed_communication"]["mean"] > 0


def test_workers_that_made_other_models_train_the_first_ones(gang: Callable[..., None], tmp_path: Path) -> None:
    gang(SCRIPT, 2, tmp_path / "out.npz", HOW="no-init", TF_CPP_MIN_LOG_LEVEL="3")
    first, second = (np.load(tmp_path / f"out.{rank}.npz") for rank in range(2))
    assert all((first[name] == second[name]).all() for name in first.files)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.jax)])
def test_the_contract_of_a_framework_holds_on_the_other_backends(backend: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests/contract/test_frameworks.py"]
    done = subprocess.run(
        [*command, "-k", "TestKerasFramework and not ranks_agree"],
        cwd=ROOT, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
