"""Reading: torn tails, damage anywhere, growing files, and events of newer versions."""

from __future__ import annotations

import io
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gscalar.model.events import Beat, Event, Failure, Names, Note, Points, Step
from gscalar.state.records import reader
from gscalar.state.records.format import HEAD_BYTES, encode_event, encode_frame
from gscalar.state.records.reader import Damage, Frame, Logged, RecordTail, Unknown, read_logged, read_record, scan

INTS = st.integers(0, 2**63)
TEXTS = st.text(max_size=20)
FLOATS = st.floats(allow_nan=False)
EVENTS = st.one_of(
    st.builds(Beat, INTS, TEXTS),
    st.builds(Points, INTS, INTS, INTS, st.binary(max_size=200)),
    st.builds(Names, INTS, st.lists(TEXTS, max_size=4).map(tuple)),
    st.builds(
        Step,
        INTS,
        INTS,
        FLOATS,
        FLOATS,
        FLOATS,
        FLOATS,
        FLOATS,
        own_samples=FLOATS,
        own_tokens=FLOATS,
        own_weight=FLOATS,
    ),
    st.builds(Failure, INTS, INTS, INTS, TEXTS, TEXTS, TEXTS, TEXTS, st.booleans()),
)
RECORDS = st.lists(EVENTS, min_size=1, max_size=12)
# Small windows, so that frames and damages lie across their borders.
CHUNKS = st.sampled_from([1, 2, 7, 16, 64, 1 << 18])
ZEROS = st.just("zeros")
# Where (as a fraction of the file), how many bytes, and what happens to them.
DAMAGES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(1, 60), st.one_of(ZEROS, st.binary(min_size=60, max_size=60))),
    min_size=1,
    max_size=4,
)
SOME = [Beat(1, "init"), Names(1, ("a", "b")), Points(1, 2, 1, bytes(16)), Note(3, "info", "x", "y" * 40), Beat(2, "")]


def build(events: list[Event]) -> tuple[bytes, list[Frame]]:
    """Return a file's bytes and the frames that lie in it."""
    data, frames = b"", []
    for event in events:
        start, data = len(data), data + encode_event(event)
        frames.append(Frame(start, len(data), event))  # type: ignore[arg-type]
    return data, frames


def read(data: bytes, offset: int = 0, chunk: int = 1 << 18) -> list[Frame | Damage | Unknown]:
    with mock.patch.object(reader, "_CHUNK_BYTES", chunk):
        return list(scan(io.BytesIO(data), offset))


def places(items: list[Frame | Damage | Unknown]) -> list[tuple[str, int, int]]:
    return [(type(item).__name__, item.offset, item.end) for item in items]


def expect(before: bytes, after: bytes, frames: list[Frame]) -> list[tuple[str, int, int]]:
    """Say what a reader must find: each frame with a changed byte is damage up to the next whole one."""
    want: list[tuple[str, int, int]] = []
    damaged_from: int | None = None
    for frame in frames:
        if before[frame.offset : frame.end] != after[frame.offset : frame.end]:
            damaged_from = frame.offset if damaged_from is None else damaged_from
            continue
        if damaged_from is not None:
            want.append(("Damage", damaged_from, frame.offset))
            damaged_from = None
        want.append(("Frame", frame.offset, frame.end))
    return want


def damage(data: bytes, damages: list[tuple[float, int, str | bytes]]) -> bytes:
    changed = bytearray(data)
    for where, size, what in damages:
        start = int(where * (len(data) - 1))
        end = min(len(data), start + size)
        changed[start:end] = bytes(end - start) if isinstance(what, str) else what[: end - start]
    return bytes(changed)


@given(RECORDS, CHUNKS)
def test_what_was_written_is_read_in_order_with_its_places(events: list[Event], chunk: int) -> None:
    data, frames = build(events)
    assert read(data, chunk=chunk) == frames


