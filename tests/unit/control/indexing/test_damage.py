"""Which records of a completed attempt are named because they are cut off or missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gscalar.state.catalog.rows import RunSummary
from gscalar.state.records.reader import read_record
from gscalar.testing.builders import RunBuilder

Names = tuple[list[str], list[str]]
FIRST, SECOND = "a000-r00000.rec", "a000-r00001.rec"


def done(run: RunBuilder, world: int = 2) -> RunBuilder:
    return run.launch(world).train(3).finish().end()


def killed_and_done(run: RunBuilder) -> RunBuilder:
    run.launch(2).train(3)
    workers = [worker.path for worker in run.workers]
    run.end_attempt("killed")
    for path in workers:
        drop_seal(path)
    return done(run, 1)


def drop_seal(path: Path) -> None:
    """Cut the file at the border of its last frame, which is the seal."""
    os.truncate(path, list(read_record(path))[-1].offset)


def lose(run: RunBuilder, *ranks: int, attempt: int = 0) -> None:
    for rank in ranks:
        run.folder.worker_record(attempt, rank).unlink()


def cut(run: RunBuilder, *ranks: int) -> None:
    for rank in ranks:
        drop_seal(run.folder.worker_record(0, rank))


CASES: dict[str, tuple[Callable[[RunBuilder], object], Names]] = {
    "all is there": (done, ([], [])),
    "one rank's last seal is gone": (lambda run: cut(done(run), 1), ([SECOND], [])),
    "every rank's last seal is gone": (lambda run: cut(done(run), 0, 1), ([FIRST, SECOND], [])),
    "one rank's file is empty": (
        lambda run: os.truncate(done(run).folder.worker_record(0, 1), 0),
        ([SECOND], []),
    ),
    "one rank's file is gone": (lambda run: lose(done(run), 1), ([], ["0/1"])),
    "the first rank's file is gone": (lambda run: lose(done(run), 0), ([], ["0/0"])),
    "one is cut off and one gone": (lambda run: (cut(done(run, 3), 1), lose(run, 2)), ([SECOND], ["0/2"])),
    "no rank has a file: the script may not record": (lambda run: lose(done(run), 0, 1), ([], [])),
    "all of a second attempt's files are gone": (
        lambda run: lose(done(run.launch(2).train(1).end_attempt("failed")), 0, 1, attempt=1),
        ([], ["1/0", "1/1"]),
    ),
    "the attempt goes on": (lambda run: run.launch(2).train(3), ([], [])),
    "the attempt was killed, and the next one completed": (killed_and_done, ([], [])),
    "a failed attempt has lost a file": (
        lambda run: lose(run.launch(2).train(1).fail().end("failed"), 1),
        ([], []),
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_is_named(sentence: str, summed: Callable[..., RunSummary]) -> None:
    build, (unclosed, missing) = CASES[sentence]
    got = summed(build, alive="goes on" in sentence).damage
    if not (unclosed or missing):
        assert got == {}
    else:
        nothing = {"regions": 0, "bytes": 0, "nameless_points": 0, "files": []}
        assert got == nothing | {"unclosed": unclosed, "missing": missing}


def test_a_run_whose_supervisor_died_before_it_told_the_end_is_not_named(summed: Callable[..., RunSummary]) -> None:
    got = summed(lambda run: run.launch(2).train(3).finish(), alive=False)
    assert (got.status, got.damage) == ("completed", {})
