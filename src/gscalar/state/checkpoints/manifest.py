"""The manifest of a checkpoint: which files it has, how long they are, what their SHA-256 is.

    {"version": 1, "step": 100, "run": …, "attempt": …, "world": …,
     "files": {"arrays/.metadata": {"bytes": 512, "sha256": "…"}, …}, "digest": "…"}

`digest` is the SHA-256 of the manifest without it, and the manifest has one rendering, so that a
changed byte of the manifest itself is found like one in any other file. Paths are relative, with
`/`, and confined: no `..`, nothing absolute, and no symbolic link is followed on the way. Files
that the manifest does not list are ignored.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gscalar.base.errors import Damaged
from gscalar.state.checkpoints.layout import parse_place

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1

# Large enough that hashing runs almost wholly outside the interpreter lock.
_BLOCK_BYTES: Final = 1 << 20
# That hash; few, since training goes on beside them.
_NUM_THREADS: Final = 2
_OWN_KEYS: Final = frozenset({"version", "step", "files", "digest"})


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A committed checkpoint. `sha256` is that of its manifest; `facts` is what the saver said of it.

    `replaced` names, in the answer of the commit, those of the same step that are gone for it.
    """

    step: int
    path: Path
    num_bytes: int
    sha256: str
    facts: dict[str, Any] = field(default_factory=dict, hash=False)
    replaced: tuple[Path, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read: `files` maps relative paths to (bytes, sha256)."""

    step: int
    files: dict[str, tuple[int, str]]
    facts: dict[str, Any]
    num_bytes: int  # of the manifest itself
    sha256: str

    def saved(self, path: Path) -> SavedCheckpoint:
        """Return the checkpoint that this manifest describes."""
        total = self.num_bytes + sum(num_bytes for num_bytes, _ in self.files.values())
        return SavedCheckpoint(self.step, path, total, self.sha256, self.facts)


def seal_files(draft: Path) -> dict[str, tuple[int, str]]:
    """Return (bytes, sha256) of every file in the draft, after making all of them durable.

    A disk is busy while a file is fsynced and a core while one is hashed: the two overlap.
    """
    paths = sorted(path.relative_to(draft).as_posix() for path in draft.rglob("*") if not _is_real_folder(path))
    with (
        ThreadPoolExecutor(1, "checkpoint-fsync") as disk,
        ThreadPoolExecutor(_NUM_THREADS, "checkpoint-hash") as cores,
    ):
        syncs = [disk.submit(_sync_file, draft / path) for path in paths]
        sealed = dict(zip(paths, cores.map(lambda path: _hash_file(draft, path), paths), strict=True))
        for sync in syncs:
            sync.result()
    return sealed


def render_manifest(step: int, files: dict[str, tuple[int, str]], facts: dict[str, Any]) -> bytes:
    """Return the manifest's bytes; `facts` are the saver's own keys (run, attempt, world)."""
    assert not _OWN_KEYS & facts.keys(), facts
    listed = {path: {"bytes": num_bytes, "sha256": sha256} for path, (num_bytes, sha256) in files.items()}
    body = {**facts, "version": MANIFEST_VERSION, "step": step, "files": listed}
    return _render({**body, "digest": _digest(body)})


def read_manifest(checkpoint: Path) -> Manifest:
    """Return the manifest of a committed checkpoint.

    Raises:
        Damaged: `checkpoint-damaged`, with the reason.
        FileNotFoundError: the checkpoint's folder is gone.
    """
    try:
        with _open_confined(checkpoint, MANIFEST) as fd, open(fd, "rb", closefd=False) as file:
            content = file.read()
    except FileNotFoundError:
        checkpoint.lstat()
        raise _damaged(checkpoint, "manifest.json is missing") from None
    except OSError as error:
        raise _damaged(checkpoint, f"manifest.json {_os_reason(error)}") from error
    return _parse_manifest(checkpoint, content)


def verify_checkpoint(checkpoint: Path) -> SavedCheckpoint:
    """Return the checkpoint after comparing every file with the manifest.

    Raises:
        Damaged: `checkpoint-damaged`, with the first reason found; sizes are compared before checksums.
        FileNotFoundError: the checkpoint's folder is gone.
    """
    manifest = read_manifest(checkpoint)
    listed = sorted(manifest.files.items())
    with ThreadPoolExecutor(_NUM_THREADS, "checkpoint-verify") as pool:
        for check in (_check_size, _check_sum):
            wrong = pool.map(lambda entry: _check_file(check, checkpoint, *entry), listed)  # noqa: B023
            reason = next(filter(None, wrong), None)
            if reason:
                checkpoint.lstat()  # where the folder is gone as a whole, it was pruned, not damaged
                raise _damaged(checkpoint, reason)
    return manifest.saved(checkpoint)


def _check_file(
    check: Callable[[int, int, str], str | None], checkpoint: Path, path: str, want: tuple[int, str]
) -> str | None:
    """Return what is wrong with a file of the manifest, in words; None where nothing is."""
    try:
        with _open_confined(checkpoint, path) as fd:
            reason = check(fd, *want)
    except FileNotFoundError:
        reason = "is missing"
    except OSError as error:
        reason = _os_reason(error)
    return f"{path} {reason}" if reason else None


def _check_size(fd: int, num_bytes: int, _sha256: str) -> str | None:
    got = os.fstat(fd).st_size
    return None if got == num_bytes else f"has {got} bytes, not {num_bytes}"


def _check_sum(fd: int, num_bytes: int, sha256: str) -> str | None:
    return None if _hash(fd) == (num_bytes, sha256) else "has another checksum than the manifest says"


def _parse_manifest(checkpoint: Path, content: bytes) -> Manifest:
    try:
        body = json.loads(content)
        version = body.get("version") if isinstance(body, dict) else None
        if type(version) is int and version > MANIFEST_VERSION:
            raise _damaged(
                checkpoint, f"manifest.json has version {version}, and this gscalar reads {MANIFEST_VERSION}"
            )
        digest = body.pop("digest", None)
        sound = digest == _digest(body) and content == _render({**body, "digest": digest})
    # Whatever the bytes are now: no JSON, NaN, nested without end, a list.
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(checkpoint, f"manifest.json is not what was written: {error}") from error
    if not sound:
        raise _damaged(checkpoint, "manifest.json does not have the digest that it names")
    step, place = body.get("step"), parse_place(checkpoint.name)
    if type(step) is not int or (place is not None and place.step != step):
        raise _damaged(checkpoint, f"manifest.json is that of step {step!r}")
    files = _parse_files(checkpoint, body.get("files"))
    facts = {key: value for key, value in body.items() if key not in _OWN_KEYS}
    return Manifest(step, files, facts, len(content), hashlib.sha256(content).hexdigest())


def _parse_files(checkpoint: Path, listed: object) -> dict[str, tuple[int, str]]:
    if not isinstance(listed, dict):
        raise _damaged(checkpoint, "manifest.json lists no files")
    files = {}
    for path, entry in listed.items():
        if not is_confined(path):
            raise _damaged(checkpoint, f"manifest.json lists a path outside the checkpoint: {path!r}")
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int:
            raise _damaged(checkpoint, f"manifest.json says no size of {path!r}")
        files[path] = (entry["bytes"], str(entry.get("sha256")))
    return files


def is_confined(path: str) -> bool:
    """Tell whether a relative path can only name something inside its folder (links aside)."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _is_real_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _hash_file(draft: Path, path: str) -> tuple[int, str]:
    with _open_confined(draft, path) as fd:
        return _hash(fd)


def _hash(fd: int) -> tuple[int, str]:
    """Return how many bytes the open file has from here on, and their SHA-256."""
    sha256 = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK_BYTES))
    total = 0
    with open(fd, "rb", buffering=0, closefd=False) as file:
        while num_bytes := file.readinto(block):
            sha256.update(block[:num_bytes])
            total += num_bytes
    return total, sha256.hexdigest()


@contextmanager
def _open_confined(folder: Path, path: str) -> Iterator[int]:
    """Open a regular file below the folder for reading, without following any symbolic link."""
    assert is_confined(path), path
    *folders, name = path.split("/")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for part in folders:
            fd = _swap(fd, os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd))
        # O_NONBLOCK, so that a FIFO put there does not hold the reader up for ever.
        fd = _swap(fd, os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd))
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "Not a regular file")
        yield fd
    finally:
        os.close(fd)


def _swap(old: int, new: int) -> int:
    os.close(old)
    return new


def _render(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_render(body)).hexdigest()


def _os_reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link"
    return f"cannot be read: {error.strerror}"


def _damaged(checkpoint: Path, reason: str) -> Damaged:
    return Damaged(
        code="checkpoint-damaged",
        what=f"{reason}.",
        where=str(checkpoint),
        next_step="Use the checkpoint before it; a resumed run does so by itself.",
    )
