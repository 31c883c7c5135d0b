"""Iterable data: read by every rank, dealt in turn, resumed by its own state or by reading again."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gscalar.base.errors import ScalarError
from gscalar.runtime.cursor import Cursor

if TYPE_CHECKING:
    from gscalar.runtime.framework import Batch, Feed

pytestmark = pytest.mark.torch
Make = Callable[..., "Feed"]


class Stream:
    """Batches 0, 1, ... of one or two samples, each with a draw; `self.read` counts what was read."""

    def __init__(self, length: int = 7) -> None:
        self.length = length
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        import torch

        for index in range(self.length):
            self.read += 1
            yield torch.tensor([[float(index), random.random()]] * (1 + index % 2))


class Resumable(Stream):
    """The same with a place that can be told and taken back; its state is more than numbers."""

    def __init__(self, length: int = 7) -> None:
        super().__init__(length)
        self.at = self.resume_at = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.resume_at = self.resume_at, 0
        for batch in itertools.islice(super().__iter__(), self.at, None):
            self.at += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        import torch

        return {"at": torch.tensor(self.at), "random": random.getstate(), "raw": b"\x00\x01", "names": ["a"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.setstate(state["random"])  # refuses lists where there were tuples
        assert state["raw"] == b"\x00\x01"
        self.resume_at = int(state["at"])


@pytest.fixture
def feed(place: Any) -> Make:
    from gscalar.frameworks.torch.adapter import TorchFramework

    def make(data: Any, rank: int = 0, world: int = 1, **options: Any) -> Any:
        return TorchFramework().feed(data, place(rank, world), 7, **options)

    return make


def take(of: Feed, count: int, after: Batch | None = None) -> list[Batch]:
    cursor, state = (after.after, after.data_state) if after is not None else (Cursor(), None)
    return list(itertools.islice(of.batches(cursor, state, 1), count))


def number(batch: Batch) -> int:
    return int(batch.value[0, 0])


def test_ranks_take_turns_and_the_last_round_is_filled_without_weight(feed: Make) -> None:
    ranks = [take(feed(Stream(), rank, 3), 4) for rank in range(3)]
    assert [[number(batch) for batch in batches] for batches in ranks] == [[0, 3, 6, 0], [1, 4, 6, 1], [2, 5, 6, 2]]
    assert [[batch.num_samples for batch in batches] for batches in ranks] == [[1, 2, 1, 1], [2, 1, 0, 2], [1, 2, 0, 1]]
    for batches in ranks:
        assert [batch.ends_epoch for batch in batches] == [False, False, True, False]
        assert [batch.after for batch in batches[1:]] == [Cursor(0, 6, 2), Cursor(1, 0, 3), Cursor(1, 3, 4)]
        assert {batch.group_samples for batch in batches} == {None}


def test_a_stream_that_shards_itself_is_read_as_it_is(feed: Make) -> None:
    assert [number(batch) for batch in take(feed(Stream(), 1, 3, sharded=True), 4)] == [0, 1, 2, 3]


def test_a_place_that_can_be_told_is_taken_back_without_reading_again(feed: Make) -> None:
    import torch

    whole = take(feed(Resumable(), 1, 2), 7)
    for done in (1, 2, 3, 5, 6):
        stream = Resumable()
        (again,) = take(feed(stream, 1, 2), 1, whole[done - 1])
        assert torch.equal(again.value[:, 0], whole[done].value[:, 0])
        assert again.after == whole[done].after


def test_the_state_of_a_batch_is_the_one_after_it_although_the_next_is_read_already(feed: Make) -> None:
    for world in (1, 2):
        batches = take(feed(Resumable(), 0, world), 3)
        assert [batch.data_state["at"]["$tensor"] for batch in batches] == [world, 2 * world, 3 * world]


@pytest.mark.parametrize("where", ["the data set's state is used", "data workers keep it out of reach"])
def test_a_loader_over_a_data_set_with_a_state(where: str, feed: Make) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Iterable(Resumable, IterableDataset[Any]):
        pass

    reachable = where == "the data set's state is used"
    data = DataLoader(Iterable(), batch_size=None, num_workers=0 if reachable else 1)
    (first,) = take(feed(data), 1) if reachable else [None]
    if reachable:
        assert first is not None
        assert first.data_state["at"]["$tensor"] == 1
    else:
        from gscalar.frameworks.torch.streams import _state_holder

        assert _state_holder(data) is None


def test_without_a_state_it_is_read_again_with_a_warning_and_the_same_draws(feed: Make) -> None:
    import torch

    whole = take(feed(Stream(), 1, 2), 7)
    for done in (1, 3, 6):
        stream = Stream()
        again = feed(stream, 1, 2)
        if whole[done - 1].after.sample:
            with pytest.warns(UserWarning, match="Stream has no state_dict"):
                batches = take(again, 2, whole[done - 1])
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                batches = take(again, 2, whole[done - 1])
        for got, want in zip(batches, whole[done:], strict=False):
            assert torch.equal(got.value, want.value)
            assert got.after == want.after


def test_reading_ahead_and_reading_again_leave_the_trainings_random_numbers_alone(feed: Make) -> None:
    random.seed(3)
    state = random.getstate()
    take(feed(Stream(), 0, 2), 5)
    list(feed(Stream(), 0, 2).evaluation())
    assert random.getstate() == state


def test_the_epoch_is_told_to_who_wants_it(feed: Make) -> None:
    told: list[int] = []

    class Told(Stream):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    take(feed(Told(2)), 5)
    assert told == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_data_workers_draw_by_the_epoch_and_not_by_how_often_the_loader_was_begun(feed: Make) -> None:
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Drawing(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(3):
                yield torch.rand(1, 2)

    def data() -> Any:
        return DataLoader(Drawing(), batch_size=None, num_workers=1)

    torch.manual_seed(3)
    state = torch.get_rng_state()
    whole = take(feed(data()), 6)
    assert torch.equal(torch.get_rng_state(), state)
    again = take(feed(data()), 3, whole[2])
    assert [batch.value.tolist() for batch in again] == [batch.value.tolist() for batch in whole[3:]]
    assert whole[0].value.tolist() != whole[3].value.tolist()


def test_a_stream_that_is_empty_or_can_be_read_once_only_says_so(feed: Make) -> None:
    with pytest.raises(ScalarError, match="gave no batch") as caught:
        take(feed([]), 1)
    assert caught.value.code == "data-too-small"
    once = feed(iter([1, 2]))
    with pytest.raises(ScalarError, match="iterated twice"):
        take(once, 3)


def test_a_state_that_no_checkpoint_could_hold_is_refused_with_its_place(feed: Make) -> None:
    class Odd(Resumable):
        def state_dict(self) -> dict[str, Any]:
            return {"deep": [object()]}

    with pytest.raises(ScalarError, match=r"\['deep'\]\[0\]") as caught:
        take(feed(Odd()), 1)
    assert caught.value.code == "bad-state"


@pytest.mark.parametrize("world", [1, 3])
def test_an_evaluation_meets_every_batch_once(world: int, feed: Make) -> None:
    met = [int(batch[0, 0]) for rank in range(world) for batch in feed(Stream(), rank, world).evaluation()]
    assert sorted(met) == list(range(7))


def test_the_digest_says_how_much_was_consumed(feed: Make) -> None:
    digests = {feed(Stream()).digest(cursor) for cursor in (Cursor(), Cursor(0, 1, 1), Cursor(1, 0, 7))}
    assert len(digests) == 3
    assert feed(Stream()).batches_left(Cursor()) is None


# ---- another world --------------------------------------------------------------------------------


def positions(batches: list[Batch]) -> list[int]:
    return [place for batch in batches for share in batch.shares for place in range(share.begin, share.end)]


@pytest.mark.parametrize("resumable", [True, False], ids=["its place is taken back", "it is read again"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (4, 2), (3, 2), (1, 3)])
@pytest.mark.filterwarnings("ignore:Stream has no state_dict")
def test_a_stream_goes_on_with_the_next_batch_in_another_world(
    before: int, after: int, resumable: bool, feed: Make
) -> None:
    import torch

    make = Resumable if resumable else Stream
    whole = {place: batch for batch, place in zip(take(feed(make(13)), 13), range(13), strict=True)}
    heads = [take(feed(make(13), rank, before, global_batch=before), 2) for rank in range(before)]
    tails = []
    for rank in range(after):
        source = feed(make(13), rank, after, global_batch=before)
        tail = []
        # A rank that was not there before has the place of rank 0.
        for batch in source.batches(heads[0][1].after, heads[0][1].data_state, 1):
            tail.append(batch)
            if batch.ends_epoch:
                break
        tails.append(tail)
    met = [place for batches in [*heads, *tails] for place in positions(batches)]
    assert sorted(met) == list(range(13))
    for batch in itertools.chain(*tails):
        for place in positions([batch]):
            assert number(batch) == place
            if not resumable:  # what is drawn is the batch's own, in any world
                assert torch.equal(batch.value, whole[place].value)
    assert len({tuple(batch.after for batch in batches) for batches in tails}) == 1
    assert tails[0][-1].after == Cursor(1, 0, -(-13 // before))


def test_a_global_batch_of_a_stream_is_walked_in_pieces_that_one_step_holds(feed: Make) -> None:
    batches = take(feed(Stream(9), 0, 1, global_batch=4), 10)
    assert {batch.step_size for batch in batches} == {4}
    assert [batch.after.batches for batch in batches] == [0, 0, 0, 1, 1, 1, 1, 2, 3, 3]
    assert [batch.ends_epoch for batch in batches] == [False] * 8 + [True, False]
    two = take(feed(Stream(9), 1, 3, global_batch=4), 4)
    assert [batch.num_samples for batch in two] == [2, 0, 2, 0]
    inside = feed(Stream(9), 0, 1, global_batch=4).batches(Cursor(0, 3, 0), None, 2)
    with pytest.warns(UserWarning, match="first 3 batches"):
        sizes = [batch.step_size for batch in itertools.islice(inside, 6)]
    assert sizes == [5, 5, 5, 5, 5, 8]


def test_a_stream_that_shards_itself_is_counted_over_all_ranks_and_refused_in_another_world(feed: Make) -> None:
    batches = take(feed(Stream(), 1, 3, sharded=True), 2)
    assert [batch.after.sample for batch in batches] == [3, 6]
    assert positions(batches) == [1, 4]
    with pytest.warns(UserWarning, match="first 2 batches"):
        (third,) = take(feed(Stream(), 1, 3, sharded=True, global_batch=3), 1, batches[1])
    assert number(third) == 2
    with pytest.raises(ScalarError, match="workers: 3") as caught:
        feed(Stream(), 0, 2, sharded=True, global_batch=3)
    assert caught.value.code == "world-changed"


def test_what_is_known_of_a_streams_order(feed: Make) -> None:
    from gscalar.runtime.cursor import OrderFacts

    assert feed(Stream(), 0, 2, global_batch=3).order == OrderFacts(0, 7, False, False, 3, 1, 2)
