"""What each rank begins with when a run goes on, in the same world and in another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gscalar.runtime.checkpointing import Restored
from gscalar.runtime.framework import Snapshot
from gscalar.runtime.saving import Saving, mixed_seed
from gscalar.runtime.state import RunState


class OneCheckpoint:
    """A store whose newest checkpoint was written by ranks that each had a blob."""

    folder = Path("checkpoints")

    def __init__(self, world: int) -> None:
        state = RunState()
        state.step = 9
        blobs = [msgspec.msgpack.encode((f"random {rank}".encode(), {"data0": {"of": rank}})) for rank in range(world)]
        self.restored = Restored(9, Path("c"), Snapshot({}, {}), state.to_plain(), blobs)

    def newest(self) -> tuple[Path, list[Any]]:
        return Path("checkpoints/c"), []

    def load(self, name: str) -> Restored:
        return self.restored


class NoCheckpoint(OneCheckpoint):
    """A store without any checkpoint, as all ranks agree."""

    def newest(self) -> tuple[None, list[Any]]:  # type: ignore[override]
        return None, []


class Silent:
    def broadcast(self, payload: bytes) -> bytes:
        return b""


class Alone:
    def broadcast(self, payload: bytes) -> bytes:
        return payload or b"c"

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        return lambda: list(values)


@dataclass
class Heard:
    """Takes the place of tools, trainee and recording, and keeps what it is told."""

    random: bytes | None = None
    seed_given: int | None = None
    restored: list[Snapshot] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def set_random_state(self, blob: bytes) -> None:
        self.random = blob

    def seed(self, seed: int, deterministic: bool) -> None:
        self.seed_given = seed

    def restore(self, snapshot: Snapshot) -> None:
        self.restored.append(snapshot)

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def note(self, text: str, code: str) -> None:
        self.notes.append((code, text))


def begin(before: int, world: int, rank: int) -> tuple[Heard, RunState]:
    heard, state = Heard(), RunState()
    saving = Saving(OneCheckpoint(before), heard, Alone(), heard, heard, rank=rank, world=world)  # type: ignore[arg-type]
    saving.restore(state)
    saving.ready_random(state, 5, False)
    return heard, state


# (world before, world now, rank) -> (whose random numbers, whose places in iterable data); None: new ones
RANKS: dict[str, tuple[tuple[int, int, int], tuple[int | None, int]]] = {
    "the same world: everybody has what was its own": ((3, 3, 2), (2, 2)),
    "a smaller world: who stays keeps its random numbers": ((3, 2, 1), (1, 0)),
    "a larger world: who was there keeps them too": ((2, 3, 1), (1, 0)),
    "a larger world: who is new draws anew and has a place in the data": ((2, 3, 2), (None, 0)),
}


@pytest.mark.parametrize("sentence", RANKS)
def test_what_a_rank_begins_with(sentence: str) -> None:
    place, (random_of, data_of) = RANKS[sentence]
    heard, state = begin(*place)
    assert len(heard.restored) == 1
    assert state.data_states == {"data0": {"of": data_of}}
    if random_of is None:
        assert (heard.random, heard.seed_given) == (None, mixed_seed(5, place[2], 9))
    else:
        assert (heard.random, heard.seed_given) == (f"random {random_of}".encode(), None)


# (rank, again) -> whether it says that nothing was there
ANEW: dict[str, tuple[tuple[int, bool], bool]] = {
    "a first attempt says nothing": ((0, False), False),
    "the first rank of a second attempt says it for all": ((0, True), True),
    "another rank of it leaves that to the first": ((1, True), False),
}


@pytest.mark.parametrize("sentence", ANEW)
def test_an_attempt_without_a_checkpoint_is_noted_with_its_remedy(sentence: str) -> None:
    (rank, again), want = ANEW[sentence]
    heard = Heard()
    saving = Saving(NoCheckpoint(1), heard, Silent(), heard, heard, rank=rank, world=2)  # type: ignore[arg-type]
    saving.restore(RunState(), again=again)
    assert [code for code, _ in heard.notes] == (["begins-anew"] if want else [])
    assert all("--set checkpoint.every_steps=N" in text for _, text in heard.notes)
    assert (heard.restored, heard.events) == ([], [])


def test_new_ranks_of_all_steps_draw_differently() -> None:
    assert len({mixed_seed(5, rank, step) for rank in range(50) for step in range(50)}) == 2500
