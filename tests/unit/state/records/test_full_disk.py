"""A disk that fills up or fails: training goes on, the file stays readable, what was lost is counted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.model.events import AnyEvent, Beat, Dropped, Header, Points, Seal
from gscalar.state.records.reader import Damage, read_logged, read_record
from gscalar.state.records.verify import verify_record
from gscalar.state.records.writer import RecordWriter

ReadEvents = Callable[[], list[AnyEvent]]


def kinds(events: list[AnyEvent]) -> str:
    return " ".join(type(event).__name__ for event in events)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_what_does_not_fit_is_counted_and_said_before_the_next_event(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents, error: int
) -> None:
    disk.room_bytes, disk.error = path.stat().st_size, error
    for number in range(3):
        writer.emit(Beat(number, "lost"))
        assert writer.dropped == number + 1
    disk.room_bytes = None
    writer.emit(Beat(3, "kept"))
    writer.emit(Beat(4, "kept"))
    [_, dropped, kept, last] = read_events()
    assert isinstance(dropped, Dropped)
    assert (dropped.count, os.strerror(error) in dropped.reason) == (3, True)
    assert (kept, last) == (Beat(3, "kept"), Beat(4, "kept"))
    assert writer.dropped == 3


def test_a_frame_that_fits_in_part_is_taken_back_at_any_room(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents
) -> None:
    start = path.stat().st_size
    for room in range(60):
        disk.room_bytes = start + room
        writer.log(room, 0, {"loss": 0.5, "lr": 0.1})
        events = read_events()  # raises on damage
        assert path.stat().st_size == list(read_record(path))[-1].end
        if len(events) > 1:
            break
        assert path.stat().st_size == start
    assert writer.dropped > 10
    assert kinds(read_events()).startswith("Header Dropped Names Points") or room == 59


def test_names_that_were_lost_are_written_again(writer: RecordWriter, disk: Any, path: Path) -> None:
    disk.room_bytes = path.stat().st_size + 5
    writer.log(1, 0, {"loss": 1.0})
    disk.room_bytes = None
    writer.log(2, 0, {"loss": 2.0})
    assert [logged.values for logged in read_logged(path)] == [{"loss": 2.0}]


def test_losses_in_several_places_are_counted_apart(writer: RecordWriter, disk: Any, read_events: ReadEvents) -> None:
    for losses in (1, 2):
        disk.room_bytes = 0
        for _ in range(losses):
            writer.emit(Beat(0, "lost"))
        disk.room_bytes = None
        writer.emit(Beat(losses, "kept"))
    counts = [event.count for event in read_events() if isinstance(event, Dropped)]
    assert counts == [1, 2]
    assert writer.dropped == 3


def test_a_disk_that_is_full_from_the_start_gets_the_header_first_later(
    disk: Any, open_writer: Callable[[], RecordWriter], read_events: ReadEvents
) -> None:
    disk.room_bytes = 0
    writer = open_writer()
    writer.emit(Beat(1, "lost"))
    disk.room_bytes = None
    writer.emit(Beat(2, "kept"))
    assert kinds(read_events()) == "Header Dropped Beat"
    assert writer.dropped == 1


def test_short_writes_without_an_error_are_finished(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents
) -> None:
    disk.bytes_a_write = 3
    writer.log(1, 0, {"loss": 1.0})
    writer.close()
    assert kinds(read_events()) == "Header Names Points Seal"
    assert verify_record(path).sound
    assert disk.num_writes > 20


def test_a_write_that_takes_nothing_is_an_error_and_no_endless_loop(
    writer: RecordWriter, disk: Any, read_events: ReadEvents
) -> None:
    disk.bytes_a_write = 0
    writer.emit(Beat(1, "lost"))
    disk.bytes_a_write = None
    writer.emit(Beat(2, "kept"))
    assert kinds(read_events()) == "Header Dropped Beat"


def test_where_even_the_cut_fails_the_half_frame_is_damage_and_what_follows_is_read(
    writer: RecordWriter, disk: Any, path: Path
) -> None:
    start = path.stat().st_size
    disk.room_bytes, disk.cut_fails = start + 10, True
    writer.emit(Beat(1, "lost"))
    disk.room_bytes = None
    writer.emit(Beat(2, "kept"))
    [header, damage, dropped, kept] = read_record(path)
    assert (damage.offset, damage.end, type(damage)) == (start, start + 10, Damage)
    assert isinstance(header.event, Header)  # type: ignore[union-attr]
    assert isinstance(dropped.event, Dropped)  # type: ignore[union-attr]
    assert kept.event == Beat(2, "kept")  # type: ignore[union-attr]
    writer.close()
    assert verify_record(path).first_broken_seal is None


@pytest.mark.parametrize("trouble", ["full", "unreadable"])
def test_a_seal_that_cannot_be_made_is_lost_and_the_next_covers_all(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents, trouble: str
) -> None:
    writer.emit(Beat(1, "x"))
    if trouble == "full":
        disk.room_bytes = path.stat().st_size + 4
    else:
        disk.read_fails = True
    writer.seal("lost")
    writer.seal("lost too")
    disk.room_bytes, disk.read_fails = None, False
    writer.emit(Beat(2, "y"))
    writer.close()
    events = read_events()
    assert [event.reason for event in events if isinstance(event, Seal)] == ["close"]
    assert sum(event.count for event in events if isinstance(event, Dropped)) == 2
    assert verify_record(path).sound


def test_closing_on_a_full_disk_closes_and_the_file_is_read_as_far_as_it_goes(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents
) -> None:
    disk.room_bytes = path.stat().st_size
    writer.log(1, 0, {"loss": 1.0})
    writer.close()
    assert kinds(read_events()) == "Header"
    assert writer.dropped == 2
    disk.room_bytes = None
    writer.emit(Beat(1, "late"))
    assert kinds(read_events()) == "Header"


def test_an_interrupt_in_the_middle_of_a_write_leaves_whole_frames(
    writer: RecordWriter, disk: Any, path: Path, read_events: ReadEvents
) -> None:
    disk.bytes_a_write = 5

    def interrupt() -> None:
        if disk.num_writes == 3:
            raise KeyboardInterrupt

    disk.before_write = interrupt
    with pytest.raises(KeyboardInterrupt):
        writer.log(1, 0, {"loss": 1.0})
    disk.before_write = None
    writer.log(2, 0, {"loss": 2.0})
    writer.close()
    assert [event.step for event in read_events() if isinstance(event, Points)] == [2]
    assert verify_record(path).sound
