"""When a checkpoint is taken, and how it gets to the disk without holding the training up.

Training waits only for the copy of what is trained to host memory; a thread then writes, hashes and
commits it. One write is in flight at a time: a second one waits for it, so a slow disk shows as
stall and never as growing memory. In this design rank 0 writes what all ranks share, and the random
states (and positions in iterable data) of all ranks, which it gathers as one blob a rank.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gscalar.base.errors import TrainingError
from gscalar.model.events import Beat, CheckpointFailed, CheckpointRemoved, CheckpointSaved
from gscalar.model.sink import Sink
from gscalar.model.spec import CheckpointPolicy
from gscalar.observation.threads import start_thread
from gscalar.runtime.framework import Snapshot
from gscalar.state.checkpoints import (
    SavedCheckpoint,
    begin_checkpoint,
    commit_checkpoint,
    discard_draft,
    find_loadable,
    prune_checkpoints,
    read_values,
    repair_latest,
    save_checkpoint,
    write_values,
)

ARRAYS = "arrays"
RANKS = "ranks"
_BEAT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint holds. `ranks[rank]` is the blob of that rank."""

    step: int
    path: Path
    snapshot: Snapshot
    run_state: dict[str, Any]
    ranks: list[bytes]


class Checkpointer:
    """Decides when a checkpoint is due and writes it; owns the writing thread."""

    def __init__(
        self,
        folder: Path,
        policy: CheckpointPolicy,
        sink: Sink,
        *,
        facts: dict[str, Any],
        write_arrays: Callable[[Path, dict[str, Any]], None],
        read_arrays: Callable[[Path], dict[str, Any]],
    ) -> None:
        self.folder = folder
        self._policy = policy
        self._sink = sink
        self._facts = facts
        self._write_arrays = write_arrays
        self._read_arrays = read_arrays
        self._writer: threading.Thread | None = None
        self._last_s = time.monotonic()
        self._last_step = -1
        self.failed = False  # whether the newest write that is over failed; only rank 0 knows

    def due_by_time(self) -> bool:
        """Whether the clock asks for one (rank 0's answer counts for all ranks)."""
        every_s = self._policy.every_s
        return every_s is not None and time.monotonic() - self._last_s >= every_s

    def due_by_step(self, step: int, before: int | None = None) -> bool:
        """Whether the plan asks for one after this step.

        `before` is the step recorded before it, by default the one just before: a trainer's count may jump.
        """
        every = self._policy.every_steps
        return every is not None and step // every > (step - 1 if before is None else before) // every

    @property
    def wanted_at_end(self) -> bool:
        """Whether the end of training writes one."""
        return self._policy.every_s is not None or self._policy.every_steps is not None

    def is_saved(self, step: int) -> bool:
        """Whether the last checkpoint taken is of this step."""
        return self._last_step == step

    def save(
        self, step: int, snapshot: Snapshot, run_state: dict[str, Any], ranks: list[bytes], began_s: float
    ) -> None:
        """Write the snapshot in the background. `began_s` is when training began to wait (monotonic)."""
        values = {"run": run_state, "trainee": snapshot.values}

        def fill(draft: Path) -> None:
            self._write_arrays(draft / ARRAYS, snapshot.arrays)
            _write_rest(draft, values, ranks)

        self._start(step, began_s, lambda: save_checkpoint(self.folder, step, self._facts, fill))

    def begin(self, step: int) -> Path:
        """Return a folder for files that somebody else writes, at once and not in the background.

        Raises:
            OSError: as the system says.
        """
        self.wait()
        return begin_checkpoint(self.folder, step)

    def commit(self, draft: Path, step: int, values: dict[str, Any], ranks: list[bytes], began_s: float) -> None:
        """Make what was written into the folder of `begin` a checkpoint, in the background."""

        def place() -> SavedCheckpoint:
            try:
                _write_rest(draft, values, ranks)
            except BaseException:
                discard_draft(draft)
                raise
            return commit_checkpoint(self.folder, draft, step, self._facts)

        self._start(step, began_s, place)

    def give_up(self, draft: Path | None, step: int, reason: str) -> None:
        """Remove what was written into the folder of `begin`, and say why; the checkpoint before stays the newest."""
        if draft is not None:
            discard_draft(draft)
        self.skip(step)
        self.failed = True
        self._sink.emit(CheckpointFailed(time.time_ns(), step, reason))

    def forget(self) -> None:
        """Take no step for saved."""
        self._last_step = -1

    def skip(self, step: int) -> None:
        """Note that rank 0 writes this step's checkpoint."""
        self._last_s = time.monotonic()
        self._last_step = step

    def wait(self) -> None:
        """Wait until what was begun is durable."""
        if self._writer is None:
            return
        self._writer.join(_BEAT_EVERY_S)
        while self._writer.is_alive():
            self._sink.emit(Beat(time.time_ns(), "checkpoint"))  # a slow disk is no hang
            self._writer.join(_BEAT_EVERY_S)
        self._writer = None

    def newest(self) -> tuple[Path | None, list[tuple[Path, str]]]:
        """Return the newest checkpoint whose checksums hold, and the damaged ones that were passed over."""
        loadable = find_loadable(self.folder)
        with contextlib.suppress(OSError):  # `latest` is for people; the choice above does not need it
            repair_latest(self.folder, loadable)
        return (loadable.found.path if loadable.found else None), list(loadable.damaged)

    def load(self, name: str) -> Restored:
        """Return what a verified checkpoint holds."""
        path = self.folder / name
        values = read_values(path)
        if "trainee" not in values:
            raise TrainingError(
                code="state-mismatch",
                what=f"The checkpoint holds the files of a {values.get('follows')} trainer, not of run.prepare.",
                where=str(path),
                next_step="Resume with the script that wrote it, or start a new run.",
            )
        ranks = [file.read_bytes() for file in sorted((path / RANKS).iterdir())]
        snapshot = Snapshot(arrays=self._read_arrays(path / ARRAYS), values=values["trainee"])
        restored = Restored(values["run"]["step"], path, snapshot, values["run"], ranks)
        self._last_step = restored.step
        return restored

    def _start(self, step: int, began_s: float, place: Callable[[], SavedCheckpoint]) -> None:
        self.wait()
        self._last_s = time.monotonic()
        self._last_step = step
        self.failed = False
        stall_s = self._last_s - began_s
        self._writer = start_thread(lambda: self._write(step, stall_s, place), "gscalar-save")

    def _write(self, step: int, stall_s: float, place: Callable[[], SavedCheckpoint]) -> None:
        began = time.monotonic()
        self._sink.emit(Beat(time.time_ns(), "checkpoint"))
        try:
            saved = place()
        except Exception as error:  # noqa: BLE001 - a thread's border: a full disk must not end the training
            self.failed = True
            self._sink.emit(CheckpointFailed(time.time_ns(), step, f"{type(error).__name__}: {error}"))
            return
        name = f"{self.folder.name}/{saved.path.name}"
        write_s = time.monotonic() - began
        event = CheckpointSaved(time.time_ns(), step, name, saved.num_bytes, saved.sha256, stall_s, write_s)
        self._sink.emit(event)
        self._sink.seal("checkpoint")
        self._tell_removed(saved.replaced, "replaced")
        self._prune(saved)

    def _prune(self, saved: SavedCheckpoint) -> None:
        try:
            removed = prune_checkpoints(self.folder, self._policy.keep, trusted=saved)
        except OSError as error:
            self._sink.emit(CheckpointFailed(time.time_ns(), self._last_step, f"pruning failed: {error}"))
            return
        self._tell_removed(removed, "pruned")

    def _tell_removed(self, paths: Iterable[Path], reason: str) -> None:
        for path in paths:
            step = int(path.name.removeprefix("step-").partition(".")[0])
            self._sink.emit(CheckpointRemoved(time.time_ns(), step, f"{self.folder.name}/{path.name}", reason))


def _write_rest(draft: Path, values: dict[str, Any], ranks: list[bytes]) -> None:
    write_values(draft, values)
    (draft / RANKS).mkdir()
    for rank, blob in enumerate(ranks):
        (draft / RANKS / f"rank-{rank:05d}").write_bytes(blob)
