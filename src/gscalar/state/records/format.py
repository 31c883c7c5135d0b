"""The bytes of a record file: frames, checksums, the chain of seals. No I/O; docs/record.md is the manual.

    file    = frame*
    frame   = length (u32) | masked CRC-32C of the payload (u32) | payload      little-endian
    payload = msgpack array, the event's tag first                              1 to 2^24 - 1 bytes
    seal_n  = SHA-256(seal_(n-1) || bytes from the start of frame seal_(n-1) to the start of frame seal_n)

seal_0 is 32 zero bytes and its frame starts at 0. A seal thus covers every byte before its frame, the
seal before it included. The checksum is masked as LevelDB masks it (`doc/log_format.md`, `util/crc32c.h`):
a CRC over bytes that hold their own CRC is a constant, so a stored plain CRC would be easy to mistake.

Bytes are sound at an offset if the length is plausible, the checksum fits and the payload is an array
that starts with a tag. A zero-filled region has length 0 and is never sound. After damage a reader
tries every later offset; `find_payload` narrows them to where an array with a tag starts.
Limit: a payload that holds a whole frame as bytes, and whose own head is damaged, yields that inner frame.
No event holds bytes from outside, and the text in them cannot hold a checksum, so this needs intent.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import msgspec

from gscalar.model.events import AnyEvent, Event

if TYPE_CHECKING:
    from hashlib import _Hash

HEAD: Final = struct.Struct("<II")
HEAD_BYTES: Final = HEAD.size
# The smallest payload is an array of a one-letter tag. The largest keeps the length's high byte zero,
# which makes a plausible length rare in damaged bytes; what is bigger belongs into a file of its own.
MIN_PAYLOAD_BYTES: Final = 3
MAX_PAYLOAD_BYTES: Final = 2**24 - 1
FIRST_DIGEST: Final = bytes(32)

_MASK_DELTA: Final = 0xA282EAD8
# A msgpack array of 1 to 15 elements, or of 16 to 255, whose first is a text of 1 to 31 bytes.
_PAYLOAD_START: Final = re.compile(rb"[\x91-\x9f\xdc](?=[\xa1-\xbf]|\x00[\x10-\xff][\xa1-\xbf])")
PAYLOAD_START_BYTES: Final = 4
_INT_RANGE: Final = range(-(2**63), 2**64)

_decoder: Final = msgspec.msgpack.Decoder(AnyEvent)
_any_decoder: Final = msgspec.msgpack.Decoder()


def masked_crc(payload: bytes) -> int:
    """Return the checksum as a frame carries it."""
    crc: int = google_crc32c.value(payload)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def encode_frame(payload: bytes) -> bytes:
    """Return the frame of a payload.

    Raises:
        ValueError: the payload is larger than a frame may be.
    """
    length = len(payload)
    if length > MAX_PAYLOAD_BYTES:
        raise ValueError(f"an event of {length} bytes is larger than {MAX_PAYLOAD_BYTES} bytes")
    return HEAD.pack(length, masked_crc(payload)) + payload


def encode_event(event: Event) -> bytes:
    """Return the frame of an event; text and numbers that msgpack cannot hold are written as near as can be.

    Raises:
        ValueError, TypeError, RuntimeError: nothing near can be written (too large, nested without end).
    """
    try:
        payload = _encoder.encode(event)
    except (UnicodeEncodeError, OverflowError):
        payload = _encoder.encode(_storable(msgspec.to_builtins(event, builtin_types=(bytes,), enc_hook=_plain)))
    return encode_frame(payload)


def decode_event(payload: bytes) -> AnyEvent | None:
    """Return the event, or None where it is of a kind that this version does not understand.

    Raises:
        msgspec.DecodeError: the payload is no event of any version.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.ValidationError:
        fields = _any_decoder.decode(payload)
        if isinstance(fields, list) and fields and isinstance(fields[0], str):
            return None
        raise


def find_payload(data: bytes, start: int) -> Iterable[int]:
    """Return the places from `start` on where a payload may begin."""
    return (match.start() for match in _PAYLOAD_START.finditer(data, start))


def begin_digest(previous: bytes) -> _Hash:
    """Return the running digest of the next seal; it takes the bytes from the start of the seal before on."""
    return hashlib.sha256(previous)


def _plain(value: Any) -> Any:
    """Return what stands for a value that msgpack has no type for, such as a NumPy scalar or a path."""
    try:
        if hasattr(value, "item"):  # scalars of NumPy and of tensor libraries
            value = value.item()
        if isinstance(value, bool):
            return value
        if hasattr(value, "__index__"):
            return int(value)
        if hasattr(value, "__float__"):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # an array of more than one element
        pass
    return str(value)


def _storable(value: Any) -> Any:
    """Return the value with lone surrogates escaped and integers beyond 64 bits as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        return value if value in _INT_RANGE else str(value)
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
