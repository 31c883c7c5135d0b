"""`gscalar diagnose` of traces that others have published, with what is known of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gscalar.cli.main import main
from gscalar.diagnosis.diagnose import diagnose
from gscalar.importers.recognition import open_traces

MEASURED_AFTER_S = 0.1265  # the step of the same ResNet-50 with four loaders


@pytest.fixture
def diagnosed(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*names: str) -> dict[str, Any]:
        assert main(["diagnose", "--json", *(str(shared_data / name) for name in names)]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def fix(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["fixes"] if each["name"] == name)


def said(found: dict[str, Any], key: str) -> str:
    return "\n".join(found[key])


def test_the_straggler_of_64_gpus_is_named_and_every_ceiling_is_the_published_one(diagnosed: Any) -> None:
    found = diagnosed("straggler/trace-AR.parquet")
    principal = found["principal"]
    assert (principal["cause"], principal["ranks"], principal["stages"]) == ("slow_worker", [0], [0])
    assert found["slowdown"] == pytest.approx(1.9730, rel=0.002)
    assert found["replay_error"] == pytest.approx(0.0067, abs=0.0005)
    assert found["measured_over_ideal"] == pytest.approx(1.986, abs=0.002)
    for name, ceiling in (("balance", 1.925), ("overlap", 1.017), ("overlap+balance", 2.006)):
        assert fix(found, name)["ceiling"] == pytest.approx(ceiling, abs=0.004)
    assert fix(found, "replace_worker")["gain"] == pytest.approx(2.02, rel=0.01)


def test_before_more_loaders_the_input_binds_and_what_they_gain_is_predicted(diagnosed: Any) -> None:
    found = diagnosed("kineto/resnet50_workers0.pt.trace.json.gz")
    assert found["principal"]["cause"] == "input_bound"
    assert found["step_s"]["median"] == pytest.approx(0.1763, abs=0.0002)
    loader = fix(found, "loader")
    naive_s = found["step_s"]["median"] / 1.51  # the step without its exposed wait
    error = abs(loader["predicted_step_s"] - MEASURED_AFTER_S)
    assert error <= 0.06 * MEASURED_AFTER_S
    assert error < abs(naive_s - MEASURED_AFTER_S)
    assert loader["low_s"] <= MEASURED_AFTER_S <= loader["high_s"]


def test_with_more_loaders_the_input_no_longer_binds(diagnosed: Any) -> None:
    found = diagnosed("kineto/resnet50_workers4.pt.trace.json.gz")
    assert found["step_s"]["median"] == pytest.approx(MEASURED_AFTER_S, abs=0.0002)
    assert "input_bound" not in [each["cause"] for each in found["findings"]]
    assert "input_bound" in found["not_supported"]


def test_a_device_that_is_busy_has_no_finding(diagnosed: Any) -> None:
    found = diagnosed("nsight/healthy_1pct.sqlite")
    assert (found["principal"]["cause"], found["findings"], found["step_s"]) == ("none", [], None)
    assert "steps" in said(found, "unknown")


def test_exposed_communication_is_told_by_device(diagnosed: Any) -> None:
    found = diagnosed("nsight/mfu_2gpu_before.sqlite")
    assert [each["exposed_s"] for each in found["devices"]] == pytest.approx([17.17e-3, 8.23e-3], abs=5e-6)
    assert found["overlap_ratio"] == pytest.approx(0.0, abs=1e-9)
    assert found["step_s"] is None


def test_idle_time_before_queued_work_is_not_called_launch_bound(diagnosed: Any) -> None:
    found = diagnosed("hta/negative_queue_rank0.json.gz")
    (device,) = found["devices"]
    assert device["exposed_s"] / device["span_s"] == pytest.approx(0.150, abs=0.0005)
    assert device["busy_s"] / device["span_s"] == pytest.approx(0.356, abs=0.0005)
    assert device["overlap_with_copies_ratio"] == pytest.approx(0.018, abs=0.0005)
    assert device["overlap_ratio"] == pytest.approx(0.014, abs=0.0005)
    assert "launch_bound" not in [each["cause"] for each in found["findings"]]
    assert "idle" in said(found, "unknown")


def test_idle_time_before_late_launches_is(diagnosed: Any) -> None:
    found = diagnosed("hta/nccl_data.json.gz")
    (device,) = found["devices"]
    assert found["principal"]["cause"] == "launch_bound"
    assert device["busy_s"] / device["span_s"] == pytest.approx(0.238, abs=0.0005)
    assert device["exposed_s"] / device["span_s"] == pytest.approx(0.059, abs=0.0005)


PARTIAL = {
    "hta/cpu_only_rank-34.json.gz": ("unknown", "device activity"),
    "hta/sampled_rank-0.json.gz": (None, "arrivals of all ranks"),
    "hta/sampled_rank-1.json.gz": (None, "arrivals of all ranks"),
    "hta/simple_add.json.gz": (None, "steps"),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_a_partial_trace_has_a_partial_answer_that_says_what_is_missing(diagnosed: Any, name: str) -> None:
    found = diagnosed(name)
    cause, missing = PARTIAL[name]
    assert cause in (None, found["principal"]["cause"])
    assert found["principal"]["confidence"] == "low"
    assert missing in said(found, "unknown")


def test_two_of_128_ranks_are_read_together_and_the_others_are_missed(diagnosed: Any) -> None:
    found = diagnosed("hta/sampled_rank-0.json.gz", "hta/sampled_rank-1.json.gz")
    assert (found["ranks"], found["world"]) == (2, 128)
    assert fix(found, "balance")["gain"] is None
    assert "balance" in said(found, "unknown")


def test_a_diagnosis_and_a_question_take_seconds_and_milliseconds(shared_data: Path) -> None:
    """The goals, 1.5 s and 50 ms, are for a quiet machine (benchmarks/replay_speed.py); these are thrice as much."""
    path = shared_data / "straggler/trace-AR.parquet"
    began = time.process_time()
    diagnose(open_traces([path]))
    assert time.process_time() - began < 4.5


def test_two_ranks_of_different_jobs_are_refused_with_both_names(shared_data: Path) -> None:
    files = [shared_data / "hta" / name for name in ("negative_queue_rank0.json.gz", "nccl_data.json.gz")]
    done = subprocess.run(
        [sys.executable, "-m", "gscalar", "diagnose", *map(str, files)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert all(file.name in done.stderr for file in files)
    assert "Traceback" not in done.stderr
