from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gscalar.control.indexing.readings import NO_CUT, FileReading, fold, new_reading, pack, unpack
from gscalar.model import events
from gscalar.model.events import AnyEvent
from gscalar.state.records.reader import Damage, Frame

NAMES = {
    "a worker's": ("a002-r00013.rec", ("worker", 2, 13)),
    "a supervisor's": ("supervisor-a003.rec", ("supervisor", 3, -1)),
    "an edit's": ("edit-7k2m9qx4tz0a.rec", ("edit", 0, -1)),
}


@pytest.mark.parametrize("sentence", NAMES)
def test_a_name_says_who_writes(sentence: str) -> None:
    name, want = NAMES[sentence]
    header = new_reading("run", name).header
    assert (header.writer, header.attempt, header.rank) == want


def reading(*told: AnyEvent | Damage, cut: int = NO_CUT) -> FileReading:
    found = new_reading("run", "a001-r00002.rec")
    found.cut = cut
    fold(found, frames(told))
    return found


def frames(told: Sequence[AnyEvent | Damage]) -> list[Frame | Damage]:
    return [each if isinstance(each, Damage) else Frame(0, 1, each) for each in told]


def header(time_ns: int = 1, *, host: str = "a") -> events.Header:
    return events.Header(1, "run", 1, 2, 4, "worker", host, 10, 1.5, time_ns, "0.1.0")


def step(number: int) -> events.Step:
    return events.Step(number, 100 + number, 0.5, 4.0, 10.0, 0.1, 2.0 / number, 0, 40)


def points(number: int, *values: float, names_id: int = 1) -> events.Points:
    return events.Points(number, 200 + number, names_id, struct.pack(f"<{len(values)}d", *values))


def saved(path: str, number: int) -> events.CheckpointSaved:
    return events.CheckpointSaved(300 + number, number, path, 10, "ab", 0.0, 0.0)


def test_steps_are_counted_and_summed() -> None:
    got = reading(step(1), step(2), step(3))
    assert (got.last_step, got.total_steps, got.tokens, got.samples) == (3, 40, 30.0, 12.0)
    assert (got.num_timed, got.timed_s, got.timed_tokens) == (2, 1.0, 20.0)
    assert got.metrics["train/loss"].count == 3


def test_what_comes_after_the_cut_counts_in_no_summary() -> None:
    names = events.Names(1, ("a",))
    nonfinite = events.Nonfinite(1, 3, 2, "loss")
    got = reading(names, step(1), points(1, 1.0), step(2), step(3), points(3, 9.0), nonfinite, cut=2)
    assert (got.last_step, got.tokens, got.num_nonfinite) == (2, 20.0, 0)
    assert got.metrics["a"].max == 1.0
    assert got.metrics["train/loss"].count == 2
    assert got.top_step == 3


def test_points_whose_names_are_lost_are_counted_and_left_out() -> None:
    got = reading(points(1, 1.0), events.Names(1, ("a", "b")), points(1, 1.0), points(2, 1.0, 2.0))
    assert got.num_unnamed == 2
    assert got.metrics["b"].last == 2.0


def test_another_process_that_goes_on_with_the_file_counts_its_names_anew() -> None:
    got = reading(header(), events.Names(1, ("a",)), header(5, host="b"), points(1, 1.0))
    assert got.num_unnamed == 1
    assert got.header.host == "b"


def test_another_process_that_goes_on_with_the_file_has_not_ended_the_run() -> None:
    got = reading(header(), events.RunEnded(1, "completed"), header(5))
    assert got.run_ended is None


CHECKPOINTS = {
    "a saved one": ([saved("c1", 1)], ["c1"], []),
    "one that is removed again": ([saved("c1", 1), saved("c2", 2), "c1"], ["c2"], []),
    "one that is saved once more": ([saved("c1", 1), "c1", saved("c1", 1)], ["c1"], []),
    "one of another file that is removed": (["c0", saved("c1", 1)], ["c1"], ["c0"]),
}


@pytest.mark.parametrize("sentence", CHECKPOINTS)
def test_checkpoints(sentence: str) -> None:
    told, there, removed = CHECKPOINTS[sentence]
    told_events = [events.CheckpointRemoved(900, 1, each, "pruned") if isinstance(each, str) else each for each in told]
    got = reading(*told_events)
    assert (list(got.saved), list(got.removed)) == (there, removed)


def test_damage_is_counted() -> None:
    got = reading(step(1), Damage(10, 35, "the checksum does not fit"), step(3))
    assert (got.num_damaged, got.damaged_bytes, got.last_step) == (1, 25, 3)


def test_a_file_is_closed_by_its_last_seal_only() -> None:
    seal = events.Seal(1, b"", "close")
    assert reading(step(1), seal).closed
    assert not reading(seal, step(1)).closed
    assert not reading(events.Seal(1, b"", "checkpoint")).closed


def test_failures_and_notes_belong_to_the_attempt_that_the_supervisor_is_at() -> None:
    failure = events.Failure(1, 0, 3, "killed", "SIGKILL", "")
    note = events.Note(1, "warning", "w", "text")
    got = reading(events.AttemptStarted(1, 1, 2), failure, events.AttemptStarted(2, 2, 2), note, failure)
    assert [attempt for attempt, _ in got.failures] == [1, 2]
    assert [attempt for attempt, _ in got.notes] == [2]


def test_a_failed_checkpoint_becomes_a_note() -> None:
    got = reading(events.CheckpointFailed(1, 30, "no space left on device"))
    assert "step 30" in got.notes[0][1].text


def test_what_a_run_repeats_for_ever_is_kept_up_to_a_number() -> None:
    got = reading(*(events.Note(place, "info", "c", f"line {place}") for place in range(10_000)))
    assert len(got.notes) == 200


def test_the_time_of_the_last_event_is_kept_whatever_it_is() -> None:
    assert reading(step(1), events.Beat(777, "load"), events.Names(1, ("a",))).last_time_ns == 777


def test_a_reading_can_be_put_away_and_taken_up_again() -> None:
    told = [header(), events.Names(1, ("a",)), step(1), points(1, 1.0), saved("c1", 1), step(2), points(2, 2.0)]
    want = reading(*told)
    for place in range(len(told)):
        first = reading(*told[:place])
        metrics = first.metrics
        again = unpack(pack(first))
        assert first.metrics is metrics
        again.metrics = metrics
        fold(again, frames(told[place:]))
        assert again == want
