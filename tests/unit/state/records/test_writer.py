"""Writing: what is kept, how names are repeated, seals, a file that exists, threads and signal handlers."""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.model.events import Adopted, AnyEvent, Beat, Dropped, Header, Names, Note, Points, Seal
from gscalar.model.sink import Sink
from gscalar.state.records.format import MAX_PAYLOAD_BYTES, encode_event
from gscalar.state.records.reader import RecordTail, read_logged, read_record
from gscalar.state.records.verify import verify_record
from gscalar.state.records.writer import RecordWriter

ReadEvents = Callable[[], list[AnyEvent]]
OpenWriter = Callable[[], RecordWriter]


def kinds(events: list[AnyEvent]) -> str:
    return " ".join(type(event).__name__ for event in events)


def test_a_writer_is_a_sink_and_begins_the_file_with_its_header(writer: RecordWriter, read_events: ReadEvents) -> None:
    sink: Sink = writer
    sink.emit(Beat(1, "init"))
    [header, beat] = read_events()
    assert isinstance(header, Header)
    assert beat == Beat(1, "init")


def test_what_was_emitted_is_in_the_file_when_the_call_returns(writer: RecordWriter, read_events: ReadEvents) -> None:
    for number in range(5):
        writer.emit(Beat(number, "x"))
        assert read_events()[-1] == Beat(number, "x")


def test_names_are_written_once_and_the_values_are_packed(writer: RecordWriter, read_events: ReadEvents) -> None:
    writer.log(1, 10, {"loss": 0.5, "lr": 2.0})
    writer.log(2, 20, {"loss": 0.25, "lr": 1.0})
    [_, names, first, second] = read_events()
    assert names == Names(1, ("loss", "lr"))
    assert first == Points(1, 10, 1, struct.pack("<2d", 0.5, 2.0))
    assert second == Points(2, 20, 1, struct.pack("<2d", 0.25, 1.0))


def test_each_set_of_names_has_an_id_and_their_order_matters(writer: RecordWriter, path: Path) -> None:
    given = [{"a": 1.0}, {"a": 1.0, "b": 2.0}, {"b": 3.0, "a": 4.0}, {"a": 5.0}]
    for step, values in enumerate(given):
        writer.log(step, 0, values)
    assert [logged.values for logged in read_logged(path)] == given


def test_names_are_written_again_after_a_seal(writer: RecordWriter, read_events: ReadEvents) -> None:
    writer.log(1, 10, {"loss": 0.5})
    writer.seal("checkpoint")
    writer.log(2, 20, {"loss": 0.5})
    writer.log(3, 30, {"loss": 0.5})
    assert kinds(read_events()) == "Header Names Points Seal Names Points Points"


def test_names_are_written_again_every_thousand_calls(writer: RecordWriter, read_events: ReadEvents) -> None:
    for step in range(2500):
        writer.log(step, 0, {"loss": 0.5})
    events = read_events()
    assert [index for index, event in enumerate(events) if isinstance(event, Names)] == [1, 1002, 2003]


def test_a_script_with_ever_new_names_is_kept_without_keeping_all_names(writer: RecordWriter, path: Path) -> None:
    for step in range(5000):
        writer.log(step, 0, {f"loss/{step}": 1.0})
    assert len(writer._key_sets) <= 4096
    assert [next(iter(logged.values)) for logged in read_logged(path)] == [f"loss/{step}" for step in range(5000)]


@pytest.mark.parametrize(
    ("value", "want"),
    {
        "a whole number": (3, 3.0),
        "a truth": (True, 1.0),
        "a NumPy float": (np.float32(0.5), 0.5),
        "a NumPy half": (np.float16(-2.0), -2.0),
        "a NumPy integer": (np.int8(-3), -3.0),
        "a NumPy boolean": (np.bool_(True), 1.0),
        "an array without axes": (np.array(1.5), 1.5),
        "a decimal": (Decimal("0.125"), 0.125),
        "a fraction": (Fraction(1, 4), 0.25),
        "an infinity": (math.inf, math.inf),
        "a negative infinity": (-math.inf, -math.inf),
        "an integer beyond float64": (10**400, math.inf),
        "a negative integer beyond float64": (-(10**400), -math.inf),
        "the least positive number": (5e-324, 5e-324),
    }.values(),
)
def test_any_number_is_kept_as_float64(writer: RecordWriter, path: Path, value: Any, want: float) -> None:
    writer.log(1, 0, {"x": value, "y": 2.0})
    assert [logged.values for logged in read_logged(path)] == [{"x": want, "y": 2.0}]


