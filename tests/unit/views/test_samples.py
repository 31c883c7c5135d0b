"""How often each sample of an epoch was consumed, read from the records of all attempts and ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gscalar.base.errors import Damaged
from gscalar.model.events import Event, Resumed, SampleOrder, Step
from gscalar.model.shares import Share, pack_shares
from gscalar.runtime.cursor import Permutation
from gscalar.state.home import Home, RunFolder
from gscalar.state.records import RecordWriter, own_header
from gscalar.views.samples import consumed_samples

STRAIGHT = SampleOrder(1, data=0, size=8, seed=7, shuffle=False, listed=False, global_batch=4)
SHUFFLED = SampleOrder(1, data=0, size=8, seed=7, shuffle=True, listed=False, global_batch=4)


@pytest.fixture
def folder(home: Path) -> RunFolder:
    made = Home(home).run("7k2m9qx4tz0a")
    made.create()
    return made


def write(folder: RunFolder, attempt: int, rank: int, *told: Event) -> None:
    header = own_header("7k2m9qx4tz0a", "worker", attempt=attempt, rank=rank, world=2)
    writer = RecordWriter(folder.worker_record(attempt, rank), header)
    for event in told:
        writer.emit(event)
    writer.close()


def step(number: int, *shares: tuple[int, int, int, int]) -> Step:
    packed = pack_shares(Share(*share) for share in shares)
    return Step(number, 2, 0.1, 4.0, 0.0, 0.1, 1.0, shares=packed)


def test_all_ranks_and_micro_batches_of_the_epoch_count(folder: RunFolder) -> None:
    write(folder, 0, 0, STRAIGHT, step(1, (0, 0, 0, 1), (0, 0, 2, 4)), step(2, (0, 1, 0, 2)))
    write(folder, 0, 1, STRAIGHT, step(1, (0, 0, 1, 2)), step(2))
    assert consumed_samples(folder, 0) == Counter([0, 1, 2, 3])
    assert consumed_samples(folder, 1) == Counter([0, 1])
    assert consumed_samples(folder, 2) == Counter()


def test_positions_are_samples_of_the_shuffled_order(folder: RunFolder) -> None:
    write(folder, 0, 0, SHUFFLED, step(1, (0, 3, 2, 6)))
    assert consumed_samples(folder, 3) == Counter(Permutation(8, 7, 3).at(np.arange(2, 6)).tolist())


def test_a_second_data_object_is_counted_apart(folder: RunFolder) -> None:
    other = SampleOrder(1, data=1, size=3, seed=7, shuffle=False, listed=False, global_batch=1)
    write(folder, 0, 0, STRAIGHT, other, step(1, (0, 0, 0, 1), (1, 0, 2, 3)))
    assert consumed_samples(folder, 0, data=1) == Counter([2])


ATTEMPTS: dict[str, tuple[list[list[Event]], list[int]]] = {
    "what was done after the checkpoint is done again": (
        [[step(1, (0, 0, 0, 2)), step(2, (0, 0, 2, 4)), step(3, (0, 0, 4, 6))],
         [Resumed(1, 1, "c"), step(2, (0, 0, 2, 4))]],
        [0, 1, 2, 3],
    ),
    "a third attempt goes back further than the second": (
        [[step(1, (0, 0, 0, 2)), step(2, (0, 0, 2, 4))],
         [Resumed(1, 2, "c"), step(3, (0, 0, 4, 6))],
         [Resumed(1, 1, "c"), step(2, (0, 0, 2, 3))]],
        [0, 1, 2],
    ),
    "an attempt that did no step has still gone back": (
        [[step(1, (0, 0, 0, 2)), step(2, (0, 0, 2, 4))], [Resumed(1, 1, "c")]],
        [0, 1],
    ),
    "an attempt that failed before it knew where to go on changes nothing": (
        [[step(1, (0, 0, 0, 2)), step(2, (0, 0, 2, 4))], []],
        [0, 1, 2, 3],
    ),
    "an attempt without a checkpoint begins anew": (
        [[step(1, (0, 0, 0, 2)), step(2, (0, 0, 2, 4))], [step(1, (0, 0, 0, 2))]],
        [0, 1],
    ),
    "a step that is done twice is counted twice": (
        [[step(1, (0, 0, 0, 2)), step(2, (0, 0, 0, 2))]],
        [0, 0, 1, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", ATTEMPTS)
def test_of_several_attempts_what_led_to_the_last_one_counts(sentence: str, folder: RunFolder) -> None:
    attempts, want = ATTEMPTS[sentence]
    for attempt, told in enumerate(attempts):
        write(folder, attempt, 0, STRAIGHT, *told)
    assert consumed_samples(folder, 0) == Counter(want)


def test_a_damaged_record_is_refused_since_the_count_would_not_be_true(folder: RunFolder) -> None:
    write(folder, 0, 0, STRAIGHT, step(1, (0, 0, 0, 2)), step(2, (0, 0, 2, 4)))
    path = folder.worker_record(0, 0)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(Damaged) as caught:
        consumed_samples(folder, 0)
    assert caught.value.code == "record-damaged"
