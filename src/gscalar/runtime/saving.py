"""The state of a run to a checkpoint and back, on all ranks together."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from gscalar.model.events import Resumed
from gscalar.runtime.checkpointing import Checkpointer
from gscalar.runtime.framework import Group, Tools, Trainee
from gscalar.runtime.recording import Recording
from gscalar.runtime.state import RunState

BEGINS_ANEW: Final = (
    "No checkpoint was there to go on from: this attempt begins anew. With --set checkpoint.every_steps=N one is "
    "written every N steps."
)


class Saving:
    """Takes and restores the checkpoints of one trainee. Every rank makes the same calls."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        trainee: Trainee,
        group: Group,
        tools: Tools,
        recording: Recording,
        *,
        rank: int,
        world: int,
    ) -> None:
        self.checkpointer = checkpointer
        self._trainee = trainee
        self._group = group
        self._tools = tools
        self._recording = recording
        self._rank = rank
        self._world = world
        self._restored_ranks: list[bytes] = []
        self._random_ready = False

    def restore(self, state: RunState, *, again: bool = False) -> None:
        """Put the newest checkpoint that loads into the trainee and the state; none is a fresh start.

        That is noted where this is not the run's first attempt (`again`).
        """
        name = ""
        if self._rank == 0:
            found, damaged = self.checkpointer.newest()
            name = found.name if found is not None else ""
            for bad, reason in damaged:
                text = f"Checkpoint {bad.name} is damaged ({reason}) and was passed over."
                self._recording.note(text, "checkpoint-damaged")
        # Rank 0 alone chooses: ranks that read the folder at different times could differ.
        name = self._group.broadcast(name.encode()).decode()
        if not name:
            if again and self._rank == 0:
                self._recording.note(BEGINS_ANEW, "begins-anew")
            return
        restored = self.checkpointer.load(name)
        self._trainee.restore(restored.snapshot)
        state.restore(restored.run_state)
        self._restored_ranks = restored.ranks
        path = f"{self.checkpointer.folder.name}/{name}"
        self._recording.emit(Resumed(time.time_ns(), restored.step, path))

    def ready_random(self, state: RunState, seed: int, deterministic: bool) -> None:
        """Before the first batch: this rank's random numbers as they were, or its own fresh ones.

        In another world the ranks that were there before keep theirs, and new ones begin with numbers that
        follow from seed, rank and step.
        """
        if self._random_ready:
            return
        self._random_ready = True
        ranks, self._restored_ranks = self._restored_ranks, []
        if self._rank < len(ranks):
            random, state.data_states = msgspec.msgpack.decode(ranks[self._rank])
            self._tools.set_random_state(random)
        else:
            self._tools.seed(mixed_seed(seed, self._rank, state.step), deterministic)
        if ranks and len(ranks) != self._world:
            # All ranks have read the same of a stream, and a new one needs a place in it too.
            _, state.data_states = msgspec.msgpack.decode(ranks[0])

    def save(self, state: RunState) -> None:
        """Take a checkpoint of the step that is done; the write goes on in the background."""
        if self.checkpointer.is_saved(state.step):
            return
        began_s = time.monotonic()
        self._recording.beat("checkpoint", now=True)
        own: tuple[bytes, dict[str, Any]] = (self._tools.random_state(), state.data_states)
        blobs = self._group.gather(msgspec.msgpack.encode(own))
        if self._rank == 0:
            self.checkpointer.save(state.step, self._trainee.snapshot(), state.to_plain(), blobs, began_s)
        else:
            self.checkpointer.skip(state.step)

    def save_last(self, state: RunState) -> None:
        """Take the checkpoint of a loop's end; where the one of this step has failed, try once more."""
        self.checkpointer.wait()
        # All ranks take it or none: only rank 0 writes, and knows.
        if self._group.start_sum([float(self.checkpointer.failed)])()[0] > 0:
            self.checkpointer.forget()
        self.save(state)

    def settle(self) -> None:
        """Wait until rank 0 has committed, on all ranks: a launcher may kill the rest when one leaves."""
        self.checkpointer.wait()
        self._group.start_sum([0.0])()


def mixed_seed(seed: int, rank: int, step: int) -> int:
    """Return a 63-bit seed; the multipliers are odd, so that two ranks never share one."""
    return (seed * 0x9E3779B97F4A7C15 + rank * 0xBF58476D1CE4E5B9 + step * 0x94D049BB133111EB + 1) % 2**63
