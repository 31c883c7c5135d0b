"""The user's data objects: taken as they are, dealt over ranks, resumed anywhere, and drawn by the batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gscalar.base.errors import ScalarError
from gscalar.runtime.cursor import Cursor

if TYPE_CHECKING:
    import torch

    from gscalar.runtime.framework import Batch, Feed

pytestmark = pytest.mark.torch
SEED = 7
Make = Callable[..., "Feed"]


class Numbers:
    """A map-style data set: sample i is i, with noise drawn from Python and torch where it is asked for."""

    def __init__(self, size: int = 22, *, noisy: bool = False) -> None:
        self.size = size
        self.noisy = noisy

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        import torch

        noise = random.random() + float(torch.rand(())) if self.noisy else 0.0
        return torch.tensor([float(index), noise])


def loader(dataset: Any, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, **{"batch_size": 3, "shuffle": True, **options})


@pytest.fixture
def feed(place: Any) -> Make:
    from gscalar.frameworks.torch.adapter import TorchFramework

    def make(data: Any, rank: int = 0, world: int = 1, **options: Any) -> Any:
        return TorchFramework().feed(data, place(rank, world), SEED, **options)

    return make


def values(batch: Batch) -> list[float]:
    """Return the samples of a batch that count."""
    return [float(row[0]) for row in batch.value][: batch.num_samples]


def take(of: Feed, count: int, cursor: Cursor | None = None, accumulate: int = 1, state: Any = None) -> list[Batch]:
    batches = of.batches(cursor or Cursor(), state, accumulate)
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


def an_epoch(of: Feed) -> list[Batch]:
    epoch = []
    for batch in of.batches(Cursor(), None, 1):
        epoch.append(batch)
        if batch.ends_epoch:
            break
    return epoch


def dealt(make: Make, data: Callable[[], Any], world: int) -> list[float]:
    """Return what an epoch of all ranks is, in the global order."""
    ranks = [an_epoch(make(data(), rank, world)) for rank in range(world)]
    return [value for shares in zip(*ranks, strict=True) for share in shares for value in values(share)]


# ---- the loader is kept ---------------------------------------------------------------------------


def test_collate_batch_size_and_pinning_are_the_users(feed: Make) -> None:
    import torch

    def collate(samples: list[torch.Tensor]) -> dict[str, Any]:
        return {"x": torch.stack(samples), "names": [str(int(sample[0])) for sample in samples]}

    batches = take(feed(loader(Numbers(), collate_fn=collate, batch_size=5, shuffle=False)), 5)
    assert [batch.value["names"] for batch in batches][-1] == ["20", "21"]
    assert [batch.num_samples for batch in batches] == [5, 5, 5, 5, 2]
    assert batches[0].value["x"].shape == (5, 2)


def test_a_data_set_that_fetches_many_at_once_is_asked_for_many_at_once(feed: Make) -> None:
    asked: list[list[int]] = []

    class Many(Numbers):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            asked.append(list(indices))
            return [self[index] for index in indices]

    got = take(feed(loader(Many(), shuffle=False)), 2)
    assert asked == [[0, 1, 2], [3, 4, 5]]
    assert values(got[1]) == [3.0, 4.0, 5.0]


def test_shuffled_data_is_in_an_order_of_the_seed_that_no_world_changes(feed: Make) -> None:
    orders = [dealt(feed, lambda: loader(Numbers()), world) for world in (1, 2, 3)]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(22))
    assert orders[0] != sorted(orders[0])
    assert dealt(feed, lambda: loader(Numbers(), shuffle=False), 2) == list(range(22))


def test_what_is_left_over_is_dropped_where_the_loader_drops_it(feed: Make) -> None:
    for world, want in ((1, 21), (2, 18)):
        assert len(dealt(feed, lambda: loader(Numbers(), drop_last=True), world)) == want
    with pytest.raises(ScalarError) as caught:
        feed(loader(Numbers(5), drop_last=True), 0, 2)
    assert caught.value.code == "data-too-small"


def test_a_sampler_that_sharded_by_itself_is_replaced(feed: Make) -> None:
    from torch.utils.data import DistributedSampler

    def data() -> Any:
        dataset = Numbers()
        sampler = DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=True)
        return loader(dataset, sampler=sampler, shuffle=None)

    assert sorted(dealt(feed, data, 2)) == list(range(22))
    assert dealt(feed, data, 2) == dealt(feed, lambda: loader(Numbers()), 1)


class Odd:
    """A sampler of the user's own: the odd samples, in an order that it draws and that follows its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        odd = list(range(1, 22, 2))
        random.shuffle(odd)
        return iter([self.epoch * 0 + index for index in odd])

    def __len__(self) -> int:
        return 11


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "a sampler": lambda: {"sampler": Odd(), "shuffle": None},
    "torch's weighted one": lambda: {"sampler": weighted(), "shuffle": None},
    "a subset": lambda: {"sampler": subset(), "shuffle": None},
    "a batch sampler": lambda: {"batch_sampler": Lists(), "batch_size": 1, "shuffle": None},
}


