from __future__ import annotations

from typing import Any

import pytest

from gscalar.model.flops import mfu, transformer_flops_per_token, transformer_params

SAMPLES = {"samples_per_s": 100.0}
TOKENS = {"samples_per_s": 100.0, "tokens_per_s": 2e4}
SHAPE = {"layers": 2, "d_model": 64, "seq": 128, "vocab": 256, "params": None}
# 6 * 1e6 + 12 * 2 * 64 * 128
PER_TOKEN = 6_196_608.0

# sentence: (flops, throughput, world, utilization)
CASES: dict[str, tuple[Any, dict[str, float], int, float | None]] = {
    "by sample": ({"per_sample": 1e9, "peak_flops_per_s": 1e12}, SAMPLES, 1, 0.1),
    "over all workers": ({"per_sample": 1e9, "peak_flops_per_s": 1e12}, SAMPLES, 4, 0.025),
    "by token": ({"per_token": 1e6, "peak_flops_per_s": 1e12}, TOKENS, 1, 0.02),
    "by token, and nobody counts tokens": ({"per_token": 1e6, "peak_flops_per_s": 1e12}, SAMPLES, 1, None),
    "a transformer whose parameters are given": (
        {"transformer": SHAPE | {"params": 1e6}, "peak_flops_per_s": 1e12}, TOKENS, 1, PER_TOKEN * 2e4 / 1e12
    ),
    "a sample of a transformer is a sequence": (
        {"transformer": SHAPE | {"params": 1e6}, "peak_flops_per_s": 1e12}, SAMPLES, 1, PER_TOKEN * 12_800 / 1e12
    ),
    "no peak": ({"per_sample": 1e9, "peak_flops_per_s": None}, SAMPLES, 1, None),
    "no throughput yet": ({"per_sample": 1e9, "peak_flops_per_s": 1e12}, {}, 1, None),
    "only a peak": ({"peak_flops_per_s": 1e12}, SAMPLES, 1, None),
    "half a shape, in a record of another version": (
        {"transformer": {"layers": 2}, "peak_flops_per_s": 1e12}, TOKENS, 1, None
    ),
    "a record of an older version": (None, TOKENS, 1, None),
}  # fmt: skip


@pytest.mark.parametrize("sentence", CASES)
def test_the_utilization(sentence: str) -> None:
    flops, throughput, world, want = CASES[sentence]
    assert mfu(flops, throughput, world) == (pytest.approx(want) if want else None)


def test_gpt_3_takes_the_flops_that_its_paper_says() -> None:
    # Brown et al. 2020, table D.1: 174.6e9 parameters, 3.14e23 FLOPs for 300e9 tokens, which leaves attention out.
    params = transformer_params(layers=96, d_model=12288, vocab=50257)
    assert params == pytest.approx(174.6e9, rel=0.01)
    assert 6 * params * 300e9 == pytest.approx(3.14e23, rel=0.01)
    # At 2048 tokens attention adds 12 * 96 * 12288 * 2048 / (6 * 174.6e9) = 2.8 %.
    got = transformer_flops_per_token(params, layers=96, d_model=12288, seq=2048)
    assert got / (6 * params) == pytest.approx(1.028, abs=0.001)
