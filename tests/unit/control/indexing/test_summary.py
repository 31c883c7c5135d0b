"""`summarize` and its parts, on readings of files that builders have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.control.indexing.readings import FileReading, fold, new_reading
from gscalar.control.indexing.run_index import load_job, scan_records
from gscalar.control.indexing.summary import find_cuts, find_owner, summarize
from gscalar.model import events
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.state.records.reader import RecordTail
from gscalar.testing.builders import START_NS, RunBuilder

Build = Callable[[RunBuilder], object]


def read(builder: RunBuilder) -> dict[str, FileReading]:
    readings = {}
    for name in scan_records(builder.folder):
        items = RecordTail(builder.folder.records / name).poll()
        readings[name] = new_reading(builder.run_id, name)
        fold(readings[name], items)
    for name, cut in find_cuts(readings).items():
        readings[name] = new_reading(builder.run_id, name)
        readings[name].cut = cut
        fold(readings[name], RecordTail(builder.folder.records / name).poll())
    return readings


def run_of(home: Path, build: Build, *, alive: bool = True, alone: bool = False, job: bool = True) -> RunSummary:
    builder = RunBuilder(Home(home), alone=alone)
    build(builder)
    found = load_job(builder.folder) if job else None
    summary = summarize(builder.run_id, found, read(builder), alive=alive)
    assert summary is not None
    builder.abandon()
    return summary


STATUSES: dict[str, tuple[Build, bool, str, list[str | None]]] = {
    "nobody has begun": (lambda run: run, True, "queued", []),
    "the owner lives": (lambda run: run.launch().train(3), True, "running", [None]),
    "the owner is dead": (lambda run: run.launch().train(3), False, "interrupted", ["killed"]),
    "the run has ended": (lambda run: run.launch().train(3).finish().end(), False, "completed", ["completed"]),
    "the run has failed": (lambda run: run.launch().train(3).fail().end("failed"), True, "failed", ["failed"]),
    "the run was cancelled": (lambda run: run.launch().train(3).end("cancelled"), True, "cancelled", ["stopped"]),
    "the supervisor died after rank 0 had finished": (
        lambda run: run.launch().train(3).finish(),
        False,
        "completed",
        ["completed"],
    ),
    "rank 0 finished because it was asked to stop": (
        lambda run: run.launch().train(3).tell(events.StopAcknowledged(1, 3)).finish(),
        False,
        "interrupted",
        ["killed"],
    ),
    "rank 0 finished in an attempt before the last": (
        lambda run: run.launch().train(3).finish().end_attempt("failed").launch().train(1),
        False,
        "interrupted",
        ["failed", "killed"],
    ),
    "a second attempt goes on": (
        lambda run: run.launch().train(3).checkpoint().fail().end_attempt("failed").launch(from_step=3).train(1),
        True,
        "running",
        ["failed", None],
    ),
}


# A script alone has one attempt at a time.
CASES = [
    (sentence, alone) for sentence in STATUSES for alone in (False, True) if len(STATUSES[sentence][3]) < 2 or not alone
]


@pytest.mark.parametrize(("sentence", "alone"), CASES)
def test_status(sentence: str, alone: bool, home: Path) -> None:
    build, alive, status, outcomes = STATUSES[sentence]
    got = run_of(home, build, alive=alive, alone=alone)
    assert got.status == status
    assert [each.outcome for each in got.attempts] == outcomes
    assert (got.ended_ns is None) == (status in ("running", "queued"))


def test_a_status_of_a_newer_version_is_a_failure(home: Path) -> None:
    assert run_of(home, lambda run: run.launch().end("paused")).status == "failed"


def test_a_new_supervisor_takes_an_ended_run_up_again(home: Path) -> None:
    first = RunBuilder(Home(home))
    first.launch().train(4).checkpoint().end("interrupted")
    first.launch(from_step=4).train(2)
    got = summarize(first.run_id, None, read(first), alive=True)
    first.abandon()
    assert got is not None
    assert (got.status, got.steps) == ("running", 6)
    assert [each.outcome for each in got.attempts] == ["stopped", None]
    assert got.owner is not None


def test_a_script_alone_takes_a_supervised_run_up_again(home: Path) -> None:
    run = RunBuilder(Home(home))
    run.launch().train(4).checkpoint().end("interrupted")
    run.alone = True
    run.launch(from_step=4)
    readings = read(run)
    owner = find_owner(readings)
    run.abandon()
    assert owner is readings["a001-r00000.rec"]


CUTS: dict[str, tuple[Build, dict[str, Any]]] = {
    "one attempt": (lambda run: run.launch().train(5), {"steps": 5, "losses": 5, "from": [0]}),
    "steps after the checkpoint are repeated": (
        lambda run: run.launch().train(5).end_attempt("killed").launch(from_step=3).train(1),
        {"steps": 4, "losses": 4, "from": [0, 3]},
    ),
    "the second attempt has not trained yet": (
        lambda run: run.launch().train(5).end_attempt("killed").launch(),
        {"steps": 5, "losses": 5, "from": [0, 0]},
    ),
    "the second attempt begins anew": (
        lambda run: run.launch().train(5).end_attempt("killed").launch().train(2),
        {"steps": 2, "losses": 2, "from": [0, 0]},
    ),
    "the third goes back behind the second": (
        lambda run: (
            run.launch().train(6).end_attempt("killed").launch(from_step=5).train(3).end_attempt("killed")
            .launch(from_step=2).train(1)
        ),
        {"steps": 3, "losses": 3, "from": [0, 5, 2]},
    ),
    "the third goes on from the second": (
        lambda run: (
            run.launch().train(6).end_attempt("killed").launch(from_step=4).train(4).end_attempt("killed")
            .launch(from_step=7).train(1)
        ),
        {"steps": 8, "losses": 8, "from": [0, 4, 7]},
    ),
    "a resumed attempt that has not stepped counts from where it is": (
        lambda run: run.launch().train(6).end_attempt("killed").launch(from_step=4),
        {"steps": 4, "losses": 4, "from": [0, 4]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("sentence", CUTS)
def test_repeated_steps_supersede_the_old_ones(sentence: str, world: int, home: Path) -> None:
    build, want = CUTS[sentence]

    class Wide(RunBuilder):
        def launch(self, _world: int = 1, *, from_step: int | None = None) -> RunBuilder:
            return super().launch(world, from_step=from_step)

    run = Wide(Home(home))
    build(run)
    got = summarize(run.run_id, None, read(run), alive=True)
    run.abandon()
    assert got is not None
    assert got.steps == want["steps"]
    assert got.metrics["train/loss"].count == want["losses"]
    assert got.tokens == 1024.0 * want["losses"]
    assert [each.from_step for each in got.attempts] == want["from"]
    assert got.world == world


def test_only_rank_0_may_tell_that_the_attempt_resumed(home: Path) -> None:
    run = RunBuilder(Home(home))
    run.launch(2).train(5).end_attempt("killed").launch(2)
    run.step = 3
    run.tell(events.Resumed(1, 3, "c"), rank=0).train(1)
    got = summarize(run.run_id, None, read(run), alive=True)
    run.abandon()
    assert got is not None
    assert got.metrics["train/loss"].count == 4


def test_metrics_are_of_the_lowest_rank_that_logged_them(home: Path) -> None:
    got = run_of(home, lambda run: run.launch(3).train(2).log({"a": 1.0}, rank=2).log({"a": 5.0}, rank=1))
    assert got.metrics["a"].last == 5.0
    assert got.metrics["train/loss"].last == 2.0  # rank 0's; rank r adds r


def test_the_worker_knows_better_than_the_launcher(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.spec = run.spec | {"project": "lm", "name": "from the script", "seed": 9}
        run.origins = {"project": "script", "seed": "script"}
        run.launch().train(1)

    got = run_of(home, build)
    assert (got.project, got.name, got.seed) == ("lm", "from the script", 9)
    assert {each.key: each.origin for each in got.params}["seed"] == "script"


def test_without_a_job_file_the_worker_says_what_the_run_is(home: Path) -> None:
    got = run_of(home, lambda run: run.launch().train(1), job=False)
    assert (got.project, got.name, got.seed) == ("demo", "tiny", 7)
    assert got.created_ns == START_NS


def test_no_job_and_no_record_is_no_run() -> None:
    assert summarize("r", None, {}, alive=True) is None


def test_digests_are_those_of_the_newest_attempt_that_trained(home: Path) -> None:
    old, new = "11" * 32, "22" * 32
    got = run_of(
        home, lambda run: run.launch().train(2).finish(old).end("completed").launch(from_step=2).train(1).finish(new)
    )
    assert got.digests["weights"] == new
    got = run_of(
        home / "b", lambda run: run.launch().train(2).finish(old).end("completed").launch(from_step=2).train(1)
    )
    assert "weights" not in got.digests


CHECKPOINTS: dict[str, tuple[Build, list[int]]] = {
    "those that were saved": (lambda run: run.launch().train(2).checkpoint().train(2).checkpoint(), [2, 4]),
    "without one that the attempt has pruned": (
        lambda run: run.launch().train(2).checkpoint().train(2).checkpoint().tell(removed(2), rank=0),
        [4],
    ),
    "without one that a later attempt has pruned": (
        lambda run: (
            run.launch().train(2).checkpoint().end_attempt("killed").launch(from_step=2).train(2).checkpoint()
            .tell(removed(2), rank=0)
        ),
        [4],
    ),
    "without those that are superseded": (
        lambda run: (
            run.launch().train(2).checkpoint().train(2).checkpoint().end_attempt("killed").launch(from_step=2).train(1)
        ),
        [2],
    ),
    "with one that was saved again": (
        lambda run: (
            run.launch().train(2).checkpoint().train(2).checkpoint().end_attempt("killed")
            .launch(from_step=2).tell(removed(4), rank=0).train(2).checkpoint()
        ),
        [2, 4],
    ),
}  # fmt: skip


def removed(step: int) -> events.CheckpointRemoved:
    # Later than the save before it, earlier than the one after it: the builder's clock moves on by 50 ms a step.
    return events.CheckpointRemoved(START_NS + 900_000_000, step, f"checkpoints/step-{step:09d}", "pruned")


@pytest.mark.parametrize("sentence", CHECKPOINTS)
def test_checkpoints(sentence: str, home: Path) -> None:
    build, want = CHECKPOINTS[sentence]
    assert [each.step for each in run_of(home, build).checkpoints] == want


def test_the_failure_of_an_attempt_is_the_first_that_is_no_consequence(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2).train(2)
        broken = events.Failure(1, 0, 2, "user_error", "RuntimeError", "broken collective", secondary=True)
        run.tell(broken, rank=0).fail("ValueError", "bad batch", rank=1).end_attempt("failed")

    (attempt,) = run_of(home, build).attempts
    assert attempt.failure is not None
    assert (attempt.failure["kind"], attempt.failure["rank"]) == ("ValueError", 1)


def test_a_failure_that_worker_and_supervisor_tell_of_is_one(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch().train(1).fail().end_attempt("failed")
        supervisor = run._supervisor
        assert supervisor is not None
        supervisor.emit(events.Failure(1, 0, 1, "user_error", "ValueError", "no such thing"))

    (failure,) = run_of(home, build).failures
    assert "Traceback" in failure.traceback


def test_a_note_of_several_ranks_stands_once(home: Path) -> None:
    note = events.Note(5, "warning", "c", "text")
    (got,) = run_of(home, lambda run: run.launch(3).tell(note)).notes
    assert (got.rank, got.count, got.text) == (0, 3, "text")


def test_what_was_not_finite_is_summed_up(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch(2).train(4)
        for rank, step in ((1, 2), (0, 3), (1, 4)):
            run.tell(events.Nonfinite(1, step, rank, "gradient", "layer.0"), rank=rank)

    want = {"count": 3, "step": 2, "rank": 1, "what": "gradient", "parameter": "layer.0"}
    assert run_of(home, build).nonfinite == want


def test_dropped_events_of_all_files_are_summed(home: Path) -> None:
    got = run_of(home, lambda run: run.launch(2).tell(events.Dropped(1, 5, "disk full")))
    assert got.num_dropped == 10


def test_edits_are_ordered_by_their_time(home: Path) -> None:
    def build(run: RunBuilder) -> None:
        run.launch().edit("zz", tags={"a": "1"}, name="first").edit("aa", tags={"a": "2"}, name="second")

    got = run_of(home, build)
    assert (got.tags["a"], got.name) == ("2", "second")


def test_throughput_leaves_the_first_step_out(home: Path) -> None:
    got = run_of(home, lambda run: run.launch().train(3))
    assert got.throughput == pytest.approx({"steps_per_s": 20, "samples_per_s": 160, "tokens_per_s": 20480})
    assert run_of(home / "b", lambda run: run.launch().train(1)).throughput == {}