def weighted() -> Any:
    import torch

    return torch.utils.data.WeightedRandomSampler(torch.ones(22).tolist(), 13, generator=torch.Generator())


def subset() -> Any:
    import torch

    return torch.utils.data.SubsetRandomSampler(list(range(12)), generator=torch.Generator())


class Lists:
    """A batch sampler: lists of different lengths, in an order that it draws."""

    def __iter__(self) -> Iterator[list[int]]:
        lists = [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9], [10]]
        random.shuffle(lists)
        return iter(lists)

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("case", SAMPLERS)
def test_an_order_of_the_users_own_is_dealt_and_resumed(case: str, feed: Make) -> None:
    def data() -> Any:
        return loader(Numbers(), **SAMPLERS[case]())

    orders = [dealt(feed, data, world) for world in (1, 2, 3)]
    assert orders[0] == orders[1] == orders[2]
    state = random.getstate()
    whole = take(feed(data(), 1, 2), 8)
    assert random.getstate() == state, "listing a sampler is not the training's business"
    for done in range(1, 7):
        after = take(feed(data(), 1, 2), 1, whole[done - 1].after)[0]
        assert values(after) == values(whole[done])
        assert after.after == whole[done].after
    first, second = ([values(batch) for batch in whole[:start]] for start in (2, 4))
    assert first != second


def test_without_automatic_batching_a_sample_of_the_data_set_is_a_batch(feed: Make) -> None:
    import torch

    class Ready(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((1 + index % 3, 2), float(index))

    batches = take(feed(loader(Ready(9), batch_size=None, shuffle=False), 0, 2), 5)
    assert [float(batch.value[0, 0]) for batch in batches] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert [batch.num_samples for batch in batches] == [1, 3, 2, 1, 3]
    assert {batch.group_samples for batch in batches} == {None}, "only the data set knows"


# ---- resume and random numbers --------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_every_place_of_two_epochs_is_resumed_with_the_same_samples_and_draws(
    world: int, accumulate: int, feed: Make
) -> None:
    import torch

    rank = world - 1
    whole = take(feed(loader(Numbers(noisy=True)), rank, world), 14, accumulate=accumulate)
    borders = [i for i in range(1, 14) if i % accumulate == 0 or whole[i - 1].ends_epoch]
    for done in borders:
        (again,) = take(feed(loader(Numbers(noisy=True)), rank, world), 1, whole[done - 1].after, accumulate)
        assert torch.equal(again.value, whole[done].value)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_draws_of_the_data_set_do_not_depend_on_data_workers_and_leave_the_training_alone(
    num_workers: int, feed: Make
) -> None:
    import torch

    torch.manual_seed(3)
    random.seed(3)
    plain = take(feed(loader(Numbers(noisy=True))), 9)
    state = (random.getstate(), torch.get_rng_state().tolist())
    with_workers = take(feed(loader(Numbers(noisy=True), num_workers=num_workers)), 9)
    assert (random.getstate(), torch.get_rng_state().tolist()) == state
    for got, want in zip(with_workers, plain, strict=True):
        assert torch.equal(got.value, want.value)
    noise = torch.cat([batch.value[:, 1] for batch in plain])
    assert len(noise.unique()) == len(noise), "no two samples draw the same"


