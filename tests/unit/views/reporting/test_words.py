"""Sentences of a report, in full."""

from __future__ import annotations

import pytest

from gscalar.diagnosis.verdicts import Cause, Finding
from gscalar.views.reporting.words import cause_said, cost_said, counted, duration, share, times


def finding(cause: Cause, *, ranks: tuple[int, ...] = (), stages: tuple[int, ...] = ()) -> Finding:
    return Finding(
        cause=cause, ranks=ranks, stages=stages, cost_share=0.25, confidence="high",
        evidence_for=(), evidence_against=(),
    )  # fmt: skip


SAID = {
    "Rank 3 computes slower than the others at the same work": finding(Cause.SLOW_WORKER, ranks=(3,)),
    "Ranks 3, 6 compute slower than the others at the same work": finding(Cause.SLOW_WORKER, ranks=(3, 6)),
    "Rank 3 waits for input, and the others do not": finding(Cause.SLOW_READER, ranks=(3,)),
    "The stages of the pipeline are uneven: stage 2 takes longest": finding(Cause.STAGE_IMBALANCE, stages=(2,)),
    "A link is slower than its peers (stages 1, 2)": finding(Cause.SLOW_LINK, stages=(1, 2)),
    "A link is slower than its peers": finding(Cause.SLOW_LINK),
}


@pytest.mark.parametrize("want", SAID)
def test_a_cause_is_said(want: str) -> None:
    assert cause_said(SAID[want]) == want


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_sentence(cause: Cause) -> None:
    assert cause_said(finding(cause, ranks=(1,), stages=(0,)))[0].isupper()


def test_a_cost_is_a_share_of_the_step_or_of_what_was_seen() -> None:
    assert cost_said(finding(Cause.NOISE), 2.0) == "25 % of the step (500 ms of 2.00 s)"
    assert cost_said(finding(Cause.NOISE), None) == "25 % of the time that was seen"


DURATIONS = {
    46.67: "46.7 s", 3600.0: "3600 s", 0.169: "169 ms", 0.004: "4.00 ms", 2.5e-5: "25.0 \u00b5s", 3e-9: "3.00 ns",
    0.0: "0 s", None: "not known", float("nan"): "not known", float("inf"): "not known",
}  # fmt: skip


@pytest.mark.parametrize("seconds", DURATIONS)
def test_a_duration_is_said(seconds: float | None) -> None:
    assert duration(seconds) == DURATIONS[seconds]


def test_a_gain_that_is_not_known_is_said_so() -> None:
    assert [times(1.5), times(float("nan")), times(None)] == ["1.50\u00d7", "not known", "not known"]


def test_a_share_that_is_rounding_is_said_to_be_nothing() -> None:
    assert [share(0.125), share(8e-16), share(None)] == ["12.5 %", "0 %", "not known"]


def test_one_thing_is_not_several() -> None:
    assert [counted(1, "rank"), counted(2_000, "rank")] == ["1 rank", "2,000 ranks"]
