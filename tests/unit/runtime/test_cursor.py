"""The sample order: a bijection, the same for every world, resumable at every place."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gscalar.base.errors import TrainingError
from gscalar.runtime.cursor import (
    MAX_SIZE,
    Cursor,
    MicroBatch,
    Order,
    OrderFacts,
    Permutation,
    eval_shard,
    order_digest,
    pieces_of,
    shard_of,
)

SEEDS = st.integers(0, 2**63 - 1)
GOLDEN_10 = [0, 7, 6, 2, 9, 4, 8, 1, 5, 3]
GOLDEN_100000 = [58615, 60537, 94097, 66289, 35041]


def order(size: int = 23, batch_size: int = 3, **changes: object) -> Order:
    return replace(Order(size=size, batch_size=batch_size, seed=7), **changes)  # type: ignore[arg-type]


def take(from_order: Order, count: int, cursor: Cursor | None = None) -> list[MicroBatch]:
    return list(itertools.islice(from_order.micro_batches(cursor or Cursor()), count))


def all_ranks(from_order: Order, count: int, cursor: Cursor | None = None) -> list[list[MicroBatch]]:
    """Return the first micro-batches, each as the list of its ranks' shares."""
    ranks = [take(replace(from_order, rank=rank), count, cursor) for rank in range(from_order.world)]
    return [list(shares) for shares in zip(*ranks, strict=True)]


def consumed(micro_batches: list[list[MicroBatch]]) -> list[int]:
    """Return the samples that count, in the global order."""
    shares = itertools.chain.from_iterable(micro_batches)
    return [index for share in shares for index in share.indices[: share.num_samples]]


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first, second)[0, 1])


# ---- the permutation ------------------------------------------------------------------------------


@given(st.integers(1, 5000), SEEDS, st.integers(0, 10**6))
def test_every_sample_has_exactly_one_position(size: int, seed: int, epoch: int) -> None:
    got = Permutation(size, seed, epoch).at(np.arange(size))
    assert sorted(got.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 4095, 4096, 4097, 2**16 - 1, 2**16, 2**16 + 1])
def test_sizes_at_the_borders_of_the_network_are_bijections(size: int) -> None:
    got = Permutation(size, 1, 2).at(np.arange(size))
    assert np.array_equal(np.sort(got), np.arange(size))


