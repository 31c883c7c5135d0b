"""Writing a checkpoint: a draft, then one commit. The package's docstring has the protocol.

Whatever fails before the end (a full disk, Ctrl-C), the draft is removed, the checkpoint before
stays the newest and `latest`, and the error is raised as it came. A crash leaves a draft that the
next writer sweeps away, or a whole checkpoint that `latest` does not name yet.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gscalar.state.checkpoints import layout
from gscalar.state.checkpoints.finding import read_latest_name
from gscalar.state.checkpoints.layout import LATEST, Place
from gscalar.state.checkpoints.manifest import MANIFEST, SavedCheckpoint, render_manifest, seal_files
from gscalar.state.files import fsync_folder


def begin_checkpoint(folder: Path, step: int, *, clock_s: Callable[[], float] = time.time) -> Path:
    """Return a fresh, empty draft folder, after sweeping away what dead writers left.

    Raises:
        OSError: as the system says.
    """
    assert step >= 0, step
    folder.mkdir(parents=True, exist_ok=True)
    layout.sweep(folder, clock_s())
    draft = layout.draft_path(folder, step)
    draft.mkdir()
    return draft


def discard_draft(draft: Path) -> None:
    """Remove a draft that will not be committed; one that is gone already is fine."""
    layout.remove_tree(draft)


def commit_checkpoint(folder: Path, draft: Path, step: int, facts: dict[str, Any]) -> SavedCheckpoint:
    """Return the checkpoint that the draft has become: durable, visible, and named by `latest`.

    `facts` go into the manifest beside its own keys: run, attempt, world. A checkpoint of the
    same step is replaced: the new one gets the next generation's name (`step-000000000100.1`) and
    the old one goes afterwards, so that there is no moment with neither.

    Raises:
        OSError: as the system says; the draft is then removed and `latest` names what it named before.
    """
    staged, undo = layout.staged_latest_path(folder), layout.staged_latest_path(folder)
    try:
        # 1. Everything in the draft becomes durable; the manifest comes last.
        num_bytes, sha256 = _seal_draft(draft, step, facts)
        # 2. Both the next `latest` and the way back are written while nothing is visible: a disk that
        #    is full shows now, and taking the commit back needs no room.
        place, before = _next_place(folder, step), read_latest_name(folder)
        layout.write_new(staged, f"{place.name}\n".encode())
        if before is not None:
            layout.write_new(undo, f"{before}\n".encode(), sync=False)
        # 3. The draft gets its final name, then `latest` its new text.
        _publish(draft, staged, undo, folder / place.name)
    except BaseException:
        discard_draft(draft)
        raise
    finally:
        for path in (staged, undo):
            layout.remove_tree(path)
    # 4. What it replaces goes.
    replaced = _drop_replaced(folder, place)
    return SavedCheckpoint(step, folder / place.name, num_bytes, sha256, dict(facts), replaced)


def save_checkpoint(folder: Path, step: int, facts: dict[str, Any], write: Callable[[Path], object]) -> SavedCheckpoint:
    """Return a committed checkpoint of what `write` puts into the draft folder that it is given.

    Raises:
        OSError: as the system says. Whatever `write` raises goes through; the draft is removed.
    """
    draft = begin_checkpoint(folder, step)
    try:
        write(draft)
    except BaseException:
        discard_draft(draft)
        raise
    return commit_checkpoint(folder, draft, step, facts)


def _seal_draft(draft: Path, step: int, facts: dict[str, Any]) -> tuple[int, str]:
    files = seal_files(draft)
    assert MANIFEST not in files, "a draft holds a manifest of its own"
    manifest = render_manifest(step, files, facts)
    layout.write_new(draft / MANIFEST, manifest)
    subfolders = [path for path in draft.rglob("*") if path.is_dir()]
    for path in [*sorted(subfolders, reverse=True), draft]:
        fsync_folder(path)
    total = len(manifest) + sum(num_bytes for num_bytes, _ in files.values())
    return total, hashlib.sha256(manifest).hexdigest()


def _next_place(folder: Path, step: int) -> Place:
    taken = [place.generation for place in layout.list_places(folder) if place.step == step]
    return Place(step, max(taken) + 1 if taken else 0)


def _publish(draft: Path, staged: Path, undo: Path, final: Path) -> None:
    folder = final.parent
    draft.rename(final)
    try:
        fsync_folder(folder)
        staged.replace(folder / LATEST)
        fsync_folder(folder)
    except BaseException:
        _retract(final, undo)
        raise


def _retract(final: Path, undo: Path) -> None:
    """Take a checkpoint back whose commit failed half way, so that the one before is the newest again."""
    latest = final.parent / LATEST
    try:
        if undo.exists():
            undo.replace(latest)
        else:
            latest.unlink(missing_ok=True)
        layout.put_in_trash([final])
    except OSError:
        # What could not be taken back is sound: `latest` names a whole one, this one or the one before.
        pass


def _drop_replaced(folder: Path, place: Place) -> tuple[Path, ...]:
    places = sorted(layout.list_places(folder))
    old = [folder / each.name for each in places if each.step == place.step and each < place]
    try:
        layout.put_in_trash(old)
    except OSError:
        # The checkpoint is committed; an old one too many is pruned later.
        pass
    return tuple(path for path in old if not path.exists())
