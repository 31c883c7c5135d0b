from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gscalar.base.errors import UserError
from gscalar.importers import kineto_stream
from gscalar.importers.kineto_stream import EventReader, Reading


def decode(text: bytes) -> list[Any]:
    return msgspec.json.decode(text, type=list[Any])


def read(path: Path) -> tuple[list[Any], Reading]:
    reader: EventReader[list[Any]] = EventReader(path, decode)
    return [event for batch in reader.batches() for event in batch], reader.reading


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every file a large one."""
    monkeypatch.setattr(kineto_stream, "_CHUNK", 64)
    monkeypatch.setattr(kineto_stream, "_COMPRESSED", 16)


EVENTS = [
    {"name": "plain", "ts": 1},
    {"name": 'looks like a border },\n {"name": "', "args": {"deep": [{"a": {}}, {"b": [{}, {}]}]}},
    {"name": "ends like the array }]}", "args": {"list": [{"x": 1}]}},
    {"name": 'says "traceEvents": [', "args": {}},
    {"name": "back\\slash and \u00e9", "ts": 2.5},
    {"name": "last"},
]
ABOUT = {"schemaVersion": 1, "note": {"traceEvents": [1, 2]}, "deviceProperties": [{"id": 0}, {"id": 1}]}
AFTER = {"traceName": "x", "pg_config": [{"a": [{}]}, {"b": 2}]}
LAYOUTS = {
    "on one line": {"separators": (",", ":")},
    "indented": {"indent": 2},
    "indented deeply": {"indent": 8},
}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_gzip", [False, True], ids=["plain", "gzip"])
def test_events_are_read_whole_however_they_are_laid_out(tmp_path: Path, layout: str, is_gzip: bool) -> None:
    text = json.dumps({**ABOUT, "traceEvents": EVENTS * 5, **AFTER}, **LAYOUTS[layout]).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text) if is_gzip else text)
    events, reading = read(path)
    assert events == EVENTS * 5
    assert reading.about == {**ABOUT, **AFTER}
    assert (reading.cut, reading.num_mended) == ("", 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.text(st.sampled_from('{}[],:"\\ \nab'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(
    events=st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=3), max_size=12),
    indent=st.sampled_from([None, 0, 3]),
    chunk=st.integers(1, 80),
)
def test_any_objects_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], indent: int | None, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "after": [{}, {}]}, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_stream, "_CHUNK", chunk)
        patch.setattr(kineto_stream, "_COMPRESSED", chunk)
        got, reading = read(path)
    assert got == events
    assert (reading.about, reading.cut) == ({"schemaVersion": 1, "after": [{}, {}]}, "")


@pytest.mark.usefixtures("small_chunks")
def test_of_a_file_that_is_cut_off_anywhere_the_whole_events_are_read(tmp_path: Path) -> None:
    text = json.dumps({**ABOUT, "traceEvents": EVENTS}).encode()
    ends = [text.index(json.dumps(event).encode()) + len(json.dumps(event)) for event in EVENTS]
    begin = text.index(b"[", text.rindex(b'"traceEvents": [{"name"')) + 1
    path = tmp_path / "trace"
    for size in range(begin, len(text) - 1):
        path.write_bytes(text[:size])
        events, reading = read(path)
        want = sum(end <= size for end in ends)
        assert events == EVENTS[:want], size
        is_closed = size > text.rindex(b"]")
        assert bool(reading.cut) != is_closed, size


def test_what_a_cut_gzip_stream_holds_is_read(tmp_path: Path) -> None:
    events = [{"name": f"event {at * 7919 % 10007}"} for at in range(20_000)]
    data = gzip.compress(json.dumps({"traceEvents": events}).encode())
    path = tmp_path / "trace"
    path.write_bytes(data[: len(data) // 2])
    got, reading = read(path)
    assert got == events[: len(got)]
    assert 5000 < len(got) < 20_000
    assert reading.cut == "its gzip stream is cut off"


def test_a_gzip_stream_that_is_damaged_gives_what_was_before(tmp_path: Path) -> None:
    events = [{"name": f"event {at * 7919 % 10007}"} for at in range(20_000)]
    data = bytearray(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    data[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    path = tmp_path / "trace"
    path.write_bytes(data)
    got, reading = read(path)
    assert got == events[: len(got)]
    assert got
    assert "damaged" in reading.cut


def test_text_that_is_damaged_gives_what_was_before_and_ends(tmp_path: Path) -> None:
    events = [{"name": f"event {at}", "args": {"list": [{"x": at}]}} for at in range(40_000)]
    text = bytearray(json.dumps({"traceEvents": events}).encode())
    at = text.index(b"event 30000")
    text[at + 11 : at + 13] = b"::"
    path = tmp_path / "trace"
    path.write_bytes(text)
    got, reading = read(path)
    assert got == events[: len(got)]
    assert 29_900 < len(got) <= 30_000
    assert "damaged" in reading.cut


def test_a_wrong_checksum_at_the_end_loses_nothing(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())
    path = tmp_path / "trace"
    path.write_bytes(data[:-8] + b"\0" * 8)
    events, reading = read(path)
    assert events == EVENTS
    assert not reading.cut  # what stands in the array is all there


def test_a_gzip_file_may_have_several_members_and_padding(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS}).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text[:40]) + gzip.compress(text[40:]) + b"\0" * 100)
    events, reading = read(path)
    assert events == EVENTS
    assert not reading.cut


# what a profiler wrote, and what is read
MENDED = {
    "an infinite bandwidth": (b'{"args": {"GB/s": inf, "x": -nan}}', {"args": {"GB/s": None, "x": None}}),
    "NaN as Python writes it": (b'{"a": NaN, "b": Infinity}', {"a": None, "b": None}),
    "a control character in a name": (b'{"name": "a\x01b"}', {"name": "a b"}),
    "a lone backslash": (b'{"name": "C:\\dir\\\\x \\q"}', {"name": "C:\\dir\\x \\q"}),
    "bytes that are no UTF-8": (b'{"name": "a\xffb"}', {"name": "a\ufffdb"}),
}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("case", MENDED)
def test_what_is_no_json_is_mended_and_counted(tmp_path: Path, case: str) -> None:
    written, want = MENDED[case]
    path = tmp_path / "trace"
    path.write_bytes(b'{"traceEvents": [' + b", ".join([b'{"ok": 1}', written] * 4) + b"]}")
    events, reading = read(path)
    assert events == [{"ok": 1}, want] * 4
    assert reading.num_mended > 0
    assert not reading.cut


def test_a_word_that_is_no_json_may_be_cut_by_a_chunk_s_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b'{"traceEvents": [{"inner": [{"a": 1}, {"b": 2}], "GB/s": infinity}, {"last": 1}]}')
    for chunk in range(8, 80):
        monkeypatch.setattr(kineto_stream, "_COMPRESSED", chunk)
        monkeypatch.setattr(kineto_stream, "_CHUNK", chunk)
        events, reading = read(path)
        assert events == [{"inner": [{"a": 1}, {"b": 2}], "GB/s": None}, {"last": 1}], chunk
        assert not reading.cut


WHOLE = {
    "an array alone": b' [{"a": 1}, {"b": 2}]',
    "a comma too many": b'{"traceEvents": [{"a": 1}, {"b": 2},\n]}',
    "a byte-order mark": b'\xef\xbb\xbf{"traceEvents": [{"a": 1}, {"b": 2}]}',
    "space in odd places": b'\n\n{ "traceEvents"\n:\n[ {"a": 1}\n,\n{"b": 2}\n]\n}\n',
}


@pytest.mark.parametrize("case", WHOLE)
def test_unusual_frames_are_read(tmp_path: Path, case: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(WHOLE[case])
    events, reading = read(path)
    assert events == [{"a": 1}, {"b": 2}]
    assert not reading.cut


def test_no_events_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b'{"traceEvents": [ ], "traceName": "x"}')
    events, reading = read(path)
    assert events == []
    assert reading.about == {"traceName": "x"}


REFUSED = {
    "an empty file": (b"", "trace-damaged", "empty"),
    "an empty gzip file": (gzip.compress(b""), "trace-damaged", "empty"),
    "text": (b"hello", "trace-unknown", "no JSON"),
    "JSON of another kind": (b'{"a": 1}', "trace-unknown", "no traceEvents"),
    "a head that is cut off": (b'{"schemaVersion": 1, "dev', "trace-damaged", "cut off"),
    "gzip that is cut off in its head": (gzip.compress(b'{"traceEvents": [{"a"')[:12], "trace-damaged", "cut off"),
    "gzip of nonsense": (b"\x1f\x8b" + b"nonsense" * 9, "trace-damaged", "damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_holds_no_events_is_refused_by_name(tmp_path: Path, case: str) -> None:
    data, code, why = REFUSED[case]
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(UserError) as raised:
        read(path)
    assert raised.value.code == code
    assert why in raised.value.what
    assert str(path) in str(raised.value)


def test_progress_says_how_much_was_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps({"traceEvents": [{"name": "x" * 1000}] * 3000}))
    told: list[float] = []
    reader: EventReader[list[Any]] = EventReader(path, decode, told.append)
    assert sum(len(batch) for batch in reader.batches()) == 3000
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) > 3


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("filler", [b'{"name":"' + b"x" * 40_000, b" " * 40_000], ids=["a string", "spaces"])
def test_an_event_that_does_not_end_is_given_up_and_what_was_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: bytes
) -> None:
    monkeypatch.setattr(kineto_stream, "_LONGEST_EVENT", 1 << 12)
    scans: list[int] = []
    scan = kineto_stream._scan
    monkeypatch.setattr(kineto_stream, "_scan", lambda text: scans.append(len(text)) or scan(text))
    path = tmp_path / "trace"
    path.write_bytes(b'{"traceEvents":[{"name":"a"},{"name":"b"},' + filler)
    events, reading = read(path)
    assert [event["name"] for event in events] == ["a", "b"]
    assert "longer than" in reading.cut
    assert sum(scans) < 6 * (1 << 12)  # not each of 64 chunks with all before it