@pytest.mark.parametrize("size", [10**9 + 7, 2**31, 2**40 - 87, MAX_SIZE])
def test_positions_of_a_huge_data_set_stay_in_range_and_apart(size: int) -> None:
    positions = np.concatenate([np.arange(10_000), size - 1 - np.arange(10_000), size // 2 + np.arange(10_000)])
    got = Permutation(size, 3, 0).at(positions)
    assert got.min() >= 0
    assert got.max() < size
    assert len(np.unique(got)) == len(positions)


@given(st.integers(1, 10**6), SEEDS, st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_a_position_does_not_depend_on_the_others_asked(size: int, seed: int, raw: list[int]) -> None:
    positions = np.array(raw) % size
    permutation = Permutation(size, seed, 0)
    assert [int(permutation.at(positions[i : i + 1])[0]) for i in range(len(raw))] == permutation.at(positions).tolist()


def test_the_shape_of_the_positions_is_kept() -> None:
    got = Permutation(1000, 0, 0).at(np.arange(12).reshape(3, 4))
    assert got.shape == (3, 4)
    assert got.dtype == np.int64


def test_the_order_is_the_same_in_every_version() -> None:
    # A resumed run of an older version must go on in its order: change these only with a new name.
    assert Permutation(10, 0, 0).at(np.arange(10)).tolist() == GOLDEN_10
    assert Permutation(100_000, 1, 2).at(np.arange(5)).tolist() == GOLDEN_100000


def test_every_order_of_a_tiny_data_set_is_equally_likely() -> None:
    num_orders, expected = math.factorial(6), 20
    orders = (Permutation(6, seed, 0).at(np.arange(6)).tolist() for seed in range(expected * num_orders))
    counts = Counter(map(tuple, orders))
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    chi_square += expected * (num_orders - len(counts))
    assert abs(chi_square - (num_orders - 1)) < 5 * math.sqrt(2 * (num_orders - 1))


@pytest.mark.parametrize("size", [7, 100, 5000])
def test_a_sample_lands_at_every_position_equally_often(size: int) -> None:
    bins, trials = min(size, 50), 4000
    starts = [int(Permutation(size, seed, 0).at(np.array([size // 3]))[0]) for seed in range(trials)]
    counts = np.bincount(np.array(starts) * bins // size, minlength=bins)
    widths = np.bincount(np.arange(size) * bins // size, minlength=bins) / size * trials
    chi_square = float(((counts - widths) ** 2 / widths).sum())
    assert abs(chi_square - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))


def test_neighbouring_samples_do_not_stay_neighbours() -> None:
    got = Permutation(50_000, 5, 1).at(np.arange(50_000))
    bound = 4 / math.sqrt(50_000)
    for lag in (1, 2, 224, 225):  # 224 is the width of the network's low half
        assert abs(correlation(got[:-lag], got[lag:])) < bound, lag
    assert abs(correlation(got, np.arange(50_000))) < bound


@pytest.mark.parametrize("other", [Permutation(50_000, 6, 1), Permutation(50_000, 5, 2), Permutation(49_999, 5, 1)])
def test_another_seed_epoch_or_size_gives_an_unrelated_order(other: Permutation) -> None:
    positions = np.arange(49_999)
    first, second = Permutation(50_000, 5, 1).at(positions), other.at(positions)
    assert abs(correlation(first, second)) < 4 / math.sqrt(50_000)
    assert int((first == second).sum()) < 12  # one is expected, as between any two random orders


# ---- the shares ------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(1, 64))
def test_shares_are_contiguous_complete_and_as_even_as_possible(count: int, world: int) -> None:
    shares = [shard_of(count, world, rank) for rank in range(world)]
    assert [place for start, stop in shares for place in range(start, stop)] == list(range(count))
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60)
@given(st.integers(1, 8), st.integers(1, 7), st.integers(0, 200), st.booleans(), SEEDS)
def test_all_ranks_together_see_the_epoch_exactly_once(
    world: int, batch_size: int, more: int, shuffle: bool, seed: int
) -> None:
    size = world + more
    whole = Order(size=size, batch_size=batch_size, world=world, seed=seed, shuffle=shuffle)
    batches = all_ranks(whole, whole.batches_per_epoch)
    want = Permutation(size, seed, 0).at(np.arange(size)).tolist() if shuffle else list(range(size))
    assert consumed(batches) == want
    assert [shares[0].ends_epoch for shares in batches] == [False] * (len(batches) - 1) + [True]
    assert batches[-1][0].after == Cursor(1, 0, len(batches))
    for shares in batches:
        assert {share.num_global for share in shares} == {sum(share.num_samples for share in shares)}
        assert len({share.after for share in shares}) == 1


def test_the_ragged_last_batch_is_split_evenly() -> None:
    batches = all_ranks(order(size=17, batch_size=3, world=4), 2)
    assert [share.num_samples for share in batches[0]] == [3, 3, 3, 3]
    assert [share.num_samples for share in batches[1]] == [2, 1, 1, 1]
    assert not any(share.is_padding for share in batches[1])


def test_a_rank_without_a_sample_gets_one_without_weight() -> None:
    batches = all_ranks(order(size=10, batch_size=2, world=4), 2)
    last = batches[1]
    assert [share.num_samples for share in last] == [1, 1, 0, 0]
    assert [share.is_padding for share in last] == [False, False, True, True]
    assert [len(share.indices) for share in last] == [1, 1, 1, 1]
    assert last[0].num_global == 2


def test_drop_last_leaves_out_the_ragged_batch_of_every_epoch() -> None:
    batches = all_ranks(order(size=17, batch_size=2, world=2, drop_last=True), 8)
    assert [shares[0].num_global for shares in batches] == [4] * 8
    assert [shares[0].ends_epoch for shares in batches] == [False, False, False, True] * 2
    assert [shares[0].after.epoch for shares in batches] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert len(set(consumed(batches[:4]))) == 16


def test_epochs_have_different_orders_and_the_same_samples() -> None:
    batches = take(order(size=64, batch_size=16), 8)
    first = [index for batch in batches[:4] for index in batch.indices]
    second = [index for batch in batches[4:] for index in batch.indices]
    assert first != second
    assert sorted(first) == sorted(second) == list(range(64))


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 40))
def test_the_order_does_not_depend_on_the_window_in_which_it_is_computed(
    batch_size: int, world: int, start: int
) -> None:
    whole = order(size=3000, batch_size=batch_size, world=world)
    skipped = take(whole, start + 3)[start:]
    assert take(whole, 3, skipped[0].after)[:2] == skipped[1:]


# ---- resuming --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 60), st.integers(0, 40), st.booleans())
def test_a_resumed_order_is_the_rest_of_the_undisturbed_one(
    world: int, batch_size: int, more: int, stop: int, drop_last: bool
) -> None:
    whole = Order(
        size=world * batch_size + more, batch_size=batch_size, world=world, rank=world - 1, seed=3, drop_last=drop_last
    )
    undisturbed = take(whole, stop + 15)
    cursor = undisturbed[stop - 1].after if stop else Cursor()
    assert take(whole, 15, Cursor.from_plain(cursor.to_plain())) == undisturbed[stop:]


@settings(max_examples=60)
@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(0, 50), st.integers(0, 8)
)
def test_a_change_of_world_in_an_epoch_loses_and_repeats_nothing(
    world: int, next_world: int, batch_size: int, next_batch_size: int, more: int, stop: int
) -> None:
    size = max(world, next_world) + more
    before = Order(size=size, batch_size=batch_size, world=world, seed=11)
    after = Order(size=size, batch_size=next_batch_size, world=next_world, seed=11)
    stop = min(stop, before.batches_per_epoch - 1)
    head = all_ranks(before, stop)
    cursor = head[-1][0].after if head else Cursor()
    tail = all_ranks(after, after.batches_left(cursor), cursor)
    assert consumed(head) + consumed(tail) == Permutation(size, 11, 0).at(np.arange(size)).tolist()
    assert tail[-1][0].after == Cursor(1, 0, stop + len(tail))


def test_a_global_batch_that_is_begun_is_finished_first_so_that_drop_last_drops_the_same() -> None:
    batches = take(order(size=17, batch_size=4, drop_last=True), 5, Cursor(0, 3, 1))
    assert [batch.num_global for batch in batches] == [1, 4, 4, 4, 4]
    assert [batch.ends_epoch for batch in batches] == [False, False, False, True, False]


# ---- another world ---------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 12))
def test_pieces_fit_the_batch_size_follow_one_another_and_give_every_rank_its_even_share(
    count: int, batch_size: int, world: int
) -> None:
    ranks = [pieces_of(count, batch_size=batch_size, world=world, rank=rank) for rank in range(world)]
    own = [[piece.own_end - piece.own_begin for piece in pieces] for pieces in ranks]
    assert [sum(sizes) for sizes in own] == [
        stop - start for start, stop in (shard_of(count, world, r) for r in range(world))
    ]
    assert max(map(max, own)) <= batch_size
    assert len(ranks[0]) == math.ceil(math.ceil(count / world) / batch_size), "no more forwards than are needed"
    place = 0
    for shares in zip(*ranks, strict=True):
        assert {(piece.begin, piece.end) for piece in shares} == {(place, shares[0].end)}
        for piece in shares:
            assert piece.own_begin == place
            place = piece.own_end
        assert place == shares[0].end
    assert place == count


@given(st.integers(1, 400), st.integers(1, 12))
def test_where_a_share_fits_it_is_one_contiguous_piece(count: int, world: int) -> None:
    for rank in range(world):
        (piece,) = pieces_of(count, batch_size=count, world=world, rank=rank)
        assert (piece.own_begin, piece.own_end) == shard_of(count, world, rank)


def by_global_batch(from_order: Order, cursor: Cursor, count: int) -> list[tuple[int, list[int], Cursor]]:
    """Return the next global micro-batches: (epoch, samples, cursor after), of all ranks and pieces."""
    found: list[tuple[int, list[int], Cursor]] = []
    ranks = [replace(from_order, rank=rank).micro_batches(cursor) for rank in range(from_order.world)]
    samples: list[int] = []
    while len(found) < count:
        shares = [next(rank) for rank in ranks]
        samples += consumed([shares])
        assert len({(share.after, share.closes, share.ends_epoch, share.epoch) for share in shares}) == 1
        assert {share.num_global for share in shares} == {sum(share.num_samples for share in shares)}
        assert all(len(share.indices) <= from_order.batch_size for share in shares)
        if shares[0].closes:
            found.append((shares[0].epoch, samples, shares[0].after))
            samples = []
    return found


CHAIN = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), min_size=1, max_size=5)


@settings(max_examples=80)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 60), CHAIN, st.booleans(), st.booleans(), st.integers(1, 9))
def test_any_row_of_worlds_takes_the_same_global_batches_each_sample_once(
    world: int, batch_size: int, more: int, chain: list[tuple[int, int]], shuffle: bool, drop_last: bool, again: int
) -> None:
    fixed = world * batch_size
    size = max(fixed, *(next_world for next_world, _ in chain)) + more
    first = Order(size=size, batch_size=batch_size, world=world, seed=5, shuffle=shuffle, drop_last=drop_last)
    got, cursor = by_global_batch(first, Cursor(), 2), None
    for next_world, count in chain:
        cursor = Cursor.from_plain(got[-1][2].to_plain())
        # The script may give its loader another batch size too: the global batch stays.
        there = replace(first, world=next_world, batch_size=again, fixed_batch=fixed)
        assert there.batches_left(cursor) == replace(first, fixed_batch=fixed).batches_left(cursor)
        got += by_global_batch(there, cursor, count)
    assert got == by_global_batch(first, Cursor(), len(got))
    whole = [epoch for epoch, _, after in got if after.sample == 0]
    for epoch in whole:
        met = [sample for number, samples, _ in got if number == epoch for sample in samples]
        assert len(met) == len(set(met)) == (size - size % fixed if drop_last else size)


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.integers(0, 30), st.data())
def test_a_change_of_world_between_two_pieces_loses_and_repeats_nothing(
    world: int, batch_size: int, second: int, third: int, more: int, data: st.DataObject
) -> None:
    fixed = world * batch_size
    size = max(fixed, second, third) + more
    there = Order(size=size, batch_size=1, world=second, seed=2, fixed_batch=fixed)
    head = all_ranks(there, data.draw(st.integers(1, 6)))
    if any(shares[0].ends_epoch for shares in head):
        return
    tail = []
    last = replace(there, world=third)
    for shares in zip(
        *[replace(last, rank=rank).micro_batches(head[-1][0].after) for rank in range(third)], strict=False
    ):
        tail.append(list(shares))
        if shares[0].ends_epoch:
            break
    assert consumed(head) + consumed(tail) == Permutation(size, 2, 0).at(np.arange(size)).tolist()
    assert tail[-1][0].after == Cursor(1, 0, math.ceil(size / fixed))


