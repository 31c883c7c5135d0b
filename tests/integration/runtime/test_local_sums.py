"""Sums through shared memory: between processes and threads, with what can go wrong on the way."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gscalar.base.errors import Retryable, TrainingError
from gscalar.runtime.launch import Launch
from gscalar.runtime.local_sums import LocalGroup, sum_in_memory
from gscalar.runtime.processes import process_name

SIZE = 8 * 128


class Messages:
    """A group of threads, standing in for one that talks through sockets. Counts its sums."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = threading.Barrier(world, timeout=60)
        self.payloads: list[bytes] = [b""] * world
        self.values: list[list[float]] = [[]] * world
        self.num_sums = 0

    def of(self, rank: int) -> _Member:
        return _Member(self, rank)


class _Member:
    def __init__(self, shared: Messages, rank: int) -> None:
        self.shared = shared
        self.rank = rank
        self.closed = False

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        self.shared.values[self.rank] = list(values)
        self.shared.num_sums += 1
        self.shared.barrier.wait()
        totals = [sum(column) for column in zip(*self.shared.values, strict=True)]
        self.shared.barrier.wait()
        return lambda: totals

    def broadcast(self, payload: bytes) -> bytes:
        return self._exchange(payload)[0]

    def gather(self, payload: bytes) -> list[bytes]:
        payloads = self._exchange(payload)
        return payloads if self.rank == 0 else []

    def close(self) -> None:
        self.closed = True

    def _exchange(self, payload: bytes) -> list[bytes]:
        self.shared.payloads[self.rank] = payload
        self.shared.barrier.wait()
        payloads = list(self.shared.payloads)
        self.shared.barrier.wait()
        return payloads


def launch(rank: int, world: int, local_world: int | None = None) -> Launch:
    return Launch(launcher="torchrun", identity="x", rank=rank, world=world, local_world=local_world or world)


