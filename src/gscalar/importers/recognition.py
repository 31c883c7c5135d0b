"""Files that others wrote, told apart by their content and read as one timeline.

A file's name says nothing: what counts is how it begins, and of a database which tables it has. Each kind has its
importer, which is loaded when a file of the kind is there. In a folder, files that are no traces or cannot be read are
left out and named; a file that was given itself must be readable.
"""

from __future__ import annotations

import importlib
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gscalar.base.errors import UserError
from gscalar.importers.kineto_stream import Progress, damaged
from gscalar.model.timeline import StepTimeline

_HEAD: Final = 1 << 16
_COLUMNS: Final = ("optype", "start_ts", "duration")
_NSIGHT_TABLES: Final = frozenset({"CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "StringIds"})
_TRACE_MARKS: Final = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
# An XSpace begins with a plane, and a plane with its id, name, lines or metadata.
_PLANE: Final = 0x0A
_IN_PLANE: Final = frozenset({0x08, 0x12, 0x1A, 0x22})


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: `module` has `read`; where it has `join` too, several files make one timeline."""

    name: str
    module: str
    read: str
    recognises: Callable[[bytes, Path], bool]
    join: tuple[str, str] | None = None  # module and function


def open_traces(paths: Sequence[Path], *, progress: Progress | None = None) -> StepTimeline:
    """Return the timeline of files, and of the traces in folders.

    `progress` is given the share of all files that was read. Raises `UserError`: trace-not-found, trace-unknown,
    trace-damaged, trace-mixed; and what an importer raises, such as `EnvironmentProblem` package-missing.
    """
    notes: list[str] = []
    found: list[tuple[Path, Kind]] = []
    optional: set[Path] = set()
    for path in paths:
        if path.is_dir():
            inside = _in_folder(path, notes)
            optional |= {each for each, _ in inside}
            found += inside
        else:
            found.append((path, recognised(path)))
    if not found:
        raise UserError(
            code="trace-unknown",
            what="There is no trace here that can be read." + "".join(f" {note}." for note in notes[:3]),
            value=", ".join(str(path) for path in paths),
            next_step="Give traces of torch.profiler, Nsight Systems (.sqlite), xplane, or a table of operations.",
        )
    kinds = {kind.name: path for path, kind in found}
    if len(kinds) > 1:
        several = " and ".join(f"{path} ({name})" for name, path in sorted(kinds.items())[:2])
        raise UserError(
            code="trace-mixed",
            what=f"Files of several kinds were given: {several}.",
            next_step="Give the traces of one training, from one tool.",
        )
    timeline = _read([path for path, _ in found], found[0][1], optional, notes, progress)
    return replace(timeline, notes=(*timeline.notes, *notes)) if notes else timeline


def recognised(path: Path) -> Kind:
    """Return the kind of a file. Raises `UserError` trace-not-found, trace-damaged (empty) and trace-unknown.

    JSON of any other kind is taken for a trace, whose importer says what it lacks.
    """
    head = _head(path)
    kind = _kind_of(head, path)
    if kind is not None or _is_json(head):
        return kind or _KINETO
    raise UserError(
        code="trace-unknown",
        what="This is no trace or table that can be read.",
        value=str(path),
        next_step="Give traces of torch.profiler, Nsight Systems (.sqlite), xplane, or a table of operations.",
    )


def _kind_of(head: bytes, path: Path) -> Kind | None:
    return next((kind for kind in KINDS if kind.recognises(head, path)), None)


def _head(path: Path) -> bytes:
    """Return how a file begins, inflated."""
    if path.exists() and not path.is_file():  # reading a pipe might never end, and a trace is read twice
        raise UserError(
            code="trace-not-found",
            what="This is neither a file nor a folder.",
            value=str(path),
            next_step="Give a file or folder of traces.",
        )
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UserError(
            code="trace-not-found",
            what=f"The file cannot be read: {error.strerror}.",
            value=str(path),
            next_step="Give a file or folder of traces.",
        ) from error
    if not head:
        raise damaged(path, "it is empty")
    return _inflated(head) if head.startswith(b"\x1f\x8b") else head


def _in_folder(folder: Path, notes: list[str]) -> list[tuple[Path, Kind]]:
    """Return the folder's traces, sorted by name; what is none is noted."""
    found = []
    left_out = []
    for path in sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")):
        try:
            kind = _kind_of(_head(path), path)
        except UserError:
            kind = None
        if kind is None:
            left_out.append(path.name)
        else:
            found.append((path, kind))
    if left_out:
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        notes.append(
            f"files in {folder.name or folder} that are no traces are left out: {', '.join(left_out[:5])}{more}"
        )
    return found


def _read(
    paths: Sequence[Path], kind: Kind, optional: set[Path], notes: list[str], progress: Progress | None
) -> StepTimeline:
    module = importlib.import_module(kind.module)
    read = getattr(module, kind.read)
    if kind.join is None:
        if len(paths) > 1:
            raise UserError(
                code="trace-mixed",
                what=f"Several files were given, and of this kind ({kind.name}) one can be read at a time.",
                value=f"{paths[0]} and {paths[1]}",
                next_step="Give one of them.",
            )
        timeline: StepTimeline = read(paths[0])
        return timeline
    traces = []
    failure: UserError | None = None
    for at, path in enumerate(paths):
        try:
            traces.append(read(path, progress=_part(progress, at, len(paths))))
        except UserError as error:
            if path not in optional:
                raise
            failure = error
            notes.append(f"{path.name} is left out: {error.what}")
    if not traces:
        assert failure is not None
        raise failure
    joined: StepTimeline = getattr(importlib.import_module(kind.join[0]), kind.join[1])(traces)
    return joined


def _part(progress: Progress | None, at: int, num: int) -> Progress | None:
    return None if progress is None else lambda share: progress((at + share) / num)


def _inflated(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD)
    except zlib.error:
        return b""


def _is_table(head: bytes, path: Path) -> bool:
    line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    return head.startswith(b"PAR1") or all(column.encode() in line for column in _COLUMNS)


def _is_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def _is_trace(head: bytes, path: Path) -> bool:
    return _is_json(head) and any(mark in head for mark in _TRACE_MARKS)


def _is_nsight(head: bytes, path: Path) -> bool:
    if not head.startswith(b"SQLite format 3\0"):
        return False
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:  # opened as below, the database is what it was before
        raise damaged(path, f"what was written last is in {log.name}, and a program may still write")
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"  # writes nothing beside it
        with closing(sqlite3.connect(uri, uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise damaged(path, str(error)) from error
    return bool(tables & _NSIGHT_TABLES)


def _is_xspace(head: bytes, path: Path) -> bool:
    """Tell whether the file begins with a message that fits into it and looks like a plane."""
    if head[:1] != bytes([_PLANE]):
        return False
    size = shift = 0
    for at, byte in enumerate(head[1:11], start=2):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return 0 < size <= path.stat().st_size - at and head[at : at + 1] != b"" and head[at] in _IN_PLANE
    return False


_KINETO: Final = Kind(
    "kineto", "gscalar.importers.kineto", "read_kineto", _is_trace, join=("gscalar.importers.joining", "join")
)
# Tried in this order.
KINDS: Final = (
    Kind("operations", "gscalar.importers.operations", "read_operations", _is_table),
    _KINETO,
    Kind("nsight", "gscalar.importers.nsight", "read_nsight", _is_nsight),
    Kind("xplane", "gscalar.importers.xplane", "read_xplane", _is_xspace),
)
