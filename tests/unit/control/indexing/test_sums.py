"""Sums of accounts and of hardware samples, whatever the pieces in which a file is read."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.control.indexing.sums import Usage, add_accounts, add_usage, join_usage
from gscalar.model.accounts import ACCOUNTS, pack_accounts

NUM = len(ACCOUNTS)


def padded(*values: float) -> list[float]:
    return [*values, *[0.0] * (NUM - len(values))]


# sentence: (packed accounts of steps, sums)
CASES: dict[str, tuple[list[bytes], list[float]]] = {
    "no step": ([], padded()),
    "accounts by name": ([pack_accounts({"compute": 1.0, "data_wait": 0.5})] * 3, padded(3.0, 0.0, 1.5)),
    "a writer that knows fewer": ([struct.pack("<2d", 1.0, 2.0)] * 2, padded(2.0, 4.0)),
    "a writer that knows more": (
        [struct.pack(f"<{NUM + 1}d", *range(NUM + 1))],
        [float(each) for each in range(NUM)],
    ),
    "writers one after the other": ([struct.pack("<1d", 1.0), pack_accounts({"compute": 2.0})], padded(3.0)),
    "half a number at the end is left out": ([struct.pack("<1d", 1.0) + b"\1\2\3"], padded(1.0)),
    "steps that carry none": ([b"", b""], padded()),
}


@pytest.mark.parametrize("sentence", CASES)
def test_accounts_are_summed(sentence: str) -> None:
    packed, want = CASES[sentence]
    assert add_accounts([], packed) == want


@given(
    st.lists(st.lists(st.floats(0, 1e6), max_size=NUM).map(lambda row: struct.pack(f"<{len(row)}d", *row))), st.data()
)
def test_pieces_give_exactly_what_all_at_once_gives(packed: list[bytes], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(packed)))
    assert add_accounts(add_accounts([], packed[:cut]), packed[cut:]) == add_accounts([], packed)


def test_samples_come_to_mean_greatest_and_last() -> None:
    usages: dict[str, Usage] = {}
    for cores, memory in ((1.0, 10.0), (3.0, math.nan), (2.0, 30.0)):
        add_usage(usages, ("cores", "memory"), struct.pack("<2d", cores, memory))
    assert usages == {"cores": Usage(3, 6.0, 3.0, 2.0), "memory": Usage(2, 40.0, 30.0, 30.0)}


def test_usages_are_joined_in_their_order() -> None:
    assert join_usage(Usage(2, 5.0, 4.0, 1.0), Usage(1, 2.0, 2.0, 2.0)) == Usage(3, 7.0, 4.0, 2.0)
    assert join_usage(Usage(2, 5.0, 4.0, 1.0), Usage()) == Usage(2, 5.0, 4.0, 1.0)
