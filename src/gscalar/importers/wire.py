"""Reads messages of Protocol Buffers without their library, as whole columns: the few fields that an importer needs.

A trace holds millions of small messages of one type. Their places are found one by one, since each says how long it
is, and then all of them are decoded together with numpy, a field of each at a time. Fields may come in any order and be
absent (0); groups, gone since 2008, are refused. Encoding: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import Ints

Bytes = npt.NDArray[np.uint8]

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
FIXED32: Final = 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
_MOST_VARINT_BYTES: Final = 10
_SIGN: Final = 1 << 63


class WireError(ValueError):
    """Bytes that are no message: cut off, or something else altogether."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Places of messages in the data, `(num_messages,)` each; `owner` is the message that each lies in."""

    starts: Ints
    ends: Ints
    owner: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, chosen: npt.NDArray[np.generic]) -> Messages:
        """Return those that are chosen, by index or as a mask."""
        return Messages(self.starts[chosen], self.ends[chosen], self.owner[chosen])


def fields(data: bytes | memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, value and end of each field of one message.

    The value of what is delimited is where it begins, and its end where it ends. Raises `WireError`.
    """
    at = start
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"field number 0 at byte {at - 1}")
        if kind == VARINT:
            value, at = _varint(data, at, end)
        elif kind == DELIMITED:
            short = at < end and data[at] < 0x80  # most are; a call for each would take twice the time
            length, value = (data[at], at + 1) if short else _varint(data, at, end)
            at = value + length
        elif kind in _FIXED:
            value, at = at, at + _FIXED[kind]
        else:
            raise WireError(f"wire type {kind} at byte {at - 1}")
        if at > end:
            raise WireError(f"a field that begins before byte {end} ends after it")
        yield number, kind, value, at


def signed(value: int) -> int:
    """Return a varint as the int64 that it stands for."""
    return value - (1 << 64) if value & _SIGN else value


def _varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            break
    raise WireError(f"a number is cut off at byte {at}")


def columns(
    data: Bytes, messages: Messages, numbers: tuple[int, ...], nested: int = 0
) -> tuple[dict[int, Ints], Messages]:
    """Return the whole numbers of these fields, `(num_messages,)` each, and the messages in field `nested`.

    Fixed fields of eight bytes are given as their bits. Of a field that is repeated the last counts. Raises
    `WireError`.
    """
    found = {number: np.zeros(len(messages), np.int64) for number in numbers}
    inner: list[Messages] = []
    live = np.flatnonzero(messages.starts < messages.ends)
    at = messages.starts[live]
    while live.size:
        tags, at = _varints(data, at, messages.ends[live])
        kinds = tags & 7
        after = np.empty_like(at)
        for kind in np.unique(kinds):
            chosen = np.flatnonzero(kinds == kind)
            values, ends = _values(data, int(kind), at[chosen], messages.ends[live[chosen]])
            after[chosen] = ends
            field = tags[chosen] >> 3
            for number, column in found.items():
                of_number = field == number
                column[live[chosen][of_number]] = values[of_number]
            if nested and kind == DELIMITED:
                of_number = field == nested
                inner.append(Messages(values[of_number], ends[of_number], live[chosen][of_number]))
        if np.any(after > messages.ends[live]):
            raise WireError("a field is longer than the message that it is in")
        going = after < messages.ends[live]
        live, at = live[going], after[going]
    return found, _joined(inner)


def _values(data: Bytes, kind: int, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return values of one wire type and where they end; of what is delimited, where it begins."""
    if kind == VARINT:
        return _varints(data, at, ends)
    if kind == DELIMITED:
        lengths, begins = _varints(data, at, ends)
        return begins, begins + lengths
    if kind not in _FIXED:
        raise WireError(f"wire type {kind} at byte {int(at[0]) - 1}")
    if np.any(at + _FIXED[kind] > ends):
        raise WireError("a field is longer than the message that it is in")
    bits = np.zeros(len(at), np.uint64)
    for byte in range(_FIXED[kind]):
        bits |= data[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    return bits.view(np.int64), at + _FIXED[kind]


def _varints(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return a varint at each place, and where it ends."""
    values = np.zeros(len(at), np.uint64)
    at = at.copy()
    going = np.arange(len(at))
    for shift in range(0, 7 * _MOST_VARINT_BYTES, 7):
        if np.any(at[going] >= ends[going]):
            raise WireError("a number is cut off by the end of its message")
        byte = data[at[going]]
        values[going] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
        at[going] += 1
        going = going[byte >= 0x80]
        if not going.size:
            return values.view(np.int64), at
    raise WireError("a number has more than ten bytes")


def _joined(parts: list[Messages]) -> Messages:
    """Return messages of all parts in the order of the data."""
    if not parts:
        return Messages(*(np.empty(0, np.int64) for _ in range(3)))
    starts, ends, owner = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("starts", "ends", "owner")
    )
    order = np.argsort(starts, kind="stable")
    return Messages(starts[order], ends[order], owner[order])