@given(RECORDS, CHUNKS, st.data())
def test_reading_goes_on_from_any_frame(events: list[Event], chunk: int, data: st.DataObject) -> None:
    content, frames = build(events)
    start = data.draw(st.integers(0, len(frames) - 1))
    assert read(content, frames[start].offset, chunk) == frames[start:]


def test_a_file_cut_at_any_byte_yields_its_whole_frames_and_no_damage() -> None:
    data, frames = build(SOME)
    for size in range(len(data) + 1):
        want = [frame for frame in frames if frame.end <= size]
        assert read(data[:size]) == want, size


@given(RECORDS, CHUNKS, st.binary(max_size=40))
def test_a_tail_of_anything_unsound_is_torn_and_no_damage(events: list[Event], chunk: int, tail: bytes) -> None:
    data, frames = build(events)
    assert read(data + tail, chunk=chunk) == frames


@given(RECORDS, DAMAGES, CHUNKS)
def test_damage_in_the_middle_costs_the_frames_it_touches_and_no_other(
    events: list[Event], damages: list[tuple[float, int, str | bytes]], chunk: int
) -> None:
    before, frames = build(events)
    after = damage(before, damages)
    assert places(read(after, chunk=chunk)) == expect(before, after, frames)


def test_a_change_of_any_single_byte_costs_exactly_its_frame() -> None:
    before, frames = build(SOME)
    for place in range(len(before)):
        for flip in (0x01, 0x80, 0xFF):
            after = bytearray(before)
            after[place] ^= flip
            assert places(read(bytes(after))) == expect(before, bytes(after), frames), (place, flip)


@given(RECORDS, CHUNKS, st.data())
def test_bytes_lost_or_inserted_between_frames_are_one_damage(
    events: list[Event], chunk: int, data: st.DataObject
) -> None:
    before, frames = build([*events, Beat(1, "last")])
    cut = data.draw(st.integers(0, len(frames) - 2))
    lost = data.draw(st.integers(1, frames[cut].end - frames[cut].offset - 1))
    inserted = data.draw(st.binary(max_size=30))
    start = frames[cut].offset
    assume(not inserted.endswith(before[start : start + lost]))  # which would put the frame together again
    after = before[:start] + inserted + before[start + lost :]
    shift = len(inserted) - lost
    want = [("Frame", frame.offset, frame.end) for frame in frames[:cut]]
    want.append(("Damage", start, frames[cut].end + shift))
    want += [("Frame", frame.offset + shift, frame.end + shift) for frame in frames[cut + 1 :]]
    assert places(read(after, chunk=chunk)) == want


@pytest.mark.parametrize(
    "filler",
    {
        "zeros": bytes(600_000),
        "ones": b"\xff" * 600_000,
        "heads of frames that are longer than the file": encode_frame(b"\x91\xa1Z" + bytes(5_000_000))[:20] * 2000,
        "payload starts without a frame": b"\x93\xa1B" * 200_000,
    }.values(),
)
def test_damage_larger_than_the_window_is_one_damage(filler: bytes) -> None:
    first, last = encode_event(Beat(1, "first")), encode_event(Beat(2, "last"))
    content = first + filler + last
    end = len(content) - len(last)
    assert places(read(content)) == [
        ("Frame", 0, len(first)),
        ("Damage", len(first), end),
        ("Frame", end, len(content)),
    ]


def test_a_frame_of_many_windows_is_read_also_right_after_damage() -> None:
    big = encode_event(Note(1, "info", "big", "x" * 3_000_000))
    small = encode_event(Beat(1, "small"))
    content = small + b"\x01" * 11 + big + small
    assert places(read(content)) == [
        ("Frame", 0, len(small)),
        ("Damage", len(small), len(small) + 11),
        ("Frame", len(small) + 11, len(content) - len(small)),
        ("Frame", len(content) - len(small), len(content)),
    ]


