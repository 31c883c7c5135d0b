"""What a step's accounts, spans, collectives and shares become on the record, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.model.accounts import ACCOUNTS, pack_accounts, pack_nanoseconds, unpack_accounts
from gscalar.model.shares import Share, pack_shares, unpack_shares
from gscalar.model.spans import Collective, Span, pack_collectives, pack_spans, unpack_collectives, unpack_spans

MICROSECONDS = st.integers(0, 2**52).map(lambda us: us * 1000)
SMALL = st.integers(0, 2**31)


@given(st.dictionaries(st.sampled_from(list(ACCOUNTS)), st.floats(0, 1e9)))
def test_accounts_come_back_and_absent_ones_are_zero(seconds: dict[str, float]) -> None:
    assert unpack_accounts(pack_accounts(seconds)) == dict.fromkeys(ACCOUNTS, 0.0) | seconds


def test_nanoseconds_are_packed_as_seconds_in_the_order_of_the_table() -> None:
    got = unpack_accounts(pack_nanoseconds([10**9, *range(1, 9)]))
    assert got["compute"] == 1.0
    assert math.isclose(got["other"], 8e-9)


def test_a_step_without_accounts_has_none() -> None:
    assert unpack_accounts(b"") == {}


@pytest.mark.parametrize(("num", "want"), [(3, list(ACCOUNTS)[:3]), (12, list(ACCOUNTS))], ids=["older", "newer"])
def test_a_record_of_another_version_gives_the_accounts_that_are_known(num: int, want: list[str]) -> None:
    assert list(unpack_accounts(bytes(8 * num))) == want


@given(st.lists(st.builds(Span, st.integers(1, 10), MICROSECONDS, MICROSECONDS, st.integers(-1, 2**40))))
def test_spans_come_back(spans: list[Span]) -> None:
    assert list(unpack_spans(pack_spans(spans))) == spans


def test_neighbouring_spans_stay_neighbours_when_they_are_rounded() -> None:
    first, second = unpack_spans(pack_spans([Span(1, 700, 800), Span(2, 1500, 900)]))
    assert first.start_ns + first.duration_ns == second.start_ns


@given(st.lists(st.builds(Collective, SMALL, SMALL, SMALL, SMALL, MICROSECONDS, MICROSECONDS, MICROSECONDS)))
def test_collectives_come_back(collectives: list[Collective]) -> None:
    assert list(unpack_collectives(pack_collectives(collectives))) == collectives


@given(st.lists(st.builds(Share, SMALL, SMALL, SMALL, SMALL)))
def test_shares_come_back(shares: list[Share]) -> None:
    assert list(unpack_shares(pack_shares(shares))) == shares


@pytest.mark.parametrize(
    ("unpack", "rows"),
    [
        (unpack_spans, pack_spans([Span(1, 2000, 3000, 4)]) + (1, 2)),
        (unpack_collectives, pack_collectives([Collective(1, 0, 0, 8, 0, 0, 0)]) + (1, 2, 3)),
        (unpack_shares, pack_shares([Share(0, 0, 0, 8)]) + b"\x01\x02"),
    ],
    ids=["spans", "collectives", "shares"],
)
def test_half_a_row_is_left_out(unpack: Callable[[Any], Any], rows: Any) -> None:
    assert len(list(unpack(rows))) == 1
