"""Where the time went, as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.cli.costs import (
    BAR_WIDTH,
    account_rows,
    amount_text,
    choose_look,
    clock_line,
    hardware_rows,
    lost_rows,
    spread,
    step_bar,
)
from gscalar.model.accounts import ACCOUNTS

PLAIN = choose_look(colour=False, unicode=True)


def accounts(**means: float) -> dict[str, dict[str, float]]:
    return {name: {"mean": means.get(name, 0.0), "max": 2 * means.get(name, 0.0)} for name in ACCOUNTS}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9), st.integers(1, 100))
def test_cells_fill_the_bar_and_are_within_one_of_their_share(amounts: list[float], width: int) -> None:
    cells = spread(amounts, width)
    total = math.fsum(amounts)
    if total == 0:
        assert cells == [0] * len(amounts)
        return
    assert sum(cells) == width
    assert all(abs(cell - width * amount / total) < 1 + 1e-6 for cell, amount in zip(cells, amounts, strict=True))


def test_the_bar_shows_the_accounts_in_their_order() -> None:
    bar = step_bar(accounts(compute=0.5, exposed_communication=0.25, other=0.25), PLAIN).plain
    assert bar == "█" * (BAR_WIDTH // 2) + "▓" * (BAR_WIDTH // 4) + "." * (BAR_WIDTH // 4)


@pytest.mark.parametrize(("colour", "unicode"), [(False, True), (False, False), (True, False)])
def test_without_colour_or_blocks_every_account_has_a_mark_of_its_own(colour: bool, unicode: bool) -> None:
    look = choose_look(colour=colour, unicode=unicode)
    assert len(set(look.marks.values())) == len(ACCOUNTS)
    assert unicode or all(mark.isascii() for mark in look.marks.values())


def test_with_colour_every_account_has_one_of_its_own() -> None:
    look = choose_look(colour=True, unicode=True)
    assert len(set(look.styles.values())) == len(ACCOUNTS)


def test_the_largest_accounts_come_first_and_those_of_nothing_not_at_all() -> None:
    rows = account_rows(accounts(data_wait=0.03, compute=0.01, gc=1e-9), PLAIN)
    assert [[str(cell).strip() for cell in row] for row in rows] == [
        ["▒", "data wait", "30.0 ms", "75.0 %", "60.0 ms"],
        ["█", "compute", "10.0 ms", "25.0 %", "20.0 ms"],
    ]


def test_what_was_lost_is_told_from_the_most_to_what_matters() -> None:
    lost = {"start": 5.0, "data": None, "recovery": 20.0, "hang": 0.0, "other": 0.001}
    rows = lost_rows({"productive_s": 75.0, "total_s": 100.0, "ratio": 0.75, "lost": lost})
    assert rows == [["  recovery", "20.0 s", "20.0 %"], ["  start", "5.00 s", "5.0 %"]]


def clock(offset_s: float, bound_s: float = 1e-4) -> dict[str, float]:
    return {"offset_s": offset_s, "drift": 0.0, "bound_s": bound_s}


CLOCKS = {
    "nothing was measured": ({"0": clock(0.0, 0.0), "1": clock(0.0, 0.0)}, ""),
    "the furthest first": (
        {"1": clock(0.001), "2": clock(-0.5)},
        "rank 2 -500 ms ± 100 us, rank 1 +1.00 ms ± 100 us",
    ),
    "a large gang": (
        {str(rank): clock(rank / 1000) for rank in range(1, 9)},
        "rank 8 +8.00 ms ± 100 us, rank 7 +7.00 ms ± 100 us, rank 6 +6.00 ms ± 100 us, rank 5 +5.00 ms ± 100 us, "
        "4 closer",
    ),
}


@pytest.mark.parametrize("sentence", CLOCKS)
def test_clocks(sentence: str) -> None:
    clocks, want = CLOCKS[sentence]
    assert clock_line(clocks) == want


def counter(value: float) -> dict[str, float]:
    return {"mean": value, "max": value, "last": value}


def test_limits_stand_beside_what_they_limit() -> None:
    host = {
        "host/cpu_cores": counter(1.5),
        "host/cpu_limit_cores": counter(2.0),
        "host/memory_bytes": counter(2**30),
        "host/memory_limit_bytes": counter(2**34),
        "gpu0/memory_bytes": counter(2**30),
        "gpu0/throttle_reasons": counter(4.0),
    }
    assert [row[:2] for row in hardware_rows({"host": host, "workers": {}})] == [
        ["  host/cpu_cores of 2.00", "1.50"],
        ["  host/memory_bytes of 16.0 GiB", "1.00 GiB"],
        ["  gpu0/memory_bytes", "1.00 GiB"],
    ]


def test_of_a_large_gang_the_first_workers_are_shown() -> None:
    workers = {str(rank): {"worker/cpu_cores": counter(1.0)} for rank in range(6)}
    rows = hardware_rows({"host": {}, "workers": workers})
    assert [row[0].strip() for row in rows] == [
        *(f"worker/cpu_cores rank {rank}" for rank in range(4)),
        "2 more workers: --json",
    ]


AMOUNTS = {
    "host/disk_read_bytes_per_s": (2**20, "1.00 MiB/s"),
    "gpu3/utilization_ratio": (0.83, "83.0 %"),
    "gpu3/power_watts": (312.4, "312 W"),
    "gpu3/temperature_celsius": (61.0, "61 °C"),
    "gpu3/sm_clock_hz": (1.98e9, "1.98 GHz"),
    "worker/cpu_cores": (0.954, "0.95"),
    "a counter of a newer version": (1.5, "1.50"),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_amounts_have_their_units(name: str) -> None:
    value, want = AMOUNTS[name]
    assert amount_text(name, value) == want
