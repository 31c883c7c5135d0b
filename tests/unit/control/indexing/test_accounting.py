"""What the accounts, hardware samples and clocks of a run come to, from records that builders have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gscalar.model import events
from gscalar.model.accounts import ACCOUNTS
from gscalar.testing.builders import RunBuilder

FAST = {"compute": 0.06, "exposed_communication": 0.04}
SLOW = {"compute": 0.09, "exposed_communication": 0.01}


def means(found: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: each["mean"] for name, each in found.items() if each["mean"]}


def test_accounts_are_means_over_steps_and_then_over_ranks(summed: Callable[..., Any]) -> None:
    found = summed(lambda run: run.launch(2).train(5, accounts=[FAST, SLOW])).measured["accounts"]
    assert list(found) == list(ACCOUNTS)
    assert means(found) == pytest.approx({"compute": 0.075, "exposed_communication": 0.025})
    assert found["compute"]["max"] == pytest.approx(0.09)
    assert found["exposed_communication"]["max"] == pytest.approx(0.04)


def test_the_first_step_warms_up_and_is_left_out(summed: Callable[..., Any]) -> None:
    found = summed(lambda run: run.launch().train(1, accounts=[{"compute": 9.0}]).train(3, accounts=[FAST]))
    assert means(found.measured["accounts"]) == pytest.approx(FAST)


def test_repeated_steps_count_once(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.launch().train(4, accounts=[FAST]).train(4, accounts=[{"compute": 7.0}]).end_attempt("failed")
        run.launch(from_step=4)  # has not stepped yet: what counts is what is left of the attempt before

    assert means(summed(build).measured["accounts"]) == pytest.approx(FAST)


def test_accounts_are_of_the_newest_attempt_that_has_some(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.launch().train(4, accounts=[FAST]).end_attempt("failed").launch(from_step=4)
        run.train(3, accounts=[SLOW])

    assert means(summed(build).measured["accounts"]) == pytest.approx(SLOW)


def test_steps_without_accounts_are_not_steps_of_nothing(summed: Callable[..., Any]) -> None:
    found = summed(lambda run: run.launch(2).train(5)).measured
    assert (found["accounts"], found["slowest"], found["hardware"]) == (None, None, None)
    assert found["goodput"]["lost"]["data"] is None
    assert found["goodput"]["productive_s"] == pytest.approx(0.25)


def test_some_steps_without_accounts_are_left_out_of_the_means(summed: Callable[..., Any]) -> None:
    found = summed(lambda run: run.launch().train(3).train(3, accounts=[FAST]))
    assert means(found.measured["accounts"]) == pytest.approx(FAST)


def test_the_rank_that_the_others_wait_for_is_named(summed: Callable[..., Any]) -> None:
    found = summed(lambda run: run.launch(3).train(5, accounts=[FAST, SLOW, FAST])).measured["slowest"]
    assert found == pytest.approx({"rank": 1, "busy_s": 0.09, "median_s": 0.06})


def test_hardware_is_summed_up_by_host_and_worker_over_attempts(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2)
        run.sample({"host/cpu_cores": 1.0, "host/memory_bytes": 100.0}).sample({"host/cpu_cores": 2.0})
        run.sample({"worker/cpu_cores": 0.5}, of=1)
        run.end_attempt("failed").launch(2).sample({"host/cpu_cores": 0.0})

    want = {
        "host": {
            "host/cpu_cores": {"mean": 1.0, "max": 2.0, "last": 0.0},
            "host/memory_bytes": {"mean": 100.0, "max": 100.0, "last": 100.0},
        },
        "workers": {"1": {"worker/cpu_cores": {"mean": 0.5, "max": 0.5, "last": 0.5}}},
    }
    assert summed(build).measured["hardware"] == want


def test_clocks_are_those_that_were_measured_and_those_of_one_host(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(3)
        run.tell(events.Clock(run.clock(), 0.5, 1e-6, 0.001, 9), rank=1).train(3, accounts=[FAST])

    found = summed(build).measured["clocks"]
    assert found["1"] == {"offset_s": 0.5, "drift": 1e-6, "bound_s": 0.001, "time_ns": found["1"]["time_ns"]}
    assert (found["0"]["offset_s"], found["2"]["offset_s"], found["2"]["bound_s"]) == (0.0, 0.0, 0.0)


def test_the_clock_of_another_host_is_not_known(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2).train(3, accounts=[FAST])
        header = events.Header(1, run.run_id, 0, 1, 2, "worker", "elsewhere", 1, 0.0, run.clock(), "0")
        run.tell(header, rank=1)

    assert list(summed(build).measured["clocks"]) == ["0"]


def test_an_empty_file_of_a_rank_is_named_and_the_others_count(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2).train(3, accounts=[FAST])
        (run.folder.records / "a000-r00002.rec").touch()
        (run.folder.records / "a000-r00003.rec").write_bytes(run.workers[0].path.read_bytes()[:20])

    found = summed(build)
    assert found.measured["headerless"] == ["a000-r00002.rec", "a000-r00003.rec"]
    assert (found.steps, found.damage) == (3, {})
    assert means(found.measured["accounts"]) == pytest.approx(FAST)


def test_the_utilization_needs_flops_and_a_peak(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder, flops: dict[str, Any]) -> None:
        run.spec = run.spec | {"flops": flops}
        run.launch(2).train(5)

    # 160 samples a second of 1e9 FLOPs, on two devices of 1e12.
    got = summed(lambda run: build(run, {"per_sample": 1e9, "peak_flops_per_s": 1e12})).throughput
    assert got["mfu"] == pytest.approx(0.08)


def test_without_a_peak_there_is_no_utilization(summed: Callable[..., Any]) -> None:
    def build(run: RunBuilder) -> None:
        run.spec = run.spec | {"flops": {"per_sample": 1e9, "peak_flops_per_s": None}}
        run.launch().train(5)

    assert "mfu" not in summed(build).throughput
