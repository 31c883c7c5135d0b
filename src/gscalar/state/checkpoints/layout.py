"""Names in a run's checkpoints folder, and which process a half-made one belongs to.

A draft, a trash folder and a staged `latest` carry their owner in their name: the machine (boot id
and PID namespace, so that two containers and two boots differ), the pid, and the pid's start time
(so that a reused pid is not taken for the owner). What belongs to a dead process is swept away by
the next writer. A process of another machine cannot be looked up: its leftovers are swept once
nothing in them has changed for a day.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from gscalar.state.files import fsync_folder

LATEST: Final = "latest"
FOREIGN_AGE_S: Final = 86_400.0

_COMMITTED = re.compile(r"step-(\d{12,})(?:\.([1-9]\d*))?")
_OWNED = re.compile(r"\.(?:draft|trash|latest)-(?:\d+-)?([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}")


class Place(NamedTuple):
    """A committed name; places sort from old to new. A higher generation of a step replaces a lower one."""

    step: int
    generation: int

    @property
    def name(self) -> str:
        return f"step-{self.step:012d}" + (f".{self.generation}" if self.generation else "")


def parse_place(name: str) -> Place | None:
    """Return the place that a committed name stands for; None for every other name."""
    match = _COMMITTED.fullmatch(name)
    place = Place(int(match[1]), int(match[2] or 0)) if match else None
    return place if place is not None and place.name == name else None


def list_places(folder: Path) -> list[Place]:
    """Return the committed places, newest first. Only real folders count, and a missing folder is empty."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted((place for name in names if (place := parse_place(name))), reverse=True)


def draft_path(folder: Path, step: int) -> Path:
    """Return a fresh draft name that says which process owns it."""
    return folder / f".draft-{step:012d}-{_own_mark()}"


def trash_path(folder: Path) -> Path:
    """Return a fresh trash name."""
    return folder / f".trash-{_own_mark()}"


def staged_latest_path(folder: Path) -> Path:
    """Return a fresh name for the next `latest`."""
    return folder / f".latest-{_own_mark()}"


def sweep(folder: Path, now_s: float) -> None:
    """Remove what dead processes left half made or half removed; what cannot be removed stays for later."""
    with os.scandir(folder) as entries:
        leftovers = [Path(entry.path) for entry in entries if _OWNED.fullmatch(entry.name)]
    for path in leftovers:
        if _is_abandoned(path, now_s):
            remove_tree(path)


def remove_tree(path: Path) -> None:
    """Remove a file or a folder; what the system refuses to remove stays, to be swept later."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            pass


def put_in_trash(paths: list[Path]) -> None:
    """Remove committed checkpoints: each is renamed aside first, so that none is ever there by half.

    Raises:
        OSError: one could not be renamed; those before it are gone, the others are whole.
    """
    trash: list[Path] = []
    try:
        for path in paths:
            aside = trash_path(path.parent)
            path.rename(aside)
            trash.append(aside)
        for folder in {path.parent for path in trash}:
            fsync_folder(folder)
    finally:
        # Also where a rename or fsync failed: a disk that is full gets its room back.
        for path in trash:
            remove_tree(path)


def write_new(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file that is not there yet; durably (its folder's entry aside) unless `sync` is off."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _is_abandoned(path: Path, now_s: float) -> bool:
    match = _OWNED.fullmatch(path.name)
    assert match, path
    machine, pid, start = match.groups()
    if machine == _machine():
        return _start_ticks(int(pid)) != int(start)
    return now_s - _last_change_s(path) > FOREIGN_AGE_S


def _last_change_s(path: Path) -> float:
    newest = 0.0
    for each in (path, *path.rglob("*")):
        try:
            newest = max(newest, each.lstat().st_mtime)
        except FileNotFoundError:
            continue
    return newest


def _own_mark() -> str:
    # Not cached: a forked child is another process.
    pid = os.getpid()
    return f"{_machine()}-{pid}-{_start_ticks(pid)}-{uuid.uuid4().hex[:8]}"


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = os.uname().nodename
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:8]


def _start_ticks(pid: int) -> int:
    """Return when the process started, in clock ticks since boot; 0 where there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The command's name stands in parentheses and may hold anything, spaces and parentheses too.
    fields = stat[stat.rfind(b")") + 1 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
