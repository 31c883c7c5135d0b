"""The events of a Chrome trace, batch by batch, whatever the file's size: JSON, plain or gzip, read once.

A trace of a gigabyte is one JSON array in one JSON object. It is cut into runs of whole events, and each run is decoded
at once. A cut is right if what is before it decodes as an array: text that stops inside an event, an inner array or a
string never does. So the last places that look like a border between two events are tried, and nothing is parsed twice
but where one of them is deceptive.

What profilers write is not always JSON: infinite bandwidths, control characters and lone backslashes in names are
mended and counted. A file that ends too early gives the events that are whole.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from gscalar.base.errors import UserError

Batch = TypeVar("Batch")
Progress = Callable[[float], None]  # given the share of the file that was read

_CHUNK: Final = 1 << 19
_COMPRESSED: Final = 1 << 16
_PIECE: Final = 512
_MOST_HEADER: Final = 1 << 26  # a file that has no events in so many bytes is none of ours
_BORDERS_TRIED: Final = 8
_LONGEST_EVENT: Final = 1 << 25
_LONGEST_WORD: Final = 16
_GZIP: Final = b"\x1f\x8b"
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_PLACE: Final = re.compile(r"malformed: (.*) \(byte (\d+)\)")
_SCANNER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SPACE: Final = b" \t\r\n"
_NOT_FINITE: Final = re.compile(rb"(:\s*)[-+]?(?:inf(?:inity)?|nan)\b(?=\s*[,}])", re.IGNORECASE)
_LONE_BACKSLASH: Final = re.compile(rb'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass(slots=True)
class Reading:
    """What is known of a file when its events have been read."""

    path: Path
    about: dict[str, object] = field(default_factory=dict)  # what stands beside the events
    cut: str = ""  # why the events do not go on, where the file ended too early
    num_mended: int = 0  # runs of events that were no JSON


class EventReader(Generic[Batch]):
    """Reads one file's events. `decode` turns a JSON array into a batch, and raises `msgspec.DecodeError`.

    What else the file says is in `reading`, complete when the events are over.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], Batch], progress: Progress | None = None) -> None:
        self.reading = Reading(path)
        self._decode = decode
        self._chunks = _inflated(path, self.reading, progress)

    def batches(self) -> Iterator[Batch]:
        """Yield the events. Raises `UserError` trace-damaged or trace-unknown where there are none to read."""
        text = self._after_header()
        while True:
            batch, text, failed = self._whole_events(text)
            if batch is not None:
                yield batch
            scanned = _scan(text)
            if scanned.is_end:
                yield self._decoded(scanned.text[: scanned.at])
                self._read_rest(scanned.text[scanned.at :])
                return
            if len(text) > _LONGEST_EVENT:
                self.reading.cut = f"an event in it is longer than {_LONGEST_EVENT >> 20} MiB"
                yield from self._salvaged(scanned.text[: scanned.at])
                return
            # Where nothing was whole, twice as much is tried next: else a long event is scanned with every chunk.
            chunk = self._more(1 if batch is not None else len(text))
            if not chunk or (failed and scanned.is_fault):
                yield from self._salvaged(scanned.text[: scanned.at])
                return
            text += chunk

    def _after_header(self) -> bytes:
        """Read up to the first event, and return what was read of the events."""
        text = b""
        for chunk in self._chunks:
            text += chunk
            if text.startswith(b"\xef\xbb\xbf"):
                text = text[3:]
            start = text.lstrip(_SPACE)[:1]
            if start == b"[":
                return text.lstrip(_SPACE)[1:]
            if start not in (b"{", b""):
                raise self._unknown("it is no JSON")
            for place in _EVENTS.finditer(text):
                about = _object(text[: place.start()].rstrip(_SPACE).rstrip(b",") + b"}")
                if about is not None:
                    self.reading.about.update(about)
                    return text[place.end() :]
            if len(text) > _MOST_HEADER:
                raise self._unknown("it has no traceEvents")
        if not text.strip(_SPACE):
            raise damaged(self.reading.path, self.reading.cut or "it is empty")
        if _object(text) is not None:
            raise self._unknown("it is JSON, and has no traceEvents")
        raise damaged(self.reading.path, self.reading.cut or "its JSON is cut off before the first event")

    def _more(self, num_bytes: int) -> bytes:
        """Return so much more of the file, or its rest."""
        chunks: list[bytes] = []
        size = 0
        for chunk in self._chunks:
            chunks.append(chunk)
            size += len(chunk)
            if size >= num_bytes:
                break
        return b"".join(chunks)

    def _whole_events(self, text: bytes) -> tuple[Batch | None, bytes, bool]:
        """Return the events up to the last border between two, the text after it, and whether a border was none."""
        at, failed = len(text), False
        for _ in range(_BORDERS_TRIED):
            at = text.rfind(b"{", 0, at)
            if at <= 0:
                break
            before = text[max(0, at - 256) : at].rstrip(_SPACE)
            if not before.endswith(b",") or not before[:-1].rstrip(_SPACE).endswith(b"}"):
                continue
            try:
                return self._decoded(text[:at].rstrip(_SPACE)[:-1]), text[at:], failed
            except msgspec.DecodeError:
                failed = True
        return None, text, failed

    def _salvaged(self, text: bytes) -> Iterator[Batch]:
        """Yield what is whole of a text that ends too early, or in which something is wrong."""
        self.reading.cut = self.reading.cut or "its JSON is cut off or damaged"
        try:
            yield self._decoded(text.rstrip(_SPACE).removesuffix(b","))
        except msgspec.DecodeError:
            pass
        else:
            return
        # What is before a fault can be decoded, and nothing that reaches beyond it.
        size = len(text)
        while size > 1:
            batch, rest, _ = self._whole_events(text[:size])
            if batch is not None:
                yield batch
                text = rest + text[size:]
            size = min(size // 2, len(text))

    def _read_rest(self, text: bytes) -> None:
        """Read what stands after the events, from the array's end on; nothing of it is needed to go on."""
        for chunk in self._chunks:
            if len(text) < _MOST_HEADER:
                text += chunk
        self.reading.cut = ""  # all events were there
        rest = text[1:].strip(_SPACE).removeprefix(b",")
        about = _object(b"{" + rest) if rest.strip(_SPACE) else None
        self.reading.about.update(about or {})

    def _decoded(self, events: bytes) -> Batch:
        """Return the batch, of mended text where it must be. Raises `msgspec.DecodeError`."""
        try:
            return self._decode(b"[" + events + b"]")
        except msgspec.DecodeError:
            mended = _mended(events)
            if mended == events:
                raise
        batch = self._decode(b"[" + mended + b"]")
        self.reading.num_mended += 1
        return batch

    def _unknown(self, why: str) -> UserError:
        return UserError(
            code="trace-unknown",
            what=f"This is no trace of PyTorch's profiler: {why}.",
            value=str(self.reading.path),
            next_step="Give the file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote.",
        )


def damaged(path: Path, why: str) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(
        code="trace-damaged",
        what=f"The trace cannot be read: {why}.",
        value=str(path),
        next_step="Copy or export it again.",
    )


@dataclass(frozen=True, slots=True)
class _Scanned:
    """How far a text of events goes: to the end of the array, to a fault, or on. `text` was mended if it had to be."""

    text: bytes
    at: int
    is_end: bool = False
    is_fault: bool = False


def _scan(text: bytes) -> _Scanned:
    """Look for the end of the array, without building anything.

    The decoder says where it found something that cannot be: after the array's end that is what stands beside it.
    """
    scanned = _scan_once(text)
    if scanned.is_fault:
        mended = _mended(text)
        scanned = _scan_once(mended) if mended != text else scanned
    # A word that is cut in two by the chunk's end looks like a fault.
    if scanned.is_fault and len(scanned.text) - scanned.at < _LONGEST_WORD:
        return _Scanned(text, len(text))
    return scanned


def _scan_once(text: bytes) -> _Scanned:
    try:
        _SCANNER.decode(b"[" + text)
    except msgspec.DecodeError as error:
        found = _PLACE.search(str(error))
        if found is None:  # it goes on
            return _Scanned(text, len(text))
        at = int(found[2]) - 1
        if found[1] == "trailing characters":
            return _Scanned(text, text[:at].rstrip(_SPACE).rindex(b"]"), is_end=True)
        if found[1] == "trailing comma in array":
            without_comma = text[:at].rstrip(_SPACE)[:-1]
            return _Scanned(without_comma + text[at:], len(without_comma), is_end=True)
        return _Scanned(text, at, is_fault=True)
    return _Scanned(text, text.rindex(b"]"), is_end=True)


def _inflated(path: Path, reading: Reading, progress: Progress | None) -> Iterator[bytes]:
    """Yield the file's text in chunks of bounded size, inflated where it is gzip."""
    size = max(1, path.stat().st_size)
    num_read = 0
    with path.open("rb") as file:
        data = file.read(_COMPRESSED)
        gzip = _Gunzip() if data.startswith(_GZIP) else None
        while data:
            num_read += len(data)
            if gzip is None:
                yield data
            else:
                try:
                    yield from gzip.inflated(data)
                except zlib.error as error:
                    reading.cut = f"its gzip stream is damaged ({error})"
                    return
            if progress is not None:
                progress(num_read / size)
            data = file.read(_CHUNK if gzip is None else _COMPRESSED)
    if gzip is not None:
        yield gzip.rest()
        if not gzip.is_whole:
            reading.cut = "its gzip stream is cut off"


class _Gunzip:
    """Inflates gzip, which may have several members, in chunks of bounded size."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def inflated(self, data: bytes) -> Iterator[bytes]:
        """Yield what the data inflates to."""
        while data:
            if self._inflater.eof:
                if not data.strip(b"\0"):
                    return  # padding
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
            before = self._inflater.copy()
            try:
                text = self._inflater.decompress(data, _CHUNK)
            except zlib.error:
                yield _before_fault(before, data)
                raise
            yield text
            data = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail

    def rest(self) -> bytes:
        """Return what was held back."""
        return b"" if self._inflater.eof else self._inflater.flush()

    @property
    def is_whole(self) -> bool:
        """Whether the last member came to its end."""
        return self._inflater.eof


def _before_fault(inflater: zlib._Decompress, data: bytes) -> bytes:
    """Return what comes before a fault: a call that meets one gives nothing of what it had inflated."""
    inflated = []
    for size in (_PIECE, 1):
        while data:
            before = inflater.copy()
            try:
                inflated.append(inflater.decompress(data[:size]))
            except zlib.error:
                inflater = before
                break
            data = data[size:]
    return b"".join(inflated)


def _object(text: bytes) -> dict[str, object] | None:
    for candidate in (text, _mended(text)):
        try:
            decoded = msgspec.json.decode(candidate)
        except msgspec.DecodeError:
            continue
        return decoded if isinstance(decoded, dict) else None
    return None


def _mended(text: bytes) -> bytes:
    """Return the text without what profilers write that is no JSON."""
    text = _NOT_FINITE.sub(rb"\1null", text)
    text = _CONTROLS.sub(b" ", text)
    text = _LONE_BACKSLASH.sub(lambda match: match[0] if match[1] else rb"\\", text)
    return text.decode("utf-8", "replace").encode()
