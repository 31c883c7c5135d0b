"""The split of exposed communication, from the ends of record files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.control.indexer import refresh
from gscalar.model import events
from gscalar.model.spans import Collective, CollectiveKind, Span, SpanKind, pack_collectives, pack_spans
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder
from gscalar.views import exposure
from gscalar.views.show import show_run

MS = 1_000_000
# A step of 100 ms in which rank 1 computes 20 ms longer: 10 ms of moving bytes for both.
EARLY = {"compute": 0.07, "exposed_communication": 0.03}
LATE = {"compute": 0.09, "exposed_communication": 0.01}


def communicate(run: RunBuilder, rank: int, ready_ms: int, *, clock_ahead_ms: int = 0) -> None:
    """Tell of one collective of the open step, which begins now and is done after 100 ms."""
    begin_ns = run.clock() + clock_ahead_ms * MS
    span = Span(SpanKind.COMMUNICATION, ready_ms * MS, (100 - ready_ms) * MS)
    met = Collective(CollectiveKind.ALL_REDUCE, 0, run.step, 4096, ready_ms * MS, ready_ms * MS, 100 * MS)
    backward = Span(SpanKind.BACKWARD, 0, 100 * MS)
    run.tell(events.Spans(run.step + 1, begin_ns, pack_spans([backward, span])), rank=rank)
    run.tell(events.Collectives(run.step + 1, begin_ns, pack_collectives([met])), rank=rank)


def train(run: RunBuilder, num_steps: int, *, clock_ahead_ms: int = 0, late: int = 1) -> RunBuilder:
    for _ in range(num_steps):
        communicate(run, 0, 90 if late == 0 else 70)
        communicate(run, 1, 90 if late == 1 else 70, clock_ahead_ms=clock_ahead_ms)
        run.train(1, accounts=[EARLY, LATE] if late == 1 else [LATE, EARLY])
    return run


def split(home: Path, build: Callable[[RunBuilder], object]) -> Any:
    place = Home(home)
    run = RunBuilder(place)
    build(run)
    with open_catalog(place) as catalog:
        refresh(place, catalog)
        found = show_run(place, catalog, run.run_id)["exposed_split"]
    run.abandon()
    return found


# Of 40 ms that both ranks expose, rank 0 waits 20: half of the mean of 20 ms.
WANT = {"wait": 0.01, "transfer": 0.01}


def other_clock(run: RunBuilder, late: int = 1) -> None:
    run.launch(2).tell(events.Clock(run.clock(), -5.0, 0.0, 0.0001, 9), rank=1)
    train(run, 5, clock_ahead_ms=5000, late=late)


def clock_set_in_between(run: RunBuilder) -> None:
    """The other rank's clock is five seconds ahead, and then seven."""
    other_clock(run)
    run.clock.advance(20.0)
    run.tell(events.Clock(run.clock() + 7000 * MS, -7.0, 0.0, 0.0001, 9), rank=1)
    train(run, 5, clock_ahead_ms=7000)


def drifting_clock(run: RunBuilder) -> None:
    # Five seconds ahead, and 1 ms a second more since.
    run.launch(2).tell(events.Clock(run.clock() + 5000 * MS, -5.0, -0.001, 0.0001, 9), rank=1)
    run.clock.advance(10.0)
    train(run, 5, clock_ahead_ms=5010)


def resumed(run: RunBuilder) -> None:
    train(run.launch(2), 5).end_attempt("failed").launch(2, from_step=5)
    train(run, 5)


CASES: dict[str, tuple[Callable[[RunBuilder], object], dict[str, float] | None]] = {
    "two ranks of one host": (lambda run: train(run.launch(2), 5), WANT),
    "a rank whose clock is five seconds ahead": (other_clock, WANT),
    "a rank whose clock is ahead and that waits": (lambda run: other_clock(run, late=0), WANT),
    "a rank whose clock was set in between": (clock_set_in_between, WANT),
    "a rank whose clock drifts": (drifting_clock, WANT),
    "the newest attempt's": (resumed, WANT),
    "one rank alone": (lambda run: run.launch(1).train(5, accounts=[EARLY]), None),
    "no collectives are recorded": (lambda run: run.launch(2).train(5, accounts=[EARLY, LATE]), None),
    "no accounts are recorded": (lambda run: run.launch(2).train(5), None),
}


@pytest.mark.parametrize("sentence", CASES)
def test_exposed_communication_is_split(sentence: str, home: Path) -> None:
    build, want = CASES[sentence]
    assert split(home, build) == (pytest.approx(want, abs=5e-4) if want else None)


def test_a_rank_of_another_host_without_a_clock_is_left_out(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2)
        header = events.Header(1, run.run_id, 0, 1, 2, "worker", "elsewhere", 1, 0.0, run.clock(), "0")
        train(run.tell(header, rank=1), 5)

    assert split(home, build) is None


def test_it_reads_a_bounded_end_of_each_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "_BYTES_A_RANK", 4000)
    seen: list[int] = []
    whole = exposure.split_exposed

    def spy(ranks: Any) -> Any:
        seen.extend(len(trace.met) for trace in ranks.values())
        return whole(ranks)

    monkeypatch.setattr(exposure, "split_exposed", spy)
    assert split(home, lambda run: train(run.launch(2), 200)) == pytest.approx(WANT, abs=1e-5)
    assert len(seen) == 2
    assert all(5 <= num <= 20 for num in seen)  # a step takes some 350 bytes


def test_only_the_newest_steps_count(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposure, "MOST_STEPS", 3)

    def build(run: RunBuilder) -> None:
        train(run.launch(2), 20)
        for _ in range(3):  # nobody waits any more
            communicate(run, 0, 90)
            communicate(run, 1, 90)
            run.train(1, accounts=[LATE])

    found = split(home, build)
    assert found["wait"] == 0.0
    assert found["transfer"] > 0.01


def test_a_file_that_is_gone_is_no_rank(home: Path) -> None:
    place = Home(home)
    run = train(RunBuilder(place).launch(2), 5)
    with open_catalog(place) as catalog:
        refresh(place, catalog)
        (run.folder.records / "a000-r00001.rec").unlink()
        assert show_run(place, catalog, run.run_id)["exposed_split"] is None
