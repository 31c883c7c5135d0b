"""A group of ranks without a framework: real processes and sockets, what they sum, and what can go wrong."""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.base.errors import EnvironmentProblem, Retryable
from gscalar.runtime.host_group import HostGroup
from gscalar.runtime.host_group.rendezvous import Door, Late, ports_of
from gscalar.runtime.launch import Launch
from gscalar.runtime.local_sums import LocalGroup, sum_in_memory
from gscalar.testing.processes import alive, wait_until

SCRIPT = Path(__file__).parent / "scripts/host_group_rank.py"
LIMIT_S = 120.0
PATHS = ["shared", "ring"]


class Ranks:
    """The processes of one group, and what each has said."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def told(self, rank: int) -> Any:
        """Return what a rank said last, once it has ended."""
        output, _ = self.processes[rank].communicate(timeout=LIMIT_S)
        assert self.processes[rank].returncode == 0
        return json.loads(output.splitlines()[-1])

    def all_told(self) -> list[Any]:
        return [self.told(rank) for rank in range(len(self.processes))]

    def until_said(self, rank: int, word: str) -> str:
        """Return the line of a rank that begins with the word."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return next(line for line in stdout if line.startswith(word))


Start = Callable[..., Ranks]


@pytest.fixture
def start(spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, script_environment: dict[str, str]) -> Start:
    def begin(
        world: int,
        port: int,
        path: str,
        case: str,
        *,
        attempt: int = 0,
        ranks: list[int] | None = None,
        **environment: str,
    ) -> Ranks:
        return Ranks(
            [
                spawn(
                    [sys.executable, SCRIPT, *map(str, (rank, world, port, path, case, attempt))],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=tmp_path,
                    env=script_environment | environment,
                )
                for rank in (range(world) if ranks is None else ranks)
            ]
        )

    return begin


@pytest.fixture
def port(free_ports: Callable[[int], list[int]]) -> int:
    return free_ports(1)[0]


def expected(world: int) -> list[np.ndarray[Any, Any]]:
    """Return the sums in the order of ranks, each rounded to its own type."""
    inputs = runpy.run_path(str(SCRIPT))["inputs"]
    totals = inputs(0)
    for rank in range(1, world):
        totals = [(total + array).astype(total.dtype) for total, array in zip(totals, inputs(rank), strict=True)]
    return totals


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_ranks_have_the_same_sums_to_the_bit(
    world: int, path: str, start: Start, port: int, tmp_path: Path
) -> None:
    told = start(world, port, path, "sums").all_told()
    assert told == [told[0]] * world
    assert told[0]["shared"] == (path == "shared" and world > 1)
    assert told[0]["sums"] == [told[0]["sums"][0]] * 3, "at once, and twice in a thread"
    in_order = 0.0
    for rank in range(world):
        in_order += rank + 0.1
    assert told[0]["small"] == [[in_order, float(world * number)] for number in reversed(range(20))]
    with np.load(tmp_path / "sums.npz") as file:
        got = [file[name] for name in file.files]
    for sums, want in zip(got, expected(world), strict=True):
        assert sums.dtype == want.dtype
        assert sums.shape == want.shape
        if path == "shared" or world <= 2 or want.dtype.kind != "f":
            assert sums.tobytes() == want.tobytes()
        else:  # the ring adds in another order
            scale = world * np.finfo(want.dtype).eps
            np.testing.assert_allclose(sums, want, rtol=scale, atol=float(5 * scale * np.abs(want).max(initial=0)))


def test_payloads_of_any_size_come_whole(start: Start, port: int) -> None:
    ranks = [[size + rank, f"{rank:02x}" if size + rank else ""] for size in (0, 1, 300_000) for rank in range(3)]
    on_rank_0 = [0, ranks[:3], 1, ranks[3:6], 300_000, ranks[6:]]
    elsewhere = [0, [], 1, [], 300_000, []]
    assert start(3, port, "ring", "messages").all_told() == [on_rank_0, elsewhere, elsewhere]