def test_ranks_and_epochs_draw_differently(feed: Make) -> None:
    class Same(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            return super().__getitem__(0)

    ranks = [take(feed(loader(Same(noisy=True), shuffle=False), rank, 2), 8) for rank in range(2)]
    noise = [float(batch.value[0, 1]) for batches in ranks for batch in batches]
    assert len(set(noise)) == len(noise)


# ---- another world --------------------------------------------------------------------------------


WORLDS: dict[str, Callable[[], dict[str, Any]]] = {"torch's own order": lambda: {"batch_size": 3}, **SAMPLERS}


@pytest.mark.parametrize("case", WORLDS)
def test_the_global_batches_stay_where_the_world_changes(case: str, feed: Make) -> None:
    def data() -> Any:
        return loader(Numbers(), **WORLDS[case]())

    def play(world: int, cursor: Cursor, count: int) -> tuple[list[tuple[int, list[float]]], Cursor]:
        """Return the samples of the next global batches, by the micro-batches' counter, and the place after."""
        feeds = [feed(data(), rank, world, global_batch=fixed).batches(cursor, None, 1) for rank in range(world)]
        found: dict[int, list[float]] = {}
        while cursor.batches < start + count:
            number = cursor.batches
            shares = [next(batches) for batches in feeds]
            cursor = shares[0].after
            met = [value for share in shares for value in values(share)]
            found.setdefault(number, []).extend(met)
        return sorted(found.items()), cursor

    fixed = feed(data(), 0, 2).order.global_batch
    start = 0
    want, _ = play(2, Cursor(), 9)
    got, cursor = play(2, Cursor(), 1)
    for world, count in ((1, 2), (3, 2), (2, 1), (4, 3)):
        start = cursor.batches
        more, cursor = play(world, cursor, count)
        got += more
    assert got == want


# ---- evaluation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_evaluation_meets_every_sample_once_and_draws_the_same_every_time(world: int, feed: Make) -> None:
    import torch

    def evaluate() -> list[torch.Tensor]:
        data = loader(Numbers(noisy=True))
        return [batch for rank in range(world) for batch in feed(data, rank, world).evaluation()]

    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = torch.cat(evaluate())
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(first[:, 0].tolist()) == list(range(22))
    assert torch.equal(first, torch.cat(evaluate()))


def test_an_evaluation_of_lists_and_of_whole_batches_meets_everything_once_too(feed: Make) -> None:
    for options in ({"batch_sampler": Lists(), "batch_size": 1, "shuffle": None}, {"batch_size": None}):
        data = loader(Numbers(11), **options)
        met = [batch for rank in range(2) for batch in feed(data, rank, 2).evaluation()]
        flat = [float(row[0]) for batch in met for row in (batch if batch.ndim == 2 else [batch])]
        assert sorted(flat) == list(range(11))


# ---- moving batches -------------------------------------------------------------------------------


def test_the_number_of_samples_is_found_in_what_the_user_makes() -> None:
    from collections import namedtuple

    import torch

    from gscalar.frameworks.torch.data import leading_size, to_device

    x = torch.zeros(4, 2)
    Pair = namedtuple("Pair", "x y")
    for value in (x, (x, 1), [x], {"a": x}, Pair(x, 2), {"a": {"b": (x,)}}):
        assert leading_size(value) == 4
        moved = to_device(value, torch.device("meta"))
        assert type(moved) is type(value)
    assert leading_size("text") == 1
    assert to_device({"a": (x, "text")}, torch.device("meta"))["a"][0].is_meta
    assert to_device(x, torch.device("cpu")) is x
