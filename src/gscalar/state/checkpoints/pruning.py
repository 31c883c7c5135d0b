"""Retention: the newest few stay, and always the newest that loads."""

from __future__ import annotations

from pathlib import Path

from gscalar.base.errors import Damaged
from gscalar.state.checkpoints import layout
from gscalar.state.checkpoints.finding import read_latest_name, replace_latest
from gscalar.state.checkpoints.manifest import SavedCheckpoint, verify_checkpoint


def prune_checkpoints(folder: Path, keep: int, *, trusted: SavedCheckpoint | None = None) -> list[Path]:
    """Return the removed checkpoints, after which the newest that loads and `keep - 1` before it are left.

    Damaged ones that are newer than it are not counted and not touched: what cannot be read today may
    be readable tomorrow. Where none loads, nothing is removed. `trusted` was committed by this process
    a moment ago and is not read again; every other candidate is verified until one loads.

    Raises:
        OSError: one could not be put aside; what is left is whole, and so is `latest`.
    """
    assert keep >= 1, keep
    places = layout.list_places(folder)
    if len(places) <= keep:
        return []
    loading = (index for index, place in enumerate(places) if _loads(folder / place.name, trusted))
    newest = next(loading, None)
    if newest is None:
        return []
    surplus = [folder / each.name for each in reversed(places[newest + keep :])]
    if surplus and read_latest_name(folder) in {path.name for path in surplus}:
        replace_latest(folder, places[newest].name)
    layout.put_in_trash(surplus)
    return surplus


def _loads(path: Path, trusted: SavedCheckpoint | None) -> bool:
    if trusted is not None and path == trusted.path:
        return True
    try:
        verify_checkpoint(path)
    except (Damaged, FileNotFoundError):
        return False
    return True
