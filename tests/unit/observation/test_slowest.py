from __future__ import annotations

import pytest

from gscalar.observation.slowest import find_slowest

# sentence: (busy seconds by rank, the slowest rank)
CASES: dict[str, tuple[dict[int, float], int | None]] = {
    "one rank has nobody to wait for it": ({0: 1.0}, None),
    "no rank": ({}, None),
    "one of two": ({0: 1.0, 1: 1.2}, 1),
    "a lead of 5 % is noise": ({0: 1.0, 1: 1.05}, None),
    "one of three": ({0: 1.5, 1: 1.0, 2: 1.02}, 0),
    "half of the gang is slow: the first of the slowest": ({0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0}, 2),
    "most are slow: nobody stands out": ({0: 1.0, 1: 2.0, 2: 2.0}, None),
    "ranks that are not known are not there": ({3: 1.0, 7: 1.3}, 7),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_slowest_leads_the_median(sentence: str) -> None:
    busy_s, want = CASES[sentence]
    found = find_slowest(busy_s)
    assert (found.rank if found else None) == want


def test_what_it_is_compared_with_is_told() -> None:
    found = find_slowest({0: 1.0, 1: 3.0, 2: 1.5})
    assert found is not None
    assert (found.busy_s, found.median_s) == (3.0, 1.5)
