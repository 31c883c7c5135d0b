"""Arrays as flat buffers and back, and sums of them in the order that is promised."""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gscalar.runtime.host_group.arrays import Buffers, flatten, part
from gscalar.runtime.host_group.links import Broken, Links
from gscalar.runtime.host_group.rings import RingSum
from gscalar.runtime.host_group.roundtable import Failure
from gscalar.runtime.host_group.slices import SharedSum, memory_bytes

Array = NDArray[Any]


def test_arrays_come_back_with_their_types_and_shapes() -> None:
    given = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7),
        np.arange(4, dtype=np.float32)[::-2],
        np.zeros((0, 3)),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(3, dtype=">i4"),
    ]
    flat = flatten(given, Buffers())
    assert [(buffer.dtype.str, buffer.size) for buffer in flat.buffers] == [
        ("<f4", 8),
        ("<i8", 1),
        ("<f8", 6),
        (">i4", 3),
    ]
    for got, want in zip(flat.arrays(), given, strict=True):
        np.testing.assert_array_equal(got, want, strict=True)
        assert not np.shares_memory(got, want)


@pytest.mark.parametrize(
    ("case", "one", "other"),
    [
        ("another shape", [np.zeros((2, 3))], [np.zeros((3, 2))]),
        ("another type", [np.zeros(2, np.float32)], [np.zeros(2, np.int32)]),
        ("another order", [np.zeros(2), np.zeros(3)], [np.zeros(3), np.zeros(2)]),
        ("one less", [np.zeros(2), np.zeros(0)], [np.zeros(2)]),
    ],
)
def test_arrays_that_differ_have_another_tag(case: str, one: list[Array], other: list[Array]) -> None:
    assert flatten(one, Buffers()).tag != flatten(other, Buffers()).tag, case
    assert flatten(one, Buffers()).tag == flatten([array + 1 for array in one], Buffers()).tag, "values do not matter"


def test_buffers_are_used_again_when_nobody_holds_a_view() -> None:
    buffers, given = Buffers(), [np.arange(5), np.ones(3), np.arange(5.0) + 3]
    first = flatten(given, buffers).arrays()
    places = [array.ctypes.data for array in first]
    held = first[1][1:]  # of the second buffer
    del first
    second = flatten([array + 1 for array in given], buffers).arrays()
    assert (second[0].ctypes.data == places[0], second[1].ctypes.data == places[1]) == (True, False)
    assert held.tolist() == [1.0, 1.0]


def test_two_calls_under_way_have_buffers_of_their_own() -> None:
    buffers = Buffers()
    first, second = flatten([np.ones(3)], buffers), flatten([np.zeros(3)], buffers)
    assert (first.arrays()[0].tolist(), second.arrays()[0].tolist()) == ([1.0] * 3, [0.0] * 3)


def test_two_buffers_of_one_call_are_never_the_same() -> None:
    buffers = Buffers()
    flatten([np.ones(3, "<f4"), np.ones(3, ">f4")], buffers)
    first, second = flatten([np.ones(3, "<f4"), np.ones(3, ">f4")], buffers).buffers
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(("size", "num_parts"), [(0, 3), (1, 3), (3, 3), (7, 3), (1000, 7)])
def test_parts_are_nearly_equal_and_make_up_the_whole(size: int, num_parts: int) -> None:
    parts = [np.arange(size)[part(size, num_parts, number)] for number in range(num_parts)]
    assert np.concatenate(parts).tolist() == list(range(size))
    lengths = [each.size for each in parts]
    assert max(lengths) - min(lengths) <= 1


@pytest.fixture
def mesh() -> Iterator[Callable[..., list[Links]]]:
    """Links between all ranks of a world, by pairs of UNIX sockets."""
    with ExitStack() as stack:

        def connect(world: int, timeout_s: float = 60.0) -> list[Links]:
            ends: list[dict[int, socket.socket]] = [{} for _ in range(world)]
            for one in range(world):
                for other in range(one):
                    ends[one][other], ends[other][one] = socket.socketpair()
            links = [Links(of_rank, timeout_s) for of_rank in ends]
            for each in links:
                stack.callback(each.close)
            return links

        yield connect


def on_ranks(world: int, work: Callable[[int], object]) -> list[object]:
    """Return what the work gives on each rank, a thread each."""
    told: list[object] = [None] * world

    def be(rank: int) -> None:
        try:
            told[rank] = work(rank)
        except Broken as broken:
            told[rank] = broken.failure

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return told