def test_what_a_rank_said_before_it_left_arrives(start: Start, port: int) -> None:
    assert start(3, port, "ring", "last_words").all_told() == [True] * 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("case", "world", "victim"),
    [
        ("endless_arrays", 2, 0),
        ("endless_arrays", 4, 2),
        ("endless_sums", 3, 0),
        ("endless_sums", 3, 1),
        ("wait_for_arrays", 4, 3),
    ],
)
def test_a_killed_rank_is_named_by_all_others_at_once(
    case: str, world: int, victim: int, path: str, start: Start, port: int
) -> None:
    before = shared_files()
    ranks = start(world, port, path, case)
    for rank in range(world):
        ranks.until_said(rank, "ready")
    time.sleep(0.3)
    ranks.processes[victim].send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    for rank in range(world):
        if rank == victim:
            continue
        told = ranks.told(rank)
        assert (told["code"], told["again"]) == ("peer-lost", "peer-lost")
        assert f"lost rank {victim}" in told["what"], told["what"]
    assert time.monotonic() - killed_s < 20, "not after the time-out of 60 s"
    assert shared_files() <= before


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", ["endless_arrays", "endless_sums"])
def test_a_rank_that_stands_still_is_lost_after_the_time_out(case: str, path: str, start: Start, port: int) -> None:
    ranks = start(3, port, path, case, TIMEOUT_S="3")
    for rank in range(3):
        ranks.until_said(rank, "ready")
    ranks.processes[1].send_signal(signal.SIGSTOP)
    for rank in (0, 2):
        told = ranks.told(rank)
        assert told["code"] == "peer-lost"
        assert 2.5 < told["took_s"] < 30
        if case == "endless_sums" or path == "shared":
            assert "too long for rank 1" in told["what"]


def test_a_stopped_rank_0_is_lost_too(start: Start, port: int) -> None:
    ranks = start(3, port, "ring", "endless_sums", TIMEOUT_S="3")
    for rank in range(3):
        ranks.until_said(rank, "ready")
    ranks.processes[0].send_signal(signal.SIGSTOP)
    for rank in (1, 2):
        assert "too long for rank 0" in ranks.told(rank)["what"]


def test_who_waits_for_a_rank_that_has_left_is_told(start: Start, port: int) -> None:
    *others, left = start(3, port, "ring", "leave").all_told()
    assert left == "left"
    assert [(each["code"], "waits for rank 2" in each["what"]) for each in others] == [("peer-lost", True)] * 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", ["other_shapes", "other_call"])
def test_ranks_that_do_different_things_are_told_and_add_nothing(case: str, path: str, start: Start, port: int) -> None:
    codes = [each["code"] for each in start(2, port, path, case).all_told()]
    assert codes == ["ranks-differ"] * 2


def test_a_rank_whose_forked_child_lives_on_is_lost_all_the_same(start: Start, port: int) -> None:
    ranks = start(2, port, "shared", "forked")
    child = int(ranks.until_said(1, "child").split()[1])
    ranks.until_said(0, "ready")
    ranks.until_said(1, "ready")
    ranks.processes[1].kill()
    try:
        assert "lost rank 1" in ranks.told(0)["what"]
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_two_groups_one_after_the_other_take_the_same_port(start: Start, port: int) -> None:
    for attempt in range(2):  # rank 0 leaves first, so that its port is in TIME_WAIT
        assert start(2, port, "ring", "last_words", attempt=attempt).all_told() == [True, True]


def test_a_rank_of_another_attempt_is_refused_and_does_not_disturb(start: Start, port: int) -> None:
    old = start(2, port, "ring", "messages", attempt=0, ranks=[1], TIMEOUT_S="8")
    first = start(2, port, "ring", "messages", attempt=1, ranks=[0])
    time.sleep(1.0)  # it has knocked some times
    second = start(2, port, "ring", "messages", attempt=1, ranks=[1])
    assert first.told(0)[0::2] == [0, 1, 300_000]
    assert second.told(0)[0::2] == [0, 1, 300_000]
    assert old.told(0)["code"] == "rendezvous-failed"


def test_a_second_process_of_a_rank_is_refused_and_does_not_disturb(start: Start, port: int) -> None:
    first = start(3, port, "ring", "last_words", ranks=[0, 1])
    time.sleep(1.0)
    again = start(3, port, "ring", "last_words", ranks=[1], TIMEOUT_S="4")
    time.sleep(1.0)  # it has knocked some times
    last = start(3, port, "ring", "last_words", ranks=[2])
    assert [*first.all_told(), last.told(0)] == [True] * 3
    assert again.told(0)["code"] == "rendezvous-failed"