def test_a_smaller_world_walks_its_share_in_pieces_of_the_loaders_batch() -> None:
    alone = order(size=24, batch_size=3, fixed_batch=12)
    batches = take(alone, 8)
    assert [batch.num_samples for batch in batches] == [3] * 8
    assert [batch.closes for batch in batches] == [False, False, False, True] * 2
    assert [len(step) for step in itertools.islice(alone.steps(Cursor(), 1), 2)] == [4, 4]
    assert [len(step) for step in itertools.islice(alone.steps(Cursor(), 2), 1)] == [8]
    three = [replace(alone, world=3, rank=rank) for rank in range(3)]
    assert [take(rank, 2)[0].num_samples + take(rank, 2)[1].num_samples for rank in three] == [4, 4, 4]


def test_in_a_larger_world_a_rank_without_a_sample_takes_part() -> None:
    shares = all_ranks(order(size=12, batch_size=3, world=5, fixed_batch=3), 4)
    assert [[share.num_samples for share in batch] for batch in shares] == [[1, 1, 1, 0, 0]] * 4
    assert consumed(shares) == Permutation(12, 7, 0).at(np.arange(12)).tolist()


def test_what_the_record_is_told_are_the_positions_that_count() -> None:
    shares = all_ranks(order(size=10, batch_size=2, world=4), 3)
    assert [share.shares(1) for share in shares[0]] == [((1, 0, 2 * rank, 2 * rank + 2),) for rank in range(4)]
    assert [share.shares(0) for share in shares[1]] == [((0, 0, 8, 9),), ((0, 0, 9, 10),), (), ()]
    assert shares[2][3].shares(0) == ((0, 1, 6, 8),)