def of_rank(rank: int, size: int, dtype: str) -> Array:
    return (np.random.default_rng(rank).normal(size=size) * 100).astype(dtype)


def added(arrays: list[Array]) -> Array:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def in_ring_order(world: int, size: int, dtype: str) -> Array:
    """Return the sums, where chunk i is added up from rank i on around the ring."""
    arrays = [of_rank(rank, size, dtype) for rank in range(world)]
    bounds = [number * size // world for number in range(world + 1)]
    chunks = [
        added([arrays[(first + step) % world][bounds[first] : bounds[first + 1]] for step in range(world)])
        for first in range(world)
    ]
    return np.concatenate(chunks)


# One that takes several pieces, and is no multiple of anything.
SIZES_AND_TYPES = [(size, dtype) for size in (0, 1, 3, 1000) for dtype in ("float32", "float16", "int64")]
SIZES_AND_TYPES.append((1_300_001, "float32"))


@pytest.mark.parametrize(("size", "dtype"), SIZES_AND_TYPES)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_ring_adds_a_chunk_from_the_rank_of_its_number_on(
    world: int, size: int, dtype: str, mesh: Callable[..., list[Links]]
) -> None:
    links = mesh(world)

    def work(rank: int) -> bytes:
        buffer = of_rank(rank, size, dtype)
        ring = RingSum(links[rank], rank, world)
        ring.add_up(buffer, 1)
        ring.add_up(np.ones(3), 2)  # what is left in the links belongs to nobody
        return buffer.tobytes()

    assert on_ranks(world, work) == [in_ring_order(world, size, dtype).tobytes()] * world


@pytest.mark.parametrize(("size", "dtype"), SIZES_AND_TYPES)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_shared_memory_adds_in_the_order_of_ranks(
    world: int, size: int, dtype: str, mesh: Callable[..., list[Links]]
) -> None:
    links = mesh(world)
    memory = mmap.mmap(-1, memory_bytes(world))

    def work(rank: int) -> list[bytes]:
        shared = SharedSum(memory, links[rank], rank, world)
        buffers = [of_rank(rank, length, dtype) for length in (size, size // 2, size)]
        for buffer in buffers:
            shared.add_up(buffer, 1)
        return [buffer.tobytes() for buffer in buffers]

    want = [
        added([of_rank(rank, length, dtype) for rank in range(world)]).tobytes() for length in (size, size // 2, size)
    ]
    assert on_ranks(world, work) == [want] * world


@pytest.mark.parametrize("world", [2, 3, 8, 64, 500])
def test_the_memory_stays_small_however_many_ranks_there_are(world: int) -> None:
    assert 0 < memory_bytes(world) <= 32 * 1024 * 1024


@pytest.mark.parametrize("world", [2, 3])
def test_other_arrays_are_noticed_before_anything_is_added(world: int, mesh: Callable[..., list[Links]]) -> None:
    links = mesh(world)
    memory = mmap.mmap(-1, memory_bytes(world))

    def work(rank: int) -> None:
        SharedSum(memory, links[rank], rank, world).add_up(np.ones(4), int(rank == world - 1))

    told = on_ranks(world, work)
    assert told == [Failure(world - 1, "differs")] * (world - 1) + [Failure(0, "differs")]


def test_a_rank_that_does_not_come_is_named_after_the_time_out(mesh: Callable[..., list[Links]]) -> None:
    links = mesh(2, timeout_s=0.05)
    assert on_ranks(1, lambda rank: RingSum(links[0], 0, 2).add_up(np.ones(4), 1)) == [Failure(1, "still")]


def test_a_rank_whose_links_end_is_named_at_once(mesh: Callable[..., list[Links]]) -> None:
    links = mesh(2)
    links[1].close()
    assert on_ranks(1, lambda rank: RingSum(links[0], 0, 2).add_up(np.ones(4), 1)) == [Failure(1, "ended")]


def test_breaking_off_ends_an_exchange_that_another_thread_waits_in(mesh: Callable[..., list[Links]]) -> None:
    links = mesh(2)
    breaking = threading.Timer(0.05, links[0].break_off)
    breaking.start()
    assert on_ranks(1, lambda rank: RingSum(links[0], 0, 2).add_up(np.ones(4), 1)) == [Failure(1, "ended")]
    breaking.join()
