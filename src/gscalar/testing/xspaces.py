"""Builds profiles of TensorFlow and JAX (XSpace): the little of Protocol Buffers that tests of their reader need."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def raw_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varint(number: int, value: int) -> bytes:
    return raw_varint(number << 3) + raw_varint(value)


def fixed64(number: int, value: float) -> bytes:
    return raw_varint(number << 3 | 1) + struct.pack("<d", value)


def delimited(number: int, value: bytes) -> bytes:
    return raw_varint(number << 3 | 2) + raw_varint(len(value)) + value


message = delimited

STEP_NUM, ROOT = 1, 2  # numbers of stats in the planes below


def event(name: int, offset_ps: int, duration_ps: int, *, step_num: int | None = None) -> bytes:
    """Return an XEvent; `name` is a number of the plane's table."""
    stats = b""
    if step_num is not None:
        stats = message(4, varint(1, ROOT) + varint(4, 1)) + message(4, varint(1, STEP_NUM) + varint(4, step_num))
    return varint(1, name) + varint(2, offset_ps) + varint(3, duration_ps) + stats


def line(name: str, events: Sequence[bytes], *, timestamp_ns: int = 0) -> bytes:
    """Return an XLine."""
    return delimited(2, name.encode()) + varint(3, timestamp_ns) + b"".join(message(4, each) for each in events)


def plane(name: str, lines: Sequence[bytes], names: Sequence[str]) -> bytes:
    """Return an XPlane, whose events are named by their place in `names`, from 1."""
    tables = b"".join(
        message(4, varint(1, at) + message(2, varint(1, at) + delimited(2, each.encode())))
        for at, each in enumerate(names, start=1)
    )
    stats = b"".join(
        message(5, varint(1, at) + message(2, varint(1, at) + delimited(2, each.encode())))
        for at, each in ((STEP_NUM, "step_num"), (ROOT, "_r"))
    )
    return varint(1, 1) + delimited(2, name.encode()) + b"".join(message(3, each) for each in lines) + tables + stats


def space(planes: Sequence[bytes], hostname: str = "host-a") -> bytes:
    """Return an XSpace."""
    return b"".join(message(1, each) for each in planes) + delimited(4, hostname.encode())
