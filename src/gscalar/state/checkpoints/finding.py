"""Which checkpoints there are, and which of them loads.

`latest` is derived and never trusted: the folder's committed names say what there is, manifests say
what is in them, and checksums say whether it is still so. Reading changes nothing; only
`repair_latest` writes, and only `latest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gscalar.base.errors import Damaged
from gscalar.state.checkpoints import layout
from gscalar.state.checkpoints.layout import LATEST, parse_place
from gscalar.state.checkpoints.manifest import SavedCheckpoint, read_manifest, verify_checkpoint
from gscalar.state.files import fsync_folder

# A writer may prune what a reader is about to look at; after so many looks the reader gives up.
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class LoadableCheckpoint:
    """The newest checkpoint that loads, and the newer ones that do not: (path, reason), newest first."""

    found: SavedCheckpoint | None
    damaged: list[tuple[Path, str]] = field(default_factory=list)


def list_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Return the checkpoints by their manifests, newest first, without reading their files.

    One whose manifest is damaged is left out; `find_loadable` names it.
    """
    listed = []
    for place in layout.list_places(folder):
        path = folder / place.name
        try:
            listed.append(read_manifest(path).saved(path))
        except (Damaged, FileNotFoundError):
            continue
    return listed


def find_loadable(folder: Path) -> LoadableCheckpoint:
    """Return the newest checkpoint whose every file has the checksum of its manifest."""
    damaged: list[tuple[Path, str]] = []
    for _ in range(_LOOKS):
        damaged, vanished = [], False
        for place in layout.list_places(folder):
            path = folder / place.name
            try:
                return LoadableCheckpoint(verify_checkpoint(path), damaged)
            except Damaged as error:
                damaged.append((path, error.what))
            except FileNotFoundError:
                vanished = True
        if not vanished:
            break
    return LoadableCheckpoint(None, damaged)


def read_latest(folder: Path) -> Path | None:
    """Return the checkpoint that `latest` names, where there is one; nothing is verified."""
    name = read_latest_name(folder)
    return folder / name if name is not None and (folder / name).is_dir() else None


def repair_latest(folder: Path, loadable: LoadableCheckpoint) -> None:
    """Make `latest` name the checkpoint that was found to load, or remove it where none does.

    Raises:
        OSError: as the system says; `latest` is then as it was.
    """
    wanted = loadable.found.path.name if loadable.found else None
    if wanted is None:
        (folder / LATEST).unlink(missing_ok=True)
    elif read_latest_name(folder) != wanted:
        replace_latest(folder, wanted)


def read_latest_name(folder: Path) -> str | None:
    """Return the name in `latest`; None where it is missing or holds no name of a checkpoint."""
    try:
        text = (folder / LATEST).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if parse_place(text) else None


def replace_latest(folder: Path, name: str) -> None:
    """Make `latest` name this one, durably and by one rename."""
    staged = layout.staged_latest_path(folder)
    try:
        layout.write_new(staged, f"{name}\n".encode())
        staged.replace(folder / LATEST)
    except BaseException:
        layout.remove_tree(staged)
        raise
    fsync_folder(folder)
