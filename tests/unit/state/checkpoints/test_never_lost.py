"""Whatever is saved, pruned, cut short and damaged in whatever order: the newest that loads is not lost.

A model holds what was committed and not damaged since. After every operation, however it ended, the
newest loadable checkpoint is the model's newest or one that the operation itself committed, with the
content that was written for it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gscalar.state.checkpoints import (
    find_loadable,
    prune_checkpoints,
    read_latest,
    repair_latest,
    save_checkpoint,
    verify_checkpoint,
)
from gscalar.state.checkpoints.layout import parse_place
from gscalar.testing.disk_faults import Crash, disk_faults

# A save makes about 20 calls and a prune about 30: larger numbers let the operation end.
CALLS = st.none() | st.integers(0, 30)
KINDS = st.sampled_from(["crash", "fail", "full"])


class CheckpointsFolder(RuleBasedStateMachine):
    """One folder of checkpoints, its writers that come and go, and rot."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.sound: dict[str, int] = {}  # name: the number written into it
        self.writes = 0

    def teardown(self) -> None:
        self.temporary.cleanup()

    def newest(self) -> str | None:
        return max(self.sound, key=lambda name: parse_place(name) or (0, 0), default=None)

    @rule(step=st.integers(1, 4), at=CALLS, kind=KINDS)
    def save(self, step: int, at: int | None, kind: str) -> None:
        self.writes += 1
        before, names = self.newest(), set(self.sound)
        try:
            with disk_faults(at, kind):
                save_checkpoint(self.folder, step, {}, self.write)
        except (Crash, OSError):
            pass
        for path in self.folder.glob("step-*"):
            if path.name not in names and (path / "number").read_text() == str(self.writes):
                self.sound[path.name] = self.writes
        self.forget_what_is_gone(before, replaced_step=step)

    def write(self, draft: Path) -> None:
        (draft / "number").write_text(str(self.writes))

    @rule(keep=st.integers(1, 3), at=CALLS, kind=KINDS)
    def prune(self, keep: int, at: int | None, kind: str) -> None:
        before = self.newest()
        try:
            with disk_faults(at, kind):
                prune_checkpoints(self.folder, keep)
        except (Crash, OSError):
            pass
        self.forget_what_is_gone(before, replaced_step=None)

    def forget_what_is_gone(self, before: str | None, replaced_step: int | None) -> None:
        """Take away what the operation removed; it may not have removed what was the newest before it."""
        for name in [name for name in self.sound if not (self.folder / name).exists()]:
            place = parse_place(name)
            assert place is not None
            replaced = place.step == replaced_step and any(
                (other := parse_place(each)) is not None and other.step == place.step and other > place
                for each in self.sound
            )
            assert name != before or replaced, f"{name} was lost"
            del self.sound[name]

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        names = sorted(path.name for path in self.folder.glob("step-*"))
        if not names:
            return
        # The newest is the one that matters most; sorted by name is sorted by age here.
        name = data.draw(st.sampled_from([names[-1], *names]))
        for path in (self.folder / name).iterdir():
            path.write_bytes(path.read_bytes() + b"!")
        self.sound.pop(name, None)
        # The next attempt begins by looking for what loads, and puts `latest` right.
        repair_latest(self.folder, find_loadable(self.folder))

    @invariant()
    def the_newest_sound_one_is_found(self) -> None:
        found = find_loadable(self.folder).found
        assert (found.path.name if found else None) == self.newest()
        if found:
            assert (found.path / "number").read_text() == str(self.sound[found.path.name])

    @invariant()
    def latest_names_one_that_loads(self) -> None:
        if (self.folder / "latest").exists():
            path = read_latest(self.folder)
            assert path is not None
            verify_checkpoint(path)


TestNeverLost = CheckpointsFolder.TestCase
TestNeverLost.settings = settings(max_examples=60, stateful_step_count=12)
