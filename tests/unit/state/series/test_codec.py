from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.state.series.codec import decode_axis, decode_floats, encode_axis, encode_floats

BITS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300)
INT64 = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=300)


@given(bits=BITS)
def test_floats_come_back_bit_for_bit_whatever_the_nan(bits: list[int]) -> None:
    want = np.array(bits, np.uint64).view(np.float64)
    assert decode_floats(encode_floats(want), len(want)).tobytes() == want.tobytes()


@given(steps=INT64, seed=st.integers(0, 9))
def test_an_axis_comes_back_whatever_its_differences(steps: list[int], seed: int) -> None:
    times_ns = np.random.default_rng(seed).permutation(np.array(steps, np.int64))
    got = decode_axis(encode_axis(np.array(steps, np.int64), times_ns), len(steps))
    assert (got[0].tolist(), got[1].tolist()) == (steps, times_ns.tolist())


NOISE = np.random.default_rng(0)
SIZES = {
    "a constant costs nothing": (np.full(4096, 0.001), 0.05),
    "whole numbers cost the bytes that differ": (NOISE.integers(0, 256, 4096).astype(float), 1.6),
    "noise costs its random bytes": (2.0 + NOISE.normal(size=4096), 7.4),
    "random bits cost themselves": (NOISE.integers(0, 2**63, 4096).view(np.float64), 8.01),
}


@pytest.mark.parametrize("sentence", SIZES)
def test_bytes_a_value(sentence: str) -> None:
    values, most = SIZES[sentence]
    assert len(encode_floats(values)) / len(values) <= most


def test_jittered_steps_cost_a_few_bytes_of_time() -> None:
    steps = np.arange(4096)
    times_ns = 1_767_323_045_000_000_000 + steps * 50_000_000 + NOISE.integers(0, 1_000_000, 4096)
    assert len(encode_axis(steps, times_ns)) / 4096 < 4.0