def test_pieces_of_one_global_batch_draw_differently() -> None:
    alone = order(size=24, batch_size=3, fixed_batch=12)
    assert len({batch.draw for batch in take(alone, 16)}) == 16
    again = take(alone, 3)[2]
    assert take(alone, 1, again.after)[0] == take(alone, 4)[3]


def test_the_facts_of_an_order_come_back() -> None:
    facts = order(size=24, batch_size=3, world=2, fixed_batch=12).facts
    assert facts == OrderFacts(24, 7, True, False, 12, 3, 2)
    assert OrderFacts.from_plain(json.loads(json.dumps(facts.to_plain()))) == facts
    assert order(listed=lambda epoch: range(23)).facts == OrderFacts(23, 7, False, True, 3, 3, 1)


def test_a_cursor_whose_epoch_has_nothing_left_begins_the_next_one() -> None:
    dropping = order(size=10, batch_size=4, drop_last=True)
    assert dropping.batches_left(Cursor(0, 8, 2)) == 0
    assert take(dropping, 1, Cursor(0, 8, 2))[0] == take(dropping, 1, Cursor(1, 0, 2))[0]
    assert take(order(size=10), 1, Cursor(0, 10, 2))[0].after.epoch == 1


def test_a_data_set_that_shrank_under_a_cursor_begins_the_next_epoch() -> None:
    assert take(order(size=10, batch_size=5), 1, Cursor(2, 500, 9))[0].after == Cursor(3, 5, 10)


