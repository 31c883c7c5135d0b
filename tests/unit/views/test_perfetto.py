"""A timeline as a trace for Perfetto: read back with json alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gscalar.model.timeline import ACCOUNT_NAMES, NONE, Activity, Lane, Rank, Spans, StepTimeline, no_steps
from gscalar.views.perfetto import chrome_trace

Json = dict[str, Any]
NAN = float("nan")
# rank, lane, start and end in ms, group and number in the group
Row = tuple[int, Lane, float, float, int, int]


def timeline(rows: Sequence[Row], **changes: Any) -> StepTimeline:
    """Return two ranks with one step of 100 ms, which begins at -50 ms, and these spans."""
    rank, lane, start_ms, end_ms, group, sequence = (list(column) for column in zip(*rows, strict=True))
    spans = Spans.of(
        len(rows), rank=rank, lane=lane, step=np.zeros(len(rows)), name=np.zeros(len(rows)), group=group,
        activity=np.full(len(rows), Activity.FORWARD), sequence=sequence,
        start_s=np.array(start_ms) / 1000, end_s=np.array(end_ms) / 1000,
    )  # fmt: skip
    built = StepTimeline(
        source="record",
        name="run",
        ranks=(Rank(rank=0, host="a", clock_error_s=0.0), Rank(rank=5, host="b", clock_error_s=1e-4)),
        steps=np.array([7]),
        begin_s=np.full((2, 1), -0.05),
        end_s=np.full((2, 1), 0.05),
        accounts=np.zeros((2, 1, len(ACCOUNT_NAMES))),
        spans=spans,
        names=("forward",),
        work=np.array([[64.0], [96.0]]),
        work_unit="tokens",
    )
    return replace(built, **changes)


def host(start_ms: float, end_ms: float, rank: int = 0) -> Row:
    return rank, Lane.HOST, start_ms, end_ms, NONE, NONE


def met(rank: int, start_ms: float, end_ms: float, sequence: int = 1) -> Row:
    return rank, Lane.COMMUNICATION, start_ms, end_ms, 0, sequence


def written(of: StepTimeline) -> list[Json]:
    text = "".join(chrome_trace(of))
    events: list[Json] = json.loads(text)["traceEvents"]
    return events


def of_kind(events: list[Json], phase: str) -> list[Json]:
    return [event for event in events if event["ph"] == phase]


def test_ranks_are_processes_and_lanes_are_threads_with_names() -> None:
    got = of_kind(written(timeline([host(0, 10), met(1, 0, 10)])), "M")
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in got if e["name"].endswith("_name")}
    assert names == {
        (0, None): "rank 0 on a",
        (0, 4): "steps",
        (0, Lane.HOST): "host",
        (5, None): "rank 5 on b",
        (5, 4): "steps",
        (5, Lane.COMMUNICATION): "communication",
    }


def test_spans_and_steps_are_complete_events_in_microseconds_from_the_earliest_on() -> None:
    spans = timeline([host(0, 10), met(1, 20.5, 30)])
    spans.spans.num_bytes[1] = 4096.0
    got = of_kind(written(spans), "X")
    assert min(event["ts"] for event in got) == 0.0
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"], e["args"]) for e in got] == [
        ("step 7", 0, 4, 0.0, 100_000.0, {"step": 7, "tokens": 64.0}),
        ("step 7", 5, 4, 0.0, 100_000.0, {"step": 7, "tokens": 96.0}),
        ("forward", 0, Lane.HOST, 50_000.0, 10_000.0, {"step": 7}),
        ("forward", 5, Lane.COMMUNICATION, 70_500.0, 9_500.0, {"step": 7, "group": 0, "sequence": 1, "bytes": 4096.0}),
    ]


# Spans of one lane, and the row that each has to lie in.
NESTS: dict[str, tuple[list[tuple[float, float]], list[int]]] = {
    "one after the other": ([(0, 10), (10, 20)], [0, 0]),
    "one inside the other": ([(0, 20), (5, 10), (10, 20)], [0, 0, 0]),
    "that begin together": ([(0, 20), (0, 10)], [0, 0]),
    "one reaches beyond the end of the other": ([(0, 10), (5, 15), (12, 20)], [0, 1, 0]),
    "three at once": ([(0, 10), (2, 12), (4, 14), (11, 20)], [0, 1, 2, 0]),
    "without a length": ([(5, 5), (5, 5)], [0, 0]),
}


@pytest.mark.parametrize("sentence", NESTS)
def test_spans_of_a_thread_nest(sentence: str) -> None:
    given, want = NESTS[sentence]
    got = of_kind(written(timeline([host(*each) for each in given])), "X")[2:]
    by_time = {(e["ts"] / 1000 - 50, (e["ts"] + e["dur"]) / 1000 - 50): e["tid"] for e in got}
    assert [by_time[each] // 16 for each in given] == want
    assert {tid % 16 for tid in by_time.values()} == {Lane.HOST}


def test_arrows_go_from_the_rank_that_came_last_to_those_that_waited() -> None:
    rows = [met(0, 0, 30), met(1, 20, 30), met(0, 40, 50, 2), met(1, 35, 50, 2)]
    got = [e for e in written(timeline(rows)) if e["ph"] in "sf"]
    assert [(e["ph"], e["id"], e["pid"], e["ts"], e.get("bp")) for e in got] == [
        ("s", 1, 5, 70_000.0, None),
        ("f", 1, 0, 70_000.0, "e"),
        ("s", 2, 0, 90_000.0, None),
        ("f", 2, 5, 90_000.0, "e"),
    ]


NO_ARROWS = {
    "clocks are not known": timeline([met(0, 0, 30), met(1, 20, 30)], ranks=(Rank(rank=0), Rank(rank=1))),
    "they belong to no group": timeline(
        [(0, Lane.COMMUNICATION, 0, 30, NONE, 1), (1, Lane.COMMUNICATION, 20, 30, NONE, 1)]
    ),
    "they are different ones": timeline([met(0, 0, 30, 1), met(1, 20, 30, 2)]),
    "it was over before the other came": timeline([met(0, 0, 10), met(1, 20, 30)]),
}


@pytest.mark.parametrize("sentence", NO_ARROWS)
def test_there_are_no_arrows_where(sentence: str) -> None:
    got = written(NO_ARROWS[sentence])
    assert len(of_kind(got, "X")) == 4
    assert of_kind(got, "s") == of_kind(got, "f") == []


def test_what_has_no_time_is_left_out() -> None:
    begin_s = np.array([[-0.05], [NAN]])
    got = of_kind(written(timeline([host(0, 10), host(NAN, 20)], begin_s=begin_s)), "X")
    assert [(e["name"], e["pid"]) for e in got] == [("step 7", 0), ("forward", 0)]


@pytest.mark.parametrize("num_ranks", [0, 1])
def test_a_timeline_without_steps_and_spans_is_a_trace_all_the_same(num_ranks: int) -> None:
    empty = StepTimeline(
        source="record", name="run", ranks=tuple(Rank(rank=each) for each in range(num_ranks)), spans=Spans.of(0),
        names=(), **no_steps(num_ranks),  # type: ignore[arg-type]
    )  # fmt: skip
    assert of_kind(written(empty), "X") == []


def test_it_comes_in_pieces() -> None:
    pieces = list(chrome_trace(timeline([host(each, each + 1) for each in range(500)])))
    assert len(pieces) > 500
    assert max(map(len, pieces)) < 400
