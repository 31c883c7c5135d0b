"""Rank 0's answers: messages in, messages out."""

from __future__ import annotations

import msgspec
import pytest

from gscalar.runtime.host_group.post import Unpacker
from gscalar.runtime.host_group.roundtable import Deliveries, Failure, Kind, Message, Roundtable, Why, pack, unpack

Step = tuple[int, Message]


def part(*values: float, number: int = 1) -> Message:
    return Message(Kind.SUM, number, pack(list(values)))


def gathered(payload: bytes, number: int = 1) -> Message:
    return Message(Kind.GATHER, number, payload)


def failed(rank: int, why: Why, world: int = 3) -> Deliveries:
    return [(to, Message(Kind.FAILED, 0, Failure(rank, why).packed())) for to in range(world)]


def to_all(message: Message, world: int = 3) -> Deliveries:
    return [(to, message) for to in range(world)]


BYE, ASK = Message(Kind.BYE, 0), Message(Kind.ASK, 1)
CAST = Message(Kind.BROADCAST, 1, b"x")
CASES: dict[str, tuple[list[Step], Deliveries]] = {
    "a sum waits for the last part": ([(2, part(1)), (0, part(1))], []),
    "a sum is told to all": ([(2, part(1, 2)), (0, part(3, 4)), (1, part(5, 6))], to_all(part(9, 12))),
    "values are added in the order of ranks": (
        [(2, part(-1e300)), (1, part(1e300)), (0, part(1.0))],
        to_all(part(0.0)),  # (1 + 1e300) - 1e300
    ),
    "a sum of nothing is told too": ([(0, part()), (1, part()), (2, part())], to_all(part())),
    "a broadcast waits for nobody": ([(0, CAST)], to_all(CAST)),
    "a gather is told to rank 0 in order": (
        [(2, gathered(b"c")), (0, gathered(b"")), (1, gathered(b"b"))],
        [(0, Message(Kind.GATHER, 1, msgspec.msgpack.encode([b"", b"b", b"c"])))],
    ),
    "calls are kept apart by number": (
        [(0, part(1)), (0, part(10, number=2)), (1, part(1)), (1, part(10, number=2)), (2, part(1))],
        to_all(part(3)),
    ),
    "a rank that makes another call is named": ([(0, part(1)), (1, gathered(b""))], failed(1, "differs")),
    "a rank with another number of values is named": (
        [(0, part(1)), (1, part(1)), (2, part(1, 1))],
        failed(2, "differs"),
    ),
    "whoever leaves before its part is named": ([(0, part(1)), (1, BYE)], failed(1, "left")),
    "also when others call later": ([(1, BYE), (2, part(1))], failed(1, "left")),
    "whoever leaves after its part does no harm": (
        [(1, part(1)), (1, BYE), (0, part(1)), (2, part(1))],
        to_all(part(3)),
    ),
    "rank 0 says that it leaves": ([(0, BYE)], [(1, BYE), (2, BYE)]),
    "who is waited for is named when asked": ([(0, part(1)), (2, part(1)), (2, ASK)], failed(1, "still")),
    "a broadcast waits for rank 0": ([(2, ASK)], failed(0, "still")),
    "an answer that is on its way needs no question": (
        [(0, part(1)), (1, part(1)), (2, part(1)), (2, ASK)],
        [],
    ),
    "nor does a broadcast": ([(0, CAST), (2, ASK)], []),
    "a failure seen elsewhere is told to all": (
        [(1, Message(Kind.FAILED, 0, Failure(2, "ended").packed()))],
        failed(2, "ended"),
    ),
    "a failure is told once": ([(1, BYE), (2, part(1)), (0, part(1))], []),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_last_is_answered_so(case: str) -> None:
    steps, want = CASES[case]
    table = Roundtable(3)
    got = [table.take(rank, message) for rank, message in steps][-1]
    assert got == want


def test_a_world_of_one_is_answered_at_once() -> None:
    assert Roundtable(1).take(0, part(1.5)) == [(0, part(1.5))]


def test_values_keep_their_bits() -> None:
    values = [0.1, -0.0, 1e-310, float("inf"), 2.0**53 + 1]
    assert unpack(pack(values)) == values


@pytest.mark.parametrize(
    ("why", "code", "text"),
    [
        ("ended", "peer-lost", "Rank 1 lost rank 2"),
        ("left", "peer-lost", "rank 2, which has left"),
        ("still", "peer-lost", "too long for rank 2"),
        ("differs", "ranks-differ", "Rank 2 makes another call"),
    ],
)
def test_a_failure_names_the_rank(why: Why, code: str, text: str) -> None:
    error = Failure(2, why).error(1)
    assert error.code == code
    assert text in error.what


@pytest.mark.parametrize("step", [1, 7, 16, 17, 1000])
def test_messages_come_out_of_the_stream_however_it_is_cut(step: int) -> None:
    sent = [part(1.0, 2.0), Message(Kind.BYE, 0), Message(Kind.BROADCAST, 2**40, bytes(300))]
    # kind in one byte, number and length in eight each
    stream = b"".join(
        bytes([m.kind]) + m.number.to_bytes(8, "little") + len(m.payload).to_bytes(8, "little") + m.payload
        for m in sent
    )
    unpacker = Unpacker()
    got = [message for at in range(0, len(stream), step) for message in unpacker.feed(stream[at : at + step])]
    assert got == sent
