"""What needs no socket: a world of one, and how rank 0 says where to ask."""

from __future__ import annotations

import socket
from typing import Any

from gscalar.runtime.clock_sync import Invitation, start_clock_sync
from gscalar.runtime.launch import Launch


class NoCollective:
    """A group in which nobody may say anything."""

    def broadcast(self, payload: bytes) -> bytes:
        raise AssertionError("a world of one has nobody to talk to")


class Silent:
    """The group of rank 1, whose rank 0 has no address to answer at."""

    def broadcast(self, payload: bytes) -> bytes:
        return b"nobody"


def test_a_world_of_one_compares_nothing() -> None:
    group: Any = NoCollective()
    start_clock_sync(group, Launch(launcher="alone", identity="i"), None)()  # type: ignore[arg-type]


def test_a_rank_0_that_cannot_answer_is_not_asked() -> None:
    group: Any = Silent()
    launch = Launch(launcher="torchrun", identity="i", rank=1, world=2, master_addr="127.0.0.1", master_port=1)
    start_clock_sync(group, launch, None)()  # type: ignore[arg-type]


def test_an_invitation_is_broadcast_whole() -> None:
    invitation = Invitation(host="", port=4711, family=int(socket.AF_INET6), token="00ff" * 8)
    assert Invitation.unpacked(invitation.packed()) == invitation