def test_nan_keeps_its_bits_and_zero_its_sign(writer: RecordWriter, path: Path) -> None:
    writer.log(1, 0, {"nan": math.nan, "zero": -0.0})
    [logged] = read_logged(path)
    assert math.isnan(logged.values["nan"])
    assert math.copysign(1, logged.values["zero"]) == -1


@pytest.mark.parametrize("value", ["3.5", None, [1.0], {"a": 1.0}, 1j, b"1", np.zeros(2), object()])
def test_a_value_that_is_no_number_is_refused_by_name_and_nothing_is_written(
    writer: RecordWriter, read_events: ReadEvents, value: Any
) -> None:
    with pytest.raises(TypeError, match="'loss/bad'"):
        writer.log(1, 0, {"good": 1.0, "loss/bad": value})
    assert kinds(read_events()) == "Header"
    assert writer.dropped == 0


def test_a_name_that_is_no_text_is_refused(writer: RecordWriter, read_events: ReadEvents) -> None:
    with pytest.raises(TypeError, match="must be text, got 3"):
        writer.log(1, 0, {3: 1.0})  # type: ignore[dict-item]
    assert kinds(read_events()) == "Header"


def test_no_values_are_no_event(writer: RecordWriter, read_events: ReadEvents) -> None:
    writer.log(1, 0, {})
    assert kinds(read_events()) == "Header"


def test_a_name_with_a_lone_surrogate_is_kept_escaped(writer: RecordWriter, path: Path) -> None:
    writer.log(1, 0, {"a\udc80": 1.0})
    assert [logged.values for logged in read_logged(path)] == [{"a\\udc80": 1.0}]


@pytest.mark.parametrize(
    "event",
    {
        "larger than a frame": Note(1, "info", "x", "y" * MAX_PAYLOAD_BYTES),
        "nested without end": Adopted(1, (lambda facts: facts.update(me=facts) or facts)({})),  # type: ignore[func-returns-value]
    }.values(),
    ids=["large", "nested"],
)
def test_an_event_that_no_frame_can_hold_is_counted_and_said(
    writer: RecordWriter, read_events: ReadEvents, event: Any
) -> None:
    writer.emit(event)
    assert writer.dropped == 1
    writer.emit(Beat(2, "next"))
    [_, dropped, beat] = read_events()
    assert isinstance(dropped, Dropped)
    assert dropped.count == 1
    assert dropped.reason.startswith(type(event).__name__)
    assert beat == Beat(2, "next")


def test_a_closed_file_ends_with_a_seal_and_counts_what_comes_later(
    writer: RecordWriter, read_events: ReadEvents, path: Path
) -> None:
    writer.emit(Beat(1, "x"))
    writer.close()
    before = path.read_bytes()
    writer.emit(Beat(2, "late"))
    writer.log(1, 0, {"loss": 1.0})
    writer.seal("late")
    writer.flush()
    writer.close()
    assert path.read_bytes() == before
    assert writer.dropped == 2
    seal = read_events()[-1]
    assert isinstance(seal, Seal)
    assert seal.reason == "close"