@pytest.mark.parametrize("claimed", [20, 1000])
@pytest.mark.parametrize("chunk", [1, 7, 20, 32])
def test_what_looks_like_a_frame_at_the_border_of_a_window_hides_none_behind_it(claimed: int, chunk: int) -> None:
    # It claims more bytes than the window has left, so that the window moves on to it.
    claim = claimed.to_bytes(4, "little") + b"crc?" + b"\x93\xa1"
    data, frames = build([Beat(number, "y") for number in range(80)])
    for before in range(1, 2 * chunk + 30):
        damaged = b"\x01" * before + claim
        want = [("Damage", 0, len(damaged))]
        want += [("Frame", frame.offset + len(damaged), frame.end + len(damaged)) for frame in frames]
        assert places(read(damaged + data, chunk=chunk)) == want, before


class ChangingFile(io.BytesIO):
    """Ends with half a frame, which another frame has replaced by the next read."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self.parts = list(parts)

    def read(self, size: int | None = -1) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def test_half_a_frame_is_not_put_together_with_what_was_written_in_its_place() -> None:
    whole, last = encode_event(Beat(1, "whole")), encode_event(Beat(4, "last"))
    torn, other = encode_event(Note(2, "info", "torn", "t" * 50)), encode_event(Note(3, "info", "other", "o" * 90))
    file = ChangingFile(whole + torn[:30], other[30:] + last)
    assert places(list(scan(file, 0))) == [("Frame", 0, len(whole))]


@pytest.mark.parametrize(
    ("unsound", "want"),
    {
        "zeros": (bytes(24), "no frame has a length of 0 bytes"),
        "a length beyond the limit": (b"\x00\x00\x00\x01" + bytes(20), "no frame has a length of 16777216 bytes"),
        "a length beyond the end": (b"\x00\x00\x10\x00" + bytes(20), "the file ends inside a frame"),
        "a changed payload": (encode_event(Beat(1, "x"))[:-1] + b"y", "the checksum does not fit"),
        "a checksum that fits over no event": (encode_frame(b"\x07\x07\x07"), "the payload is no event"),
    }.values(),
)
def test_a_damage_says_why(unsound: bytes, want: str) -> None:
    content = encode_event(Beat(1, "x")) + unsound + encode_event(Beat(2, "y"))
    [damage] = [item for item in read(content) if isinstance(item, Damage)]
    assert damage.reason == want


def test_a_whole_frame_inside_the_payload_of_a_sound_one_is_not_read() -> None:
    inner = encode_event(Beat(1, "inner"))
    data, frames = build([Points(1, 2, 3, inner + inner), Beat(2, "x")])
    assert read(data) == frames


@pytest.fixture
def with_unknown(path: Path) -> Path:
    newer = [encode_frame(msgspec.msgpack.encode(payload)) for payload in (["ZZ", 1], ["ZY", *range(20)])]
    path.write_bytes(encode_event(Beat(1, "a")) + newer[0] + b"damage" + newer[1] + encode_event(Beat(2, "b")))
    return path


def test_frames_of_a_newer_version_are_skipped_and_counted_and_are_no_damage(with_unknown: Path) -> None:
    tail = RecordTail(with_unknown)
    [first, damaged, last] = tail.poll()
    assert isinstance(first, Frame)
    assert isinstance(damaged, Damage)
    assert damaged.end - damaged.offset == len(b"damage")
    assert isinstance(last, Frame)
    assert tail.unknown == 2
    assert list(read_record(with_unknown)) == [first, damaged, last]


def test_a_tail_that_ends_with_unknown_frames_does_not_count_them_again(path: Path) -> None:
    path.write_bytes(encode_frame(msgspec.msgpack.encode(["ZZ", 1])))
    tail = RecordTail(path)
    assert (tail.poll(), tail.poll(), tail.unknown) == ([], [], 1)


@given(RECORDS, DAMAGES, st.lists(st.integers(1, 80), max_size=20), st.sampled_from([None, 1, 3]))
@example(SOME, [], [1] * 80, None)  # type: ignore[arg-type]
def test_a_file_that_grows_is_read_as_if_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Event],
    damages: list[tuple[float, int, str | bytes]],
    growth: list[int],
    max_frames: int | None,
) -> None:
    before, _ = build(events)
    content = damage(before, damages)
    path = tmp_path_factory.mktemp("tail") / "growing.rec"
    tail, found = RecordTail(path), []
    for num_bytes in [*growth, len(content)]:
        with path.open("ab") as file:
            file.write(content[file.tell() : file.tell() + num_bytes])
        found += tail.poll(max_frames)
    while more := tail.poll(max_frames):
        found += more
    want = read(content)
    assert places(found) == places(want)
    assert tail.offset == (want[-1].end if want else 0)


def test_a_missing_file_is_an_empty_one_until_it_appears(path: Path) -> None:
    tail = RecordTail(path)
    assert tail.poll() == []
    path.write_bytes(encode_event(Beat(1, "x")))
    assert [item.end for item in tail.poll()] == [tail.offset]


def test_a_file_shorter_than_what_was_read_yields_nothing(path: Path) -> None:
    data, frames = build(SOME)
    path.write_bytes(data)
    tail = RecordTail(path)
    assert tail.poll() == frames
    path.write_bytes(data[: frames[1].end])
    assert tail.poll() == []
    assert tail.offset == len(data)


def test_a_torn_frame_that_was_cut_and_written_anew_is_read(path: Path) -> None:
    data, frames = build(SOME)
    path.write_bytes(data + encode_event(Beat(9, "torn"))[:-3])
    tail = RecordTail(path)
    assert tail.poll() == frames
    path.write_bytes(data + encode_event(Beat(10, "anew")))
    assert [item.event for item in tail.poll() if isinstance(item, Frame)] == [Beat(10, "anew")]


def test_points_are_joined_with_the_names_before_them(path: Path) -> None:
    data, _ = build([Names(1, ("a", "b")), Points(3, 4, 1, bytes(16)), Names(1, ("c",)), Points(5, 6, 1, bytes(8))])
    path.write_bytes(data)
    assert list(read_logged(path)) == [Logged(3, 4, {"a": 0.0, "b": 0.0}), Logged(5, 6, {"c": 0.0})]


@pytest.mark.parametrize(
    "points",
    {
        "an id that was never named": Points(1, 2, 9, bytes(16)),
        "fewer values than names": Points(1, 2, 1, bytes(8)),
        "half a value": Points(1, 2, 1, bytes(15)),
    }.values(),
)
def test_points_whose_names_are_not_known_have_no_values(path: Path, points: Points) -> None:
    path.write_bytes(build([Names(1, ("a", "b"))])[0])
    tail = RecordTail(path)
    tail.poll()
    assert tail.values(points) is None
    assert tail.values(Points(1, 2, 1, bytes(16))) == {"a": 0.0, "b": 0.0}


def test_a_tail_goes_on_in_another_process_from_its_offset_and_names(path: Path) -> None:
    data, frames = build([Names(1, ("a",)), Points(3, 4, 1, bytes(8))])
    path.write_bytes(data)
    first = RecordTail(path)
    first.poll(max_frames=1)
    second = RecordTail(path, offset=first.offset, names=dict(first.names))
    [frame] = second.poll()
    assert frame == frames[1]
    assert second.values(frames[1].event) == {"a": 0.0}  # type: ignore[arg-type]


def test_the_least_frame_is_as_small_as_the_format_says() -> None:
    assert len(encode_frame(msgspec.msgpack.encode(["Z"]))) == HEAD_BYTES + 3
    assert places(read(encode_frame(msgspec.msgpack.encode(["Z"])))) == [("Unknown", 0, 11)]
