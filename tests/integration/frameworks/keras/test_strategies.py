"""Strategies of tf.distribute under a run: workers in step, and parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parent / "scripts"


def test_mirrored_workers_train_as_one_with_the_doubled_batch_also_through_a_hang_and_a_stop(
    train: Callable[..., Any],
) -> None:
    mirrored = SCRIPTS / "mirrored.py"
    alone = train("alone", script=mirrored, BATCH="64")
    both = train("both", script=mirrored, workers=2, BATCH="32")
    assert alone.code == both.code == 0, alone.output + both.output
    assert alone.shown["steps"] == both.shown["steps"] == 24
    assert "strategy of gscalar.keras.distribute()" not in both.output, "its scope was entered"
    assert max(float(np.abs(a - b).max()) for a, b in zip(alone.weights, both.weights, strict=True)) < 1e-6
    # TensorFlow's own collectives wait for a stopped process for ever.
    stopped = train("stood", script=mirrored, workers=2, hang_after_s=6, BATCH="32", SIGSTOP="13:1", SIGTERM="19:1")
    assert stopped.code == 75, stopped.output
    stood = train("stood", script=mirrored, resume=True, BATCH="32")
    assert stood.code == 0, stood.output
    assert [each["outcome"] for each in stood.shown["attempts"]] == ["failed", "stopped", "completed"]
    failure = stood.shown["attempts"][0]["failure"]
    assert (failure["rank"], failure["failure_class"]) == (1, "hung")
    assert [each["from_step"] for each in stood.shown["attempts"]] == [
        0,
        12,
        20,
    ]  # told after step 19, agreed on in the next
    for name in ("weights", "data"):
        assert stood.shown["digests"][name] == both.shown["digests"][name]


def test_parameter_servers_end_with_their_chief_are_restarted_and_resumed(train: Callable[..., Any]) -> None:
    settings = {"script": SCRIPTS / "servers.py", "plan": "{kind: parameter_servers}", "VICTIM": "3"}
    stopped = train("asynchronous", workers=2, **settings)
    assert stopped.code == 75, stopped.output
    assert "rank 3 (parameter server 0) was killed" in stopped.output
    outcomes = [(each["outcome"], each["roles"]) for each in stopped.shown["attempts"]]
    roles = {"chief": 1, "worker": 2, "ps": 1}
    assert outcomes == [("failed", roles), ("stopped", roles)]
    assert stopped.shown["attempts"][1]["from_step"] >= 14  # the one of step 21 may have come before the kill
    resumed = train("asynchronous", resume=True, **settings)
    assert resumed.code == 0, resumed.output
    assert resumed.shown["steps"] == 60
    assert "strategy of gscalar.keras.distribute()" not in resumed.output, "its scope was entered"
    assert resumed.shown["attempts"][2]["from_step"] >= 40
    assert resumed.shown["metrics"]["train/loss"]["last"] < 0.5 * resumed.shown["metrics"]["train/loss"]["max"]


def test_a_legacy_fit_under_mirrored_workers_is_restarted_and_ends_with_the_undisturbed_weights(
    train: Callable[..., Any],
) -> None:
    script = SCRIPTS / "legacy_strategies.py"
    undisturbed = train("undisturbed", script=script, workers=2)
    killed = train("killed", script=script, workers=2, SIGKILL="13:1")
    assert undisturbed.code == killed.code == 0, undisturbed.output + killed.output
    assert undisturbed.shown["steps"] == killed.shown["steps"] == 24
    assert [each["outcome"] for each in killed.shown["attempts"]] == ["failed", "completed"]
    assert killed.shown["attempts"][1]["from_step"] == 12
    assert killed.shown["digests"]["weights"] == undisturbed.shown["digests"]["weights"]
    assert undisturbed.shown["metrics"]["accuracy"]["last"] > 0.6  # of ten classes


def test_a_legacy_fit_with_parameter_servers_is_stopped_and_resumed(train: Callable[..., Any]) -> None:
    settings = {"script": SCRIPTS / "legacy_strategies.py", "plan": "{kind: parameter_servers}"}
    stopped = train("asynchronous", workers=2, SIGTERM="8:0", **settings)
    assert stopped.code == 75, stopped.output
    resumed = train("asynchronous", resume=True, **settings)
    assert resumed.code == 0, resumed.output
    assert resumed.shown["steps"] == 24
    assert 8 <= resumed.shown["attempts"][1]["from_step"] < 16
    assert resumed.shown["metrics"]["accuracy"]["count"] == 3