def on_ranks(world: int, work: Callable[[int], object]) -> list[object]:
    """Return what the work gives on each rank, a thread each."""
    told: list[object] = [None] * world
    threads = [threading.Thread(target=lambda r=rank: told.__setitem__(r, work(r))) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return told


@pytest.mark.parametrize("world", [2, 3, 5])
def test_all_ranks_have_the_same_sums_whatever_the_order_of_their_calls(world: int, tmp_path: Path) -> None:
    messages = Messages(world)

    def work(rank: int) -> object:
        group = sum_in_memory(messages.of(rank), launch(rank, world), 60.0, tmp_path)
        assert isinstance(group, LocalGroup)
        sums = []
        for step in range(300):
            if (step + rank) % 7 == 0:
                os.sched_yield()
            first, second = group.start_sum([rank + 0.1, 2.0**60, step]), group.start_sum([1e-9 * rank])
            sums.append((first(), second()))
        group.close()
        return sums

    told = on_ranks(world, work)
    assert told == [told[0]] * world
    in_order = 0.0
    for rank in range(world):
        in_order += rank + 0.1
    assert [first for first, _ in told[0]] == [[in_order, world * 2.0**60, world * step] for step in range(300)]
    assert messages.num_sums == world, "the only message is whether all can share"
    assert list(tmp_path.iterdir()) == [], "the file has no name any more"


def test_more_than_fits_a_slot_or_is_under_way_goes_as_messages(tmp_path: Path) -> None:
    messages = Messages(2)

    def work(rank: int) -> object:
        group = sum_in_memory(messages.of(rank), launch(rank, 2), 60.0, tmp_path)
        long = group.start_sum([float(rank)] * 13)()
        waits = [group.start_sum([float(number)]) for number in range(6)]
        return long, [wait() for wait in waits], group.start_sum([1.0] * 12)()

    expected = ([1.0] * 13, [[2.0 * number] for number in range(6)], [2.0] * 12)
    assert on_ranks(2, work) == [expected] * 2
    assert messages.num_sums == 2 * (1 + 1 + 2)


@pytest.mark.parametrize(
    ("case", "world", "local_world", "folder"),
    [
        ("a world of one", 1, 1, "."),
        ("ranks on several hosts", 2, 1, "."),
        ("no shared memory", 2, 2, "absent"),
    ],
)
def test_where_memory_cannot_be_shared_the_group_stays_as_it_is(
    case: str, world: int, local_world: int, folder: str, tmp_path: Path
) -> None:
    messages = Messages(world)

    def work(rank: int) -> object:
        own = messages.of(rank)
        return sum_in_memory(own, launch(rank, world, local_world), 60.0, tmp_path / folder) is own

    assert on_ranks(world, work) == [True] * world, case


def elsewhere(payload: bytes) -> bytes:
    return b"/absent/file" if payload.startswith(b"/") else payload


def test_one_rank_that_cannot_see_the_file_decides_for_all(tmp_path: Path) -> None:
    messages = Messages(2)

    def work(rank: int) -> object:
        own = messages.of(rank)
        if rank == 1:  # a container with a /dev/shm of its own
            told = own.broadcast
            own.broadcast = lambda payload: elsewhere(told(payload))  # type: ignore[method-assign]
        return sum_in_memory(own, launch(rank, 2), 60.0, tmp_path) is own

    assert on_ranks(2, work) == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_its_owners_alone_and_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    unlink = Path.unlink

    def seen(path: Path, missing_ok: bool = False) -> None:
        modes.append(path.stat().st_mode & 0o777)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", seen)
    messages = Messages(2)
    on_ranks(2, lambda rank: sum_in_memory(messages.of(rank), launch(rank, 2), 60.0, tmp_path))
    assert modes == [0o600]


@pytest.mark.parametrize(
    "case", ["as rank 0 makes it", "another name", "another folder", "a link", "two names", "another size", "a pipe"]
)
def test_nothing_is_opened_but_a_file_that_rank_0_made(case: str, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()

    def told(payload: bytes) -> bytes:
        made = path = Path(payload.decode())
        another = tmp_path / f"gscalar-{'a' * 32}"
        if case == "another name":
            path = Path(shutil.copy(made, tmp_path / "gscalar-notes.txt"))
        elif case == "another folder":
            path = Path(shutil.copy(made, below))
        elif case == "a link":
            another.symlink_to(made)
        elif case == "two names":
            another.hardlink_to(made)
        elif case == "another size":
            another.write_bytes(made.read_bytes() + b"x")
        elif case == "a pipe":
            os.mkfifo(another)
        return str(another if another.exists() else path).encode()

    messages = Messages(2)

    def work(rank: int) -> object:
        own = messages.of(rank)
        if rank == 1:
            broadcast = own.broadcast

            def lied_to(payload: bytes) -> bytes:
                payload = broadcast(payload)
                return told(payload) if payload.startswith(b"/") else payload

            own.broadcast = lied_to  # type: ignore[method-assign]
        return sum_in_memory(own, launch(rank, 2), 60.0, tmp_path) is not own

    assert on_ranks(2, work) == [case == "as rank 0 makes it"] * 2, case


def test_a_file_of_another_user_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    messages = Messages(2)

    def work(rank: int) -> object:
        own = messages.of(rank)
        return sum_in_memory(own, launch(rank, 2), 60.0, tmp_path) is own

    assert on_ranks(2, work) == [True, True]


def half_written(memory: mmap.mmap, group: LocalGroup) -> None:
    """Let rank 1 write its slot of sum 1, with the last value's bytes and the checksum late."""
    other = LocalGroup(Messages(1).of(0), mmap.mmap(-1, 2 * SIZE), 1, ["", ""], 1.0)
    other.start_sum([3.0, 4.0])
    whole = other._memory[SIZE + 128 : SIZE + 256]
    memory[SIZE + 128 : SIZE + 128 + 24] = whole[:24]
    time.sleep(0.05)
    memory[SIZE + 128 + 32 : SIZE + 256] = whole[32:]  # the checksum before the last value
    time.sleep(0.05)
    memory[SIZE + 128 + 24 : SIZE + 128 + 32] = whole[24:32]


def test_a_half_written_slot_is_not_read() -> None:
    memory = mmap.mmap(-1, 2 * SIZE)
    me = process_name(os.getpid())
    group = LocalGroup(Messages(1).of(0), memory, 0, [me, me], 60.0)
    wait = group.start_sum([1.0, 1.0])
    writer = threading.Thread(target=half_written, args=(memory, group))
    writer.start()
    assert wait() == [4.0, 5.0]
    writer.join()


def test_ranks_that_sum_different_counts_are_told_at_once() -> None:
    memory, me = mmap.mmap(-1, 2 * SIZE), process_name(os.getpid())
    groups = [LocalGroup(Messages(1).of(0), memory, rank, [me, me], 60.0) for rank in range(2)]
    waits = [groups[0].start_sum([1.0, 2.0]), groups[1].start_sum([1.0, 2.0, 3.0])]
    began_s = time.monotonic()
    for rank, text in enumerate(("Rank 1 .* rank 0: a sum of 3 numbers", "Rank 0 .* rank 1: a sum of 2 numbers")):
        with pytest.raises(TrainingError, match=text) as caught:
            waits[rank]()
        assert caught.value.code == "ranks-differ"
    assert time.monotonic() - began_s < 30, "not after the time-out of 60 s"


def peer_error(rank_one: str, timeout_s: float) -> Retryable:
    group = LocalGroup(Messages(1).of(0), mmap.mmap(-1, 2 * SIZE), 0, [process_name(os.getpid()), rank_one], timeout_s)
    with pytest.raises(Retryable) as caught:
        group.start_sum([1.0])()
    return caught.value


def test_a_peer_that_has_ended_is_named_though_nobody_has_reaped_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    name = process_name(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    error = peer_error(name, 60.0)  # a zombie until `wait`
    process.wait()
    assert error.code == "peer-lost"
    assert "for rank 1" in error.what


def test_a_peer_that_stands_still_is_named_after_the_time_out() -> None:
    assert peer_error(process_name(os.getpid()), 0.2).code == "peer-lost"


ADD_UP = """
import json, mmap, os, sys
from gscalar.runtime.local_sums import LocalGroup
from gscalar.runtime.processes import process_name
rank, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(path, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
group = LocalGroup(None, memory, rank, [process_name(os.getpid())] * world, 60.0)
json.dump([group.start_sum([float(rank * step), 1.0])() for step in range(2000)], sys.stdout)
"""


def test_processes_see_each_others_numbers(tmp_path: Path) -> None:
    world, path = 3, tmp_path / "memory"
    path.write_bytes(bytes(world * SIZE))
    commands = [[sys.executable, "-c", ADD_UP, str(rank), str(world), str(path)] for rank in range(world)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert told == [[[3.0 * step, 3.0] for step in range(2000)]] * world