def test_strangers_at_the_port_are_ignored(start: Start, port: int) -> None:
    first = start(2, port, "shared", "messages", ranks=[0])
    wait_until(lambda: connects(port), LIMIT_S, "rank 0 listens")
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"gscalar>" + bytes(38), b"gscalar>", b"", os.urandom(100_000)]
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(600)]
    try:
        for number, stranger in enumerate(strangers):
            try:
                stranger.sendall(garbage[number % len(garbage)])
            except OSError:
                pass  # it has been let go meanwhile
        second = start(2, port, "shared", "messages", ranks=[1])
        assert first.told(0)[0::2] == [0, 1, 300_000]
        assert second.told(0)[0::2] == [0, 1, 300_000]
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_service_that_answers_something_else_is_not_taken_for_rank_0(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:
        threading.Thread(target=lambda: answer_garbage(server), daemon=True).start()
        with pytest.raises(Retryable, match="Rank 1 of 2 did not reach the others") as caught:
            HostGroup(launch(1, 2, port), 1.0)
        assert caught.value.code == "rendezvous-failed"


def test_rank_0_names_who_did_not_come(port: int) -> None:
    with pytest.raises(Retryable, match="no word of rank 1, 2") as caught:
        HostGroup(launch(0, 3, port), 0.5)
    assert caught.value.code == "rendezvous-failed"


def test_a_port_that_is_taken_is_said(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(Retryable, match=f"nothing can listen at port {port}"),
    ):
        HostGroup(launch(0, 2, port), 0.5)


def test_a_port_at_which_nobody_can_be_reached_is_refused_at_once() -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        HostGroup(launch(0, 2, 0), 60.0)
    assert caught.value.code == "launcher-unclear"


def test_where_memory_cannot_be_shared_the_ring_is_taken(port: int, tmp_path: Path) -> None:
    def work(group: HostGroup, rank: int) -> object:
        return group.shares_memory, group.sum_arrays([np.arange(5)])[0].tolist()

    assert in_threads(3, port, work, tmp_path / "absent") == [(False, [0, 3, 6, 9, 12])] * 3


def test_under_torchruns_agent_another_port_is_taken(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with socket.create_server(("127.0.0.1", port)):  # the agent's store
        assert in_threads(2, port, lambda group, rank: group.start_sum([1.0])()) == [[2.0]] * 2


def test_a_service_that_keeps_silent_at_the_first_port_is_passed_over(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    silent = ports_of(launch(0, 2, port), store_listens=True)[0]
    with socket.create_server(("127.0.0.1", silent)):  # it accepts, and says nothing
        assert in_threads(2, port, lambda group, rank: group.start_sum([1.0])()) == [[2.0]] * 2


def test_a_rank_that_has_hung_up_is_not_taken_for_one_that_has_come() -> None:
    door = Door(socket.create_server(("127.0.0.1", 0)))
    digest = bytes(range(32))
    with socket.create_connection(("127.0.0.1", door.port)) as caller:
        caller.sendall(struct.pack("!8s32sIH", b"gscalar>", digest, 1, 4000))
    with pytest.raises(Late, match="no word of rank 1"):
        door.admit(digest, {1}, time.monotonic() + 0.5, answer=b"heard")
    door.close()


def test_small_sums_in_memory_stand_in_front_of_it(port: int) -> None:
    def work(group: HostGroup, rank: int) -> object:
        front = sum_in_memory(group, launch(rank, 2, port), 60.0)
        assert isinstance(front, LocalGroup)
        told = [front.start_sum([rank + 1.0])(), front.broadcast(bytes([7 + rank]))]
        front.close()
        return told

    assert in_threads(2, port, work) == [[[3.0], b"\x07"]] * 2


def test_nothing_is_left_after_a_close(port: int) -> None:
    files, num_open, num_threads = shared_files(), open_files(), threading.active_count()
    in_threads(3, port, lambda group, rank: group.start_sum_arrays([np.ones(9)])())
    assert shared_files() <= files
    assert open_files() == num_open
    assert threading.active_count() == num_threads


def test_results_are_new_arrays_and_a_world_of_one_copies_nothing() -> None:
    group = HostGroup(replace(launch(0, 1, 1), master_addr=None, master_port=None), 1.0)
    given = np.arange(4)
    assert group.sum_arrays([given])[0] is given
    assert group.start_sum_arrays([given])()[0] is given
    assert (group.broadcast(b"x"), group.gather(b"y"), group.start_sum([1.5])()) == (b"x", [b"y"], [1.5])
    group.close()


def launch(rank: int, world: int, port: int) -> Launch:
    return Launch(
        launcher="torchrun",
        identity=f"a test at {port}",  # so that tests that run at once take other ports
        rank=rank,
        world=world,
        local_rank=rank,
        local_world=world,
        gang="token",
        master_addr="127.0.0.1",
        master_port=port,
    )


def in_threads(
    world: int, port: int, work: Callable[[HostGroup, int], object], folder: Path = Path("/dev/shm")
) -> list[object]:
    """Return what the work gives on each rank, a thread each."""
    told: list[object] = [None] * world

    def be(rank: int) -> None:
        group = HostGroup(launch(rank, world, port), 60.0, folder)
        told[rank] = work(group, rank)
        group.close()

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return told


def answer_garbage(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("gscalar-*")}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
