"""Ranks that compare their clocks over UDP: two processes, strangers, and nobody who answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gscalar.model.events import Clock, Event, Hardware, Note
from gscalar.runtime import clock_sync
from gscalar.runtime.clock_sync import Answerer, Asker, Invitation
from gscalar.runtime.launch import Launch
from gscalar.state.home import Home
from gscalar.state.records import Frame, read_record
from gscalar.testing.processes import wait_until

SCRIPTS = Path(__file__).parents[1] / "scripts"
LIMIT_S = 60.0
RANK0 = Launch(launcher="torchrun", identity="i", world=2, local_world=2, master_addr="127.0.0.1", master_port=1)
RANK1 = Launch(launcher="torchrun", identity="i", rank=1, world=2, local_rank=1, local_world=2, master_addr="127.0.0.1")


def test_two_processes_find_the_offset_and_a_clock_that_is_set(gang: Callable[..., None], tmp_path: Path) -> None:
    gang(SCRIPTS / "clock_pair.py", 2, OFFSETS="12.5 3612.5 -7")
    told = json.loads((tmp_path / "clock_pair-2-1.log").read_text())
    assert told["notes"] == []
    for (offset_s, bound_s, num_pings), want_s in zip(told["clocks"], (-12.5, -3612.5, 7.0), strict=True):
        assert abs(offset_s - want_s) <= bound_s < 0.5
        assert num_pings == 1
    assert json.loads((tmp_path / "clock_pair-2-0.log").read_text())["clocks"] == []


def test_a_training_of_two_records_its_clocks_and_its_hardware(gang: Callable[..., None], home: Path) -> None:
    gang(SCRIPTS / "toy_train.py", 2, GSCALAR_RUN_ID="mine", TOY=json.dumps({"steps": 10, "pace_s": 0.25}))
    folder = Home(home).run("mine")

    def told(rank: int, kind: type[Event]) -> list[Any]:
        events = [item.event for item in read_record(folder.worker_record(0, rank)) if isinstance(item, Frame)]
        return [event for event in events if isinstance(event, kind)]

    (clock,) = told(1, Clock)
    assert abs(clock.offset_s) <= clock.bound_s < 0.5  # one host, one clock
    assert told(0, Clock) == []
    # The first worker of the host samples for both, and the host itself.
    assert {sample.rank for sample in told(0, Hardware)} == {-1, 0, 1}
    assert told(1, Hardware) == []
    assert all(note.code != "hardware-unread" for rank in (0, 1) for note in told(rank, Note))


@pytest.fixture
def answerer() -> Iterator[Answerer]:
    """Rank 0's side, answering in a thread."""
    answerer = Answerer(RANK0)
    thread = threading.Thread(target=answerer.run)
    thread.start()
    yield answerer
    answerer.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_strangers_get_no_answer_and_do_no_harm(answerer: Answerer) -> None:
    where = ("127.0.0.1", answerer.invitation.port)
    token = bytes.fromhex(answerer.invitation.token)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(LIMIT_S)
        for question in (b"", b"x", bytes(24), bytes(4000), token):
            asking.sendto(question, where)
        asking.sendto(token + (7).to_bytes(8, "little"), where)
        answer, _ = asking.recvfrom(100)  # the first that comes: to the one that knew the token
    assert answer[:24] == token + (7).to_bytes(8, "little")


def test_rank_0_listens_on_the_loopback_only_where_the_rendezvous_is_there(answerer: Answerer) -> None:
    assert answerer.invitation.host == "127.0.0.1"
    assert answerer._socket.getsockname()[0] == "127.0.0.1"


def test_a_host_whose_own_name_is_a_loopback_address_listens_for_the_other_hosts() -> None:
    several_hosts = Launch(
        launcher="slurm", identity="i", world=4, local_world=2, master_addr="127.0.1.1", master_port=1
    )
    answerer = Answerer(several_hosts)
    with answerer._socket:
        assert (answerer.invitation.host, answerer._socket.getsockname()[0]) == ("", "0.0.0.0")


def test_where_nobody_answers_one_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_sync, "_TIMEOUT_S", 0.01)
    events: list[Event] = []
    sink: Any = SimpleNamespace(emit=events.append)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        invitation = Invitation(host="127.0.0.1", port=port, family=int(socket.AF_INET), token="00" * 16)
        asker = Asker(invitation, RANK1, sink)
        bursts: list[bool] = []
        ask_burst = asker._ask_burst
        monkeypatch.setattr(asker, "_ask_burst", lambda: bursts.append(ask_burst()) or bursts[-1])
        thread = threading.Thread(target=asker.run, args=(0.0,))
        thread.start()
        wait_until(lambda: len(bursts) >= 6, LIMIT_S, "six bursts")
        asker.stop()
        thread.join(LIMIT_S)
    (note,) = events
    assert isinstance(note, Note)
    assert (note.code, f"127.0.0.1:{port}" in note.text) == ("clocks-unknown", True)
    assert not any(bursts)


def test_a_name_that_does_not_resolve_is_nobody_who_answers() -> None:
    events: list[Event] = []
    sink: Any = SimpleNamespace(emit=events.append)
    invitation = Invitation(host="no-such-host.invalid", port=1, family=int(socket.AF_INET), token="00" * 16)
    asker = Asker(invitation, RANK1, sink)
    thread = threading.Thread(target=asker.run, args=(0.0,))
    thread.start()
    wait_until(lambda: events, LIMIT_S, "the note")
    asker.stop()
    thread.join(LIMIT_S)
    assert len(events) == 1