def count_syncs(monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> list[int]:
    synced: list[int] = []

    def sync(fd: int) -> None:
        synced.append(fd)
        if fails:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", sync)
    return synced


def test_flush_syncs_only_when_the_last_sync_is_more_than_five_seconds_ago(
    open_writer: OpenWriter, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = count_syncs(monkeypatch)
    writer = open_writer()
    counts = []
    for later_s in (0, 4, 2, 1, 5, 1, -100):
        clock.now_ns += later_s * 1_000_000_000
        writer.flush()
        counts.append(len(synced))
    # The first sync is of the file and of its folder.
    assert counts == [0, 0, 2, 2, 3, 3, 4]


def test_a_seal_is_synced_and_a_failing_sync_is_said_once(
    writer: RecordWriter, read_events: ReadEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = count_syncs(monkeypatch, fails=True)
    writer.seal("checkpoint")
    writer.seal("checkpoint")
    assert len(synced) == 2
    [note] = [event for event in read_events() if isinstance(event, Note)]
    assert note.code == "record-not-durable"
    assert "Input/output error" in note.text


def test_a_file_that_exists_is_continued_behind_its_last_whole_frame(
    path: Path, open_writer: OpenWriter, read_events: ReadEvents
) -> None:
    first = open_writer()
    first.log(1, 0, {"a": 1.0})
    first.seal("checkpoint")
    first.emit(Beat(1, "x"))
    with path.open("ab") as file:
        file.write(encode_event(Beat(2, "torn"))[:-1])
    second = open_writer()
    second.log(2, 0, {"b": 2.0})
    second.log(3, 0, {"a": 3.0})
    second.close()
    assert kinds(read_events()) == "Header Names Points Seal Beat Header Names Points Names Points Seal"
    assert [logged.values for logged in read_logged(path)] == [{"a": 1.0}, {"b": 2.0}, {"a": 3.0}]
    report = verify_record(path)
    assert (report.sound, report.seals) == (True, 2)


def test_a_continued_file_never_gives_old_ids_to_new_names(path: Path, open_writer: OpenWriter) -> None:
    first = open_writer()
    first.log(1, 0, {"a": 1.0})
    start = path.stat().st_size
    second = open_writer()
    second.log(2, 0, {"b": 2.0})
    content = path.read_bytes()
    names = next(place for place in range(start, len(content)) if content[place:].startswith(b"\x93\xa1N"))
    path.write_bytes(content[:names] + b"X" + content[names + 1 :])
    # The names of b are lost, so its value must not be taken for one of a.
    assert [logged.values for logged in read_logged(path)] == [{"a": 1.0}]


@pytest.mark.parametrize("size", [0, 1, 8, 50])
def test_a_file_without_a_whole_frame_is_begun_anew(
    path: Path, open_writer: OpenWriter, read_events: ReadEvents, size: int
) -> None:
    path.write_bytes(bytes(size))
    open_writer().close()
    assert kinds(read_events()) == "Header Seal"
    assert verify_record(path).sound


def test_two_writers_of_one_file_keep_their_frames_whole(
    path: Path, open_writer: OpenWriter, read_events: ReadEvents
) -> None:
    first, second = open_writer(), open_writer()
    for number in range(20):
        first.emit(Beat(number, "first"))
        second.emit(Beat(number, "second"))
    assert len(read_events()) == 42


def test_a_folder_that_is_missing_is_an_error_at_once(tmp_path: Path, open_writer: OpenWriter) -> None:
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "missing" / "a.rec", Header(1, "r", 0, 0, 1, "worker", "h", 1, 1.0, 1, "0"))


def test_threads_share_a_writer_and_every_event_is_whole_and_sealed(writer: RecordWriter, path: Path) -> None:
    def work(thread: int) -> None:
        for number in range(300):
            writer.log(number, thread, {f"{thread}/a": number, f"{thread}/b": 1.0})
            writer.emit(Beat(number, str(thread)))
            if number % 50 == 0:
                writer.seal("checkpoint")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    report = verify_record(path)
    assert (report.sound, report.torn_bytes, report.seals) == (True, 0, 25)
    logged = list(read_logged(path))
    for number in range(4):
        of_thread = [entry for entry in logged if entry.time_ns == number]
        want = [{f"{number}/a": float(step), f"{number}/b": 1.0} for step in range(300)]
        assert [entry.values for entry in of_thread] == want
    assert writer.dropped == 0


def test_a_signal_handler_may_emit_log_and_seal_in_the_middle_of_a_write(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents
) -> None:
    disk.bytes_a_write = 7  # so that every frame takes several writes

    def handler() -> None:
        disk.before_write = None
        writer.log(7, 7, {"handler": 7.0})
        writer.seal("handler")
        writer.emit(Beat(7, "handler"))
        writer.close()

    disk.before_write = handler
    writer.emit(Beat(1, "outer"))
    writer.emit(Beat(2, "late"))
    assert kinds(read_events()) == "Header Beat Names Points Seal Beat Seal"
    assert verify_record(path).sound
    assert writer.dropped == 1


def test_a_signal_handler_may_emit_in_the_middle_of_a_seal(path: Path, read_events: ReadEvents) -> None:
    header = Header(1, "r", 0, 0, 1, "worker", "h", 1, 1.0, 1, "0")
    asked: list[RecordWriter] = []

    def clock() -> int:
        # The seal asks for the time after it has hashed, the worst moment for another frame.
        for writer in asked:
            asked.clear()
            writer.emit(Beat(1, "handler"))
            writer.seal("handler")
        return 5

    writer = RecordWriter(path, header, clock_ns=clock)
    asked.append(writer)
    writer.seal("checkpoint")
    writer.close()
    assert kinds(read_events()) == "Header Seal Beat Seal"
    assert verify_record(path).sound


def test_a_tail_follows_a_writer(writer: RecordWriter, path: Path) -> None:
    tail = RecordTail(path)
    assert len(tail.poll()) == 1
    for step in range(3):
        writer.log(step, 0, {"loss": step / 2})
        [*_, frame] = tail.poll()
        assert tail.values(frame.event) == {"loss": step / 2}  # type: ignore[union-attr, arg-type]
    assert tail.poll() == []
    assert tail.offset == path.stat().st_size == list(read_record(path))[-1].end
