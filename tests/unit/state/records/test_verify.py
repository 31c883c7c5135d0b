"""Checking: damage, torn tails and seals, against changed bytes and against forged frames."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.model.events import Beat, Seal
from gscalar.state.records.format import encode_event, encode_frame
from gscalar.state.records.reader import Damage, Frame, read_record
from gscalar.state.records.verify import verify_record
from gscalar.state.records.writer import RecordWriter


def fill(writer: RecordWriter) -> None:
    """Write a record with three seals: after two logs, after two more, and at the end."""
    for seal in range(2):
        for step in range(2):
            writer.log(2 * seal + step, 7, {"loss": 0.5, "lr": 0.1})
        writer.seal("checkpoint")
    writer.emit(Beat(9, "last"))
    writer.close()


@pytest.fixture
def sealed(writer: RecordWriter, path: Path) -> Path:
    fill(writer)
    return path


def frames_of(path: Path) -> list[Frame]:
    return [item for item in read_record(path) if isinstance(item, Frame)]


def test_a_closed_record_is_sound_and_sealed_up_to_its_last_frame(sealed: Path) -> None:
    report = verify_record(sealed)
    assert report.sound
    assert (report.frames, report.unknown, report.seals, report.damages) == (11, 0, 3, ())
    assert (report.torn_bytes, report.first_broken_seal) == (0, None)
    assert report.num_bytes == sealed.stat().st_size
    assert report.sealed_bytes == frames_of(sealed)[-1].offset


def test_each_seal_is_the_digest_of_the_seal_before_and_the_bytes_from_its_frame_on(sealed: Path) -> None:
    content = sealed.read_bytes()
    digest, start = bytes(32), 0
    for frame in frames_of(sealed):
        if isinstance(frame.event, Seal):
            want = hashlib.sha256(digest + content[start : frame.offset]).digest()
            assert frame.event.sha256 == want
            digest, start = want, frame.offset


def test_a_change_of_any_single_byte_is_detected(sealed: Path) -> None:
    content = sealed.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        sealed.write_bytes(changed)
        report = verify_record(sealed)
        assert not report.sound or report.torn_bytes > 0, place
        assert report.sealed_bytes <= place, place


def forge(content: bytes, frames: list[Frame], which: int, how: str) -> bytes:
    """Change the file as somebody does who writes sound frames."""
    pieces = [content[frame.offset : frame.end] for frame in frames]
    if how == "changed":
        fields = msgspec.msgpack.decode(pieces[which][8:])
        # The time stands second or third in every event that the test writes; 1 is in none.
        place = next(index for index, field in enumerate(fields) if index and isinstance(field, int))
        fields[place] += 1
        pieces[which] = encode_frame(msgspec.msgpack.encode(fields))
    elif how == "removed":
        del pieces[which]
    elif how == "repeated":
        pieces.insert(which, pieces[which])
    else:
        pieces.insert(which, encode_event(Beat(1, "forged")))
    return b"".join(pieces)


@pytest.mark.parametrize("how", ["changed", "removed", "repeated", "inserted"])
def test_a_sound_frame_that_was_forged_breaks_the_next_seal(sealed: Path, how: str) -> None:
    content, frames = sealed.read_bytes(), frames_of(sealed)
    for which in range(len(frames) - 1):
        sealed.write_bytes(forge(content, frames, which, how))
        report = verify_record(sealed)
        assert report.first_broken_seal is not None, (which, frames[which])
        assert not report.sound
        assert report.sealed_bytes <= frames[which].offset


def test_seals_after_a_broken_one_are_judged_by_themselves(sealed: Path) -> None:
    content, frames = sealed.read_bytes(), frames_of(sealed)
    # The second frame, so that only the first seal covers it.
    sealed.write_bytes(forge(content, frames, 1, "changed"))
    report = verify_record(sealed)
    first_seal = next(frame for frame in frames_of(sealed) if isinstance(frame.event, Seal))
    assert (report.seals, report.first_broken_seal, report.sealed_bytes) == (3, first_seal.offset, 0)


def test_damage_is_reported_with_its_range_and_a_torn_tail_with_its_size(sealed: Path) -> None:
    content, frames = bytearray(sealed.read_bytes()), frames_of(sealed)
    hit = frames[3]
    content[hit.offset + 9] ^= 0xFF
    sealed.write_bytes(bytes(content) + b"torn")
    report = verify_record(sealed)
    assert report.damages == (Damage(hit.offset, hit.end, "the checksum does not fit"),)
    assert report.torn_bytes == 4
    assert report.frames == len(frames) - 1


@given(st.integers(0, 10_000))
def test_a_file_cut_at_any_byte_is_sound_up_to_its_torn_tail(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.rec"
    path.write_bytes(b"".join(encode_event(Beat(number, "x")) for number in range(5))[:cut])
    report = verify_record(path)
    whole = len(encode_event(Beat(0, "x")))
    size = path.stat().st_size
    assert (report.sound, report.frames, report.torn_bytes) == (True, size // whole, size % whole)
    assert report.sealed_bytes == 0


def test_frames_of_a_newer_version_are_counted_and_sealed_like_others(
    path: Path, open_writer: Callable[[], RecordWriter]
) -> None:
    path.write_bytes(encode_frame(msgspec.msgpack.encode(["ZZ", "new"])))
    open_writer().close()
    report = verify_record(path)
    assert (report.sound, report.unknown, report.frames, report.seals) == (True, 1, 2, 1)
    assert report.sealed_bytes == frames_of(path)[-1].offset


def test_a_missing_file_is_an_error_and_not_a_sound_record(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify_record(path)
