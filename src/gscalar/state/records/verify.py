"""Checking a record file: every frame's checksum, and the chain of seals over all bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gscalar.model.events import Seal
from gscalar.state.records.format import FIRST_DIGEST, begin_digest
from gscalar.state.records.reader import Damage, Unknown, scan

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordReport:
    """What a check of one file found. Offsets are bytes from the file's start."""

    num_bytes: int
    frames: int  # sound and understood, seals included
    unknown: int  # sound, of a newer version
    damages: tuple[Damage, ...]
    torn_bytes: int  # after the last sound frame; normal where the writer was killed
    seals: int
    first_broken_seal: int | None  # offset of the first seal whose digest is not that of the bytes before it
    sealed_bytes: int  # the bytes before here are covered by seals that all fit

    @property
    def sound(self) -> bool:
        """True where nothing is damaged and no seal is broken."""
        return not self.damages and self.first_broken_seal is None


def verify_record(path: Path) -> RecordReport:
    """Return what a full check of the file finds.

    Raises:
        OSError: as the system says; also where the file is missing.
    """
    frames = unknown = seals = sealed_bytes = end = 0
    damages: list[Damage] = []
    first_broken_seal: int | None = None
    digest, start = FIRST_DIGEST, 0
    with path.open("rb") as file, path.open("rb") as again:
        size = file.seek(0, os.SEEK_END)
        for item in scan(file, 0):
            end = item.end
            if isinstance(item, Damage):
                damages.append(item)
                continue
            if isinstance(item, Unknown):
                unknown += 1
                continue
            frames += 1
            if isinstance(item.event, Seal):
                seals += 1
                if _seal_of(digest, again, start, item.offset) == item.event.sha256:
                    sealed_bytes = item.offset if first_broken_seal is None else sealed_bytes
                elif first_broken_seal is None:
                    first_broken_seal = item.offset
                # Go on with what is stored, so that the seals after a broken one are judged by themselves.
                digest, start = item.event.sha256, item.offset
    torn_bytes = max(0, size - end)  # a file that is still written has grown meanwhile
    return RecordReport(
        num_bytes=end + torn_bytes,
        frames=frames,
        unknown=unknown,
        damages=tuple(damages),
        torn_bytes=torn_bytes,
        seals=seals,
        first_broken_seal=first_broken_seal,
        sealed_bytes=sealed_bytes,
    )


def _seal_of(previous: bytes, file: BinaryIO, start: int, end: int) -> bytes:
    """Return the digest that a seal at `end` must have."""
    digest = begin_digest(previous)
    file.seek(start)
    while start < end and (part := file.read(min(_CHUNK_BYTES, end - start))):
        digest.update(part)
        start += len(part)
    return digest.digest()