# ---- draws -----------------------------------------------------------------------------------------


def test_draws_differ_by_rank_batch_epoch_and_seed_and_repeat_on_resume() -> None:
    whole = order(size=40, batch_size=4, world=2)
    draws = [share.draw for shares in all_ranks(whole, 20) for share in shares]
    draws += [share.draw for shares in all_ranks(replace(whole, seed=8), 20) for share in shares]
    assert len(set(draws)) == len(draws)
    assert all(0 <= draw < 2**63 for draw in draws)
    again = take(whole, 4)
    assert [batch.draw for batch in take(whole, 2, again[1].after)] == [batch.draw for batch in again[2:]]


# ---- listed orders ---------------------------------------------------------------------------------


def test_a_listed_order_is_followed_and_asked_for_once_an_epoch() -> None:
    asked: list[int] = []

    def listed(epoch: int) -> list[int]:
        asked.append(epoch)
        return [9, 3, 3, 1, 7] if epoch == 0 else [2, 4, 6]

    batches = all_ranks(order(size=5, batch_size=2, listed=listed), 6)
    assert consumed(batches) == [9, 3, 3, 1, 7, 2, 4, 6, 2, 4]
    assert [shares[0].ends_epoch for shares in batches] == [False, False, True, False, True, False]
    assert asked == [0, 1, 2]


