"""The end of `gscalar run`: what is said, and what to try next."""

from __future__ import annotations

from typing import Any

import pytest

from gscalar.cli.summary import describe_run, next_commands
from gscalar.control.supervisor import Outcome
from gscalar.model.events import Failure
from gscalar.model.status import Exit, Status


def shown(**more: Any) -> dict[str, Any]:
    attempt = {"index": 0, "started": None, "ended": None, "outcome": "completed", "failure": None, "world": 2}
    attempt["roles"] = {"worker": 2}
    return {
        "id": "abc",
        "name": "lm",
        "status": "completed",
        "steps": 400,
        "tokens": 1_600_000,
        "attempts": [attempt],
        "metrics": {},
        "digests": {"weights": None, "data": None, "spec": None},
        "checkpoints": [],
        "started": "2026-01-02T03:04:05.000000Z",
        "ended": "2026-01-02T03:05:25.000000Z",
        "throughput": {"mfu": None},
        "accounts": None,
        "exposed_split": None,
        "slowest": None,
        "goodput": None,
        "headerless": [],
        "notes": [],
        "nonfinite": None,
        "dropped": 0,
        "damage": None,
        "folder": "/home/runs/abc",
    } | more


def accounts(**means: float) -> dict[str, dict[str, float]]:
    return {name: {"mean": seconds, "max": seconds} for name, seconds in means.items()}


def goodput(ratio: float, **lost: float) -> dict[str, Any]:
    total_s = sum(lost.values()) / (1 - ratio)
    return {"productive_s": ratio * total_s, "total_s": total_s, "ratio": ratio, "lost": lost}


STEP = accounts(compute=0.071, exposed_communication=0.018, data_wait=0.011)
SLOWEST = {"rank": 1, "busy_s": 0.08, "median_s": 0.06}


def metric(last: float, count: int = 1) -> dict[str, Any]:
    return {"last": last, "min": last - 1, "max": last + 1, "count": count}


LINES = {
    "how it ended": ({}, "run abc (lm) completed after 1 min 20 s"),
    "the gang": ({}, "  workers      2 workers, 1 attempt"),
    "steps and tokens": ({}, "  steps        400, 1.60 M tokens"),
    "throughput": (
        {"throughput": {"steps_per_s": 7.8125, "tokens_per_s": 32000.0}},
        "  throughput   7.81 steps/s, 32.0 k tokens/s",
    ),
    "what cost most in a step, and what is next": (
        {"accounts": accounts(compute=0.071, data_wait=0.018, optimizer=0.011)},
        "  time         most of a step: compute 71 %, 71.0 ms; next: data wait 18 %",
    ),
    "communication that waits for a rank": (
        {"accounts": STEP, "slowest": SLOWEST},
        "  time         most of a step: compute 71 %, 71.0 ms; next: exposed communication 18 % (waiting for rank 1)",
    ),
    "communication that waits for now this rank, now that": (
        {"accounts": STEP, "exposed_split": {"wait": 0.01, "transfer": 0.008}},
        "  time         most of a step: compute 71 %, 71.0 ms; next: exposed communication 18 % "
        "(waiting for the last rank)",
    ),
    "communication that moves bytes, whoever is slowest": (
        {"accounts": STEP, "slowest": SLOWEST, "exposed_split": {"wait": 0.004, "transfer": 0.014}},
        "  time         most of a step: compute 71 %, 71.0 ms; next: exposed communication 18 % (moving bytes)",
    ),
    "communication that is most of a step": (
        {"accounts": accounts(exposed_communication=0.9, compute=0.1), "slowest": SLOWEST},
        "  time         most of a step: exposed communication 90 % (waiting for rank 1), 900 ms; next: compute 10 %",
    ),
    "a step of nothing but compute": (
        {"accounts": accounts(compute=0.1, gc=0.0)},
        "  time         most of a step: compute 100 %, 100 ms",
    ),
    "a goodput that has lost more than a little, to what": (
        {"goodput": goodput(0.9, recovery=6.0, start=3.0, hang=0.0, other=1.0, data=0.5, checkpoint=0.25)},
        "  goodput      90.0 %; lost to recovery 6.00 s, start 3.00 s, other 1.00 s",
    ),
    "utilization": (
        {"throughput": {"steps_per_s": 7.8125, "mfu": 0.413}},
        "  throughput   7.81 steps/s, MFU 41.3 %",
    ),
    "a record without an event": (
        {"headerless": ["a000-r00001.rec"]},
        "  warnings     no event can be read of a000-r00001.rec",
    ),
    "the last value of a metric, with its extremes": (
        {"metrics": {"val/bits_per_byte": metric(2.7182818, 4)}},
        "  metrics      val/bits_per_byte 2.7183  (min 1.7183, max 3.7183)",
    ),
    "checkpoints": (
        {"checkpoints": [{"step": 200, "bytes": 1}, {"step": 400, "bytes": 10_000_000}]},
        "  checkpoints  2, newest of step 400, 9.54 MiB",
    ),
    "the weights": ({"digests": {"weights": "f" * 64}}, "  weights      sha256 ffffffffffffffff"),
    "a loss that was not finite": (
        {"nonfinite": {"count": 3, "step": 9, "rank": 1, "what": "loss", "parameter": ""}},
        "  warnings     the loss was not finite 3 times, first in step 9 on rank 1",
    ),
    "what could not be recorded": ({"dropped": 7}, "  warnings     7 events could not be recorded"),
    "damage": ({"damage": {"regions": 2}}, "  warnings     the record has 2 damaged places"),
    "a record that was cut off": (
        {"damage": {"regions": 0, "unclosed": ["a000-r00001.rec"]}},
        "  warnings     a000-r00001.rec is cut off before its end",
    ),
    "a record that is missing": (
        {"damage": {"regions": 0, "missing": ["0/1"]}},
        "  warnings     the record of attempt/rank 0/1 is missing",
    ),
    "a warning of a worker": (
        {"notes": [{"level": "warning", "text": "a damaged checkpoint was passed over", "count": 2}]},
        "  warnings     a damaged checkpoint was passed over (2 times)",
    ),
    "where it is": ({}, "  record       /home/runs/abc"),
}


