"""What keeps attempts apart, and where rank 0 listens."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from gscalar.runtime.host_group.rendezvous import digest_of, ports_of, understood
from gscalar.runtime.launch import Launch

LAUNCH = Launch(launcher="torchrun", identity="x", rank=0, world=2, gang="t", master_addr="a", master_port=1)


@pytest.mark.parametrize(
    "change", [{"identity": "y"}, {"run_id": "y"}, {"attempt": 1}, {"world": 3}, {"gang": "y"}, {"gang": None}], ids=str
)
def test_whatever_names_an_attempt_keeps_it_apart(change: dict[str, Any]) -> None:
    assert digest_of(replace(LAUNCH, **change)) != digest_of(LAUNCH)


def test_ranks_of_an_attempt_agree_wherever_they_are() -> None:
    assert digest_of(replace(LAUNCH, rank=1, local_rank=1, local_world=2, master_addr="b")) == digest_of(LAUNCH)


def test_the_token_is_not_told() -> None:
    assert b"secret" not in digest_of(replace(LAUNCH, gang="secret"))


DIGEST = digest_of(LAUNCH)
HELLO = struct.pack("!8s32sIH", b"gscalar>", DIGEST, 1, 4000)


@pytest.mark.parametrize(
    ("case", "said", "want"),
    [
        ("one of this attempt", HELLO, (1, 4000)),
        ("one of another", HELLO.replace(DIGEST, digest_of(replace(LAUNCH, attempt=1))), None),
        ("half of one", HELLO[:20], None),
        ("something else of that length", b"GET / HTTP/1.1".ljust(len(HELLO)), None),
        ("nothing", b"", None),
    ],
)
def test_a_hello_is_understood_when_it_is(case: str, said: bytes, want: tuple[int, int] | None) -> None:
    assert understood(said, DIGEST) == want, case


def test_rank_0_listens_at_the_launchers_port_unless_a_store_does() -> None:
    assert ports_of(LAUNCH, store_listens=False) == [1]
    ports = ports_of(LAUNCH, store_listens=True)
    assert len(set(ports)) > 1
    assert all(20_000 <= port < 32_000 for port in ports)
    assert ports == ports_of(replace(LAUNCH, rank=1), store_listens=True)
    assert ports != ports_of(replace(LAUNCH, attempt=1), store_listens=True)