def test_a_list_that_is_too_short_in_a_later_epoch_is_refused() -> None:
    shrinking = order(size=4, batch_size=1, world=2, listed=lambda epoch: [1, 2, 3, 4] if epoch == 0 else [1])
    with pytest.raises(TrainingError) as caught:
        take(shrinking, 3)
    assert caught.value.code == "data-too-small"


# ---- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "changes", "next_step"),
    [
        (3, {"world": 4}, "workers: 3"),
        (0, {}, "empty"),
        (7, {"world": 2, "batch_size": 4, "drop_last": True}, "drop_last=False"),
    ],
    ids=["fewer samples than workers", "no sample at all", "drop_last leaves nothing"],
)
def test_data_that_cannot_fill_a_step_is_refused(size: int, changes: dict[str, object], next_step: str) -> None:
    with pytest.raises(TrainingError) as caught:
        order(size=size, **changes)
    assert caught.value.code == "data-too-small"
    assert caught.value.value == size
    assert next_step in caught.value.next_step


# ---- evaluation ------------------------------------------------------------------------------------


@given(st.integers(0, 300), st.integers(1, 20), st.integers(1, 9))
def test_evaluation_sees_every_sample_once_in_the_same_batches_for_every_world(
    size: int, batch_size: int, world: int
) -> None:
    ranks = [list(eval_shard(size, batch_size, world, rank)) for rank in range(world)]
    assert sorted(itertools.chain.from_iterable(ranks)) == sorted(eval_shard(size, batch_size, 1, 0))
    assert sorted(sample for batches in ranks for batch in batches for sample in batch) == list(range(size))
    counts = [len(batches) for batches in ranks]
    assert max(counts) - min(counts) <= 1


# ---- digests ---------------------------------------------------------------------------------------


def test_the_digest_of_the_order_does_not_depend_on_the_world() -> None:
    two, four = order(size=64, batch_size=8, world=2), order(size=64, batch_size=4, world=4)
    assert order_digest(two, take(two, 3)[-1].after) == order_digest(four, take(four, 3)[-1].after)


@pytest.mark.parametrize(
    ("other", "cursor"),
    [
        (order(size=64, seed=8), Cursor(0, 32, 4)),
        (order(size=65), Cursor(0, 32, 4)),
        (order(size=64, shuffle=False), Cursor(0, 32, 4)),
        (order(size=64), Cursor(0, 33, 4)),
        (order(size=64), Cursor(1, 32, 4)),
        (order(size=64, listed=lambda epoch: range(64)), Cursor(0, 32, 4)),
    ],
    ids=["seed", "size", "shuffle", "sample", "epoch", "listed"],
)
def test_the_digest_tells_other_data_apart(other: Order, cursor: Cursor) -> None:
    assert order_digest(other, cursor) != order_digest(order(size=64), Cursor(0, 32, 4))


def test_without_a_shuffle_the_seed_does_not_enter_the_digest() -> None:
    straight = order(size=64, shuffle=False)
    assert order_digest(straight, Cursor(1, 0, 8)) == order_digest(replace(straight, seed=99), Cursor(1, 0, 8))


def test_the_digest_of_a_listed_order_is_that_of_what_was_consumed() -> None:
    one = order(size=4, listed=lambda epoch: [1, 2, 3, 4])
    other_tail = order(size=4, listed=lambda epoch: [1, 2, 4, 3])
    assert order_digest(one, Cursor(0, 2, 1)) == order_digest(other_tail, Cursor(0, 2, 1))
    assert order_digest(one, Cursor(1, 0, 2)) != order_digest(other_tail, Cursor(1, 0, 2))
    assert order_digest(one, Cursor()) == order_digest(other_tail, Cursor())