@pytest.mark.parametrize("sentence", LINES)
def test_the_summary_says(sentence: str) -> None:
    more, want = LINES[sentence]
    assert want in list(describe_run(shown(**more)))


def test_a_run_without_training_has_no_empty_lines() -> None:
    lines = list(describe_run(shown(steps=0, tokens=0)))
    assert [line.split()[0] for line in lines if line] == ["run", "workers", "record"]


def test_a_good_goodput_is_no_line() -> None:
    lines = list(describe_run(shown(goodput=goodput(0.995, start=1.0))))
    assert not [line for line in lines if "goodput" in line]


def test_notes_that_are_no_warnings_are_left_out() -> None:
    notes = [{"level": "info", "text": "x", "count": 1}]
    assert list(describe_run(shown(notes=notes))) == list(describe_run(shown()))


def test_metrics_of_validation_come_first_and_those_of_speed_not_at_all() -> None:
    names = ("train/loss", "train/step_s", "val/loss", "accuracy")
    lines = list(describe_run(shown(metrics={name: metric(1.0) for name in names})))
    found = [line.split()[-2] for line in lines if line.endswith(" 1")]
    assert found == ["accuracy", "val/loss", "train/loss"]


FAILURE = Failure(0, 3, 5, "user_error", "ValueError", "x")
NEXT = {
    "completed": (Status.COMPLETED, Exit.DONE, None, "gscalar show abc"),
    "failed: the log of the rank that did": (Status.FAILED, Exit.FAILED, FAILURE, "gscalar logs abc --rank 3"),
    "interrupted: go on": (Status.INTERRUPTED, Exit.RESUMABLE, None, "gscalar run --resume abc"),
    "cancelled: go on": (Status.CANCELLED, Exit.RESUMABLE, None, "gscalar run --resume abc"),
}


@pytest.mark.parametrize("sentence", NEXT)
def test_three_commands_to_try_next(sentence: str) -> None:
    status, code, failure, first = NEXT[sentence]
    got = next_commands(Outcome(run="abc", status=status, exit_code=code, failure=failure))
    assert len(got) == 3
    assert got[0] == f"  next         {first}"
