"""Checkpoints of a run: folders of files that are whole or not there.

    checkpoints/
      step-000000000100/        committed: manifest.json and the files that it lists
      step-000000000100.1/      the same step saved again by a later attempt; replaces the one above
      latest                    text: the name of the newest one; derived, for people and scripts
      .draft-…/                 being written; the name says by which process
      .trash-…/                 being removed
      .latest-…                 the next `latest`, not yet in place

Protocol of a commit. Everything is written into a draft; every file is hashed (SHA-256) and
fsynced; the manifest is written last; the draft's folders are fsynced; the next `latest` is staged,
so that a full disk is met before anything is visible; ONE rename gives the draft its final name;
the folder is fsynced; `latest` is renamed into place; the folder is fsynced. Only then is a
checkpoint that this one replaces removed, by a rename to a trash name first.

So at every instant a committed name stands for a whole checkpoint, and what `latest` names was
durable before `latest` named it. Bytes can still rot afterwards: whoever loads asks `find_loadable`,
which checks every checksum and falls back to the one before.

One process at a time writes the checkpoints of a run (rank 0 of its newest attempt); any number may
read. Nothing here knows a framework: `gscalar.frameworks` writes the arrays.
"""

from gscalar.state.checkpoints.commit import (
    begin_checkpoint,
    commit_checkpoint,
    discard_draft,
    save_checkpoint,
)
from gscalar.state.checkpoints.finding import (
    LoadableCheckpoint,
    find_loadable,
    list_checkpoints,
    read_latest,
    repair_latest,
)
from gscalar.state.checkpoints.manifest import SavedCheckpoint, verify_checkpoint
from gscalar.state.checkpoints.pruning import prune_checkpoints
from gscalar.state.checkpoints.values import read_values, write_values

__all__ = [
    "LoadableCheckpoint",
    "SavedCheckpoint",
    "begin_checkpoint",
    "commit_checkpoint",
    "discard_draft",
    "find_loadable",
    "list_checkpoints",
    "prune_checkpoints",
    "read_latest",
    "read_values",
    "repair_latest",
    "save_checkpoint",
    "verify_checkpoint",
    "write_values",
]
