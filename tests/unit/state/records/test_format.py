"""Frames as bytes: what is encoded is decoded, and what cannot be stored exactly is stored near."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import numpy as np
import pytest

from gscalar.model.events import Adopted, Beat, Note, Points, Step
from gscalar.state.records.format import (
    HEAD_BYTES,
    MAX_PAYLOAD_BYTES,
    decode_event,
    encode_event,
    encode_frame,
    find_payload,
    masked_crc,
)


def stored(event: Any) -> Any:
    return decode_event(encode_event(event)[HEAD_BYTES:])


def test_a_frame_is_length_masked_crc_and_payload_in_little_endian() -> None:
    frame = encode_event(Beat(7, "init"))
    payload = msgspec.msgpack.encode(["B", 7, "init"])
    crc = google_crc32c.value(payload)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
    assert frame == struct.pack("<II", len(payload), masked) + payload


def test_the_checksum_is_masked_as_leveldb_masks_the_crc_of_known_bytes() -> None:
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 0x8A9136AA.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_payload_of_the_largest_size_is_framed_and_one_byte_more_is_refused() -> None:
    assert len(encode_frame(bytes(MAX_PAYLOAD_BYTES))) == MAX_PAYLOAD_BYTES + HEAD_BYTES
    with pytest.raises(ValueError, match="16777216 bytes is larger"):
        encode_frame(bytes(MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize(
    ("given", "want"),
    {
        "a lone surrogate, as in the name of a file that is no UTF-8": ("a\udc80b", "a\\udc80b"),
        "an integer of more than 64 bits": (2**70, str(2**70)),
        "a NumPy integer": (np.int64(-3), -3),
        "a NumPy float": (np.float32(0.5), 0.5),
        "a NumPy boolean": (np.bool_(True), True),
        "an array": (np.zeros(2), "[0. 0.]"),
        "a NumPy number wider than float64": (np.longdouble(0.5), 0.5),
        "a path": (Path("a/b"), "a/b"),
        "a fraction": (Fraction(1, 4), 0.25),
        "a surrogate deep inside, beside a NumPy number": ({"a": ["\udcff", np.int8(1)]}, {"a": ["\\udcff", 1]}),
        "bytes beside a surrogate": ([b"\x00", "\udcff"], [b"\x00", "\\udcff"]),
    }.values(),
)
def test_what_msgpack_cannot_hold_is_stored_as_near_as_can_be(given: Any, want: Any) -> None:
    assert stored(Adopted(1, {"fact": given})) == Adopted(1, {"fact": want})


def test_a_step_given_as_a_numpy_integer_is_stored_as_an_integer() -> None:
    assert stored(Points(np.int64(3), 1, 1, b"")) == Points(3, 1, 1, b"")  # type: ignore[arg-type]


def test_non_finite_numbers_in_an_event_are_kept() -> None:
    step = stored(Step(1, 2, 0.5, 1.0, 1.0, math.inf, math.nan))
    assert step.lr == math.inf
    assert math.isnan(step.loss)


def test_a_step_of_an_older_version_does_not_know_its_own_part() -> None:
    step = decode_event(msgspec.msgpack.encode(["S", 1, 2, 0.5, 8.0, 64.0, 0.1, 2.0, 0, 9, b"", b""]))
    assert isinstance(step, Step)
    assert all(math.isnan(own) for own in (step.own_samples, step.own_tokens, step.own_weight))


@pytest.mark.parametrize(
    ("payload", "want"),
    {
        "an unknown tag": (["ZZ", 1], None),
        "a known tag with a field of another type": (["B", "then", "init"], None),
        "a known tag with a field too few": (["B", 1], None),
        "a known tag with a new field at the end": (["B", 1, "init", {"new": 1}], Beat(1, "init")),
        "a field with a default left out": (["S", 1, 2, 0.5, 1.0, 1.0, 0.1, 2.0], Step(1, 2, 0.5, 1.0, 1.0, 0.1, 2.0)),
        "more than 15 fields": (["ZZ", *range(20)], None),
    }.values(),
)
def test_events_of_a_newer_version_are_understood_or_known_to_be_unknown(payload: Any, want: Any) -> None:
    encoded = msgspec.msgpack.encode(payload)
    assert decode_event(encoded) == want
    assert next(iter(find_payload(b"." + encoded, 0))) == 1


@pytest.mark.parametrize("payload", [b"\xc1", b"\x93\xa1B\x01", b"\x07", b"\x80", b"\x92\x01\x02", b"\x90"])
def test_bytes_that_are_no_event_of_any_version_are_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event(payload)


def test_every_event_starts_as_the_search_after_damage_expects() -> None:
    for event in (Beat(1, "x"), Note(1, "info", "c", "t" * 300), Step(1, 2, 0.5, 1.0, 1.0, 0.1, 2.0)):
        frame = encode_event(event)
        assert HEAD_BYTES in find_payload(frame, HEAD_BYTES)
