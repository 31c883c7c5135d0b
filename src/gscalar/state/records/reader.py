"""Reading record files: whole, from an offset, or as they grow.

A file ends normally with a torn frame (the writer was killed in a write, the machine lost power): what
follows the last sound frame is no damage and is not read. Unsound bytes that a sound frame follows are
`Damage`, from the end of the frame before to the start of the next. Sound frames of a kind
that this version does not know were written by a newer one: they are skipped and counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from gscalar.model.events import AnyEvent, Names, Points
from gscalar.state.records.format import (
    HEAD,
    HEAD_BYTES,
    MAX_PAYLOAD_BYTES,
    MIN_PAYLOAD_BYTES,
    PAYLOAD_START_BYTES,
    decode_event,
    find_payload,
    masked_crc,
)

_CHUNK_BYTES = 1 << 18


# Structs and not dataclasses: six times cheaper to make, and one is made for every frame.
class Frame(msgspec.Struct, frozen=True):
    """A sound frame and where it lies: the bytes [offset, end)."""

    offset: int
    end: int
    event: AnyEvent


class Damage(msgspec.Struct, frozen=True):
    """The bytes [offset, end) are no sound frame, and a sound frame starts at `end`."""

    offset: int
    end: int
    reason: str


class Unknown(msgspec.Struct, frozen=True):
    """A sound frame whose event this version does not understand."""

    offset: int
    end: int


class Logged(msgspec.Struct, frozen=True):
    """One `log` call: `Points` joined with their `Names`."""

    step: int
    time_ns: int
    values: dict[str, float]


def scan(file: BinaryIO, offset: int) -> Iterator[Frame | Damage | Unknown]:
    """Yield what the file holds from `offset` (a frame's start) on, in order, up to the torn tail."""
    window = _Window(file, offset)
    position = offset
    while True:
        found = window.read_frame(position)
        if isinstance(found, str):
            start = window.find_frame(position + 1)
            if start is None:
                return
            yield Damage(position, start, found)
            position = start
        else:
            yield found
            position = found.end


def read_record(path: Path, offset: int = 0) -> Iterator[Frame | Damage]:
    """Yield the frames and damages of a file from `offset` (a frame's start) on, up to the torn tail.

    Raises:
        OSError: as the system says; also where the file is missing.
    """
    with path.open("rb") as file:
        for item in scan(file, offset):
            if not isinstance(item, Unknown):
                yield item


def read_logged(path: Path) -> Iterator[Logged]:
    """Yield each `log` call of a file; those whose names are lost to damage are left out."""
    names: dict[int, tuple[str, ...]] = {}
    for item in read_record(path):
        event = item.event if isinstance(item, Frame) else None
        if isinstance(event, Names):
            names[event.names_id] = event.names
        elif isinstance(event, Points) and (values := join_names(event, names)) is not None:
            yield Logged(event.step, event.time_ns, values)


def join_names(points: Points, names: Mapping[int, tuple[str, ...]]) -> dict[str, float] | None:
    """Return the values by name, or None where the names are not known or do not fit."""
    keys = names.get(points.names_id)
    if keys is None or len(points.values) != 8 * len(keys):
        return None
    return dict(zip(keys, struct.unpack(f"<{len(keys)}d", points.values), strict=True))


class RecordTail:
    """Follows one file that may still grow, or not exist yet. Holds no descriptor between polls.

    `offset` and `names` are all that is needed to go on in another process; `unknown` counts the
    frames of a newer version that were passed over.
    """

    def __init__(self, path: Path, *, offset: int = 0, names: dict[int, tuple[str, ...]] | None = None) -> None:
        self.path = path
        self.offset = offset
        self.names: dict[int, tuple[str, ...]] = {} if names is None else names
        self.unknown = 0

    def poll(self, max_frames: int | None = None) -> list[Frame | Damage]:
        """Return what has become readable since, at most `max_frames` frames and damages.

        What is unsound at the end may be a frame that is being written: it is looked at again next time,
        and is reported as damage only once a sound frame follows.
        """
        found: list[Frame | Damage] = []
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return found
        with file:
            for item in scan(file, self.offset):
                self.offset = item.end
                if isinstance(item, Unknown):
                    self.unknown += 1
                    continue
                if isinstance(item, Frame) and isinstance(item.event, Names):
                    self.names[item.event.names_id] = item.event.names
                found.append(item)
                if max_frames is not None and len(found) >= max_frames:
                    break
        return found

    def values(self, points: Points) -> dict[str, float] | None:
        """Return the values by name, or None where the names were lost to damage."""
        return join_names(points, self.names)


class _Window:
    """The part of a file that is being looked at: `data` are the bytes from `base` on.

    The first read that comes back short is the end: a later one could pair bytes of a half-written
    frame with those of the frame that replaced it.
    """

    def __init__(self, file: BinaryIO, offset: int) -> None:
        file.seek(offset)
        self._file = file
        self._base = offset
        self._data = b""
        self._ended = False

    def read_frame(self, position: int) -> Frame | Unknown | str:
        """Return the sound frame that starts at `position`, or why there is none."""
        start = position - self._base
        if start + HEAD_BYTES > len(self._data):
            start = self._load(position, HEAD_BYTES)
            if start + HEAD_BYTES > len(self._data):
                return "the file ends inside the head of a frame"
        length, crc = HEAD.unpack_from(self._data, start)
        if not MIN_PAYLOAD_BYTES <= length <= MAX_PAYLOAD_BYTES:
            return f"no frame has a length of {length} bytes"
        size = HEAD_BYTES + length
        if start + size > len(self._data):
            start = self._load(position, size)
            if start + size > len(self._data):
                return "the file ends inside a frame"
        payload = self._data[start + HEAD_BYTES : start + size]
        if masked_crc(payload) != crc:
            return "the checksum does not fit"
        try:
            event = decode_event(payload)
        except msgspec.DecodeError:
            return "the payload is no event"
        return Unknown(position, position + size) if event is None else Frame(position, position + size, event)

    def find_frame(self, position: int) -> int | None:
        """Return the first offset from `position` on where a sound frame starts, or None."""
        while True:
            # More than a head, so that every round moves on.
            start = self._load(position, _CHUNK_BYTES + HEAD_BYTES + PAYLOAD_START_BYTES)
            # Reading a candidate may move the window, never past a later candidate.
            base, data, ended = self._base, self._data, self._ended
            decided = len(data) if ended else len(data) - PAYLOAD_START_BYTES + 1
            for place in find_payload(data, start + HEAD_BYTES):
                if place >= decided:
                    break
                candidate = base + place - HEAD_BYTES
                if not isinstance(self.read_frame(candidate), str):
                    return candidate
            if ended:
                return None
            position = base + decided - HEAD_BYTES

    def _load(self, position: int, num_bytes: int) -> int:
        """Read on until the bytes [position, +num_bytes) are there or the file ends; return where they start.

        What lies before `position` is forgotten when more is read.
        """
        missing = position + num_bytes - self._base - len(self._data)
        if missing > 0 and not self._ended:
            wanted = max(missing, _CHUNK_BYTES)
            more = self._file.read(wanted)
            self._ended = len(more) < wanted
            self._data = self._data[position - self._base :] + more
            self._base = position
        return position - self._base
