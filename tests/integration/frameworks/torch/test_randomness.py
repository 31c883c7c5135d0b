"""Random numbers of Python, NumPy and torch: seeded, saved, put back, and lent to the data."""

# ruff: noqa: NPY002 - the global generator is what most data sets draw from

from __future__ import annotations

import random

import numpy as np
import pytest

pytestmark = pytest.mark.torch


def draw() -> tuple[float, float, float, float]:
    import torch

    # gauss keeps half of its numbers for the next call: that half is state too.
    return random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(())), float(torch.randn(()))


@pytest.fixture(autouse=True)
def numpy_as_it_was():
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def test_all_follow_from_the_seed() -> None:
    from gscalar.frameworks.torch.randomness import seed_all

    seed_all(5, False)
    first = [draw() for _ in range(3)]
    seed_all(5, False)
    assert [draw() for _ in range(3)] == first
    seed_all(6, False)
    assert all(got != was for got, was in zip(draw(), first[0], strict=True))
    seed_all(2**63 - 1, False)


def test_a_saved_state_goes_on_with_the_very_next_number() -> None:
    from gscalar.frameworks.torch.randomness import random_state, seed_all, set_random_state

    seed_all(5, False)
    draw()
    blob = random_state()
    assert isinstance(blob, bytes)
    want = [draw() for _ in range(3)]
    seed_all(1, False)
    set_random_state(blob)
    assert [draw() for _ in range(3)] == want


def test_data_draws_by_its_seed_and_leaves_the_trainings_numbers_alone() -> None:
    from gscalar.frameworks.torch.randomness import drawing, seed_all

    seed_all(5, False)
    want = [draw() for _ in range(3)]
    seed_all(5, False)
    got, drawn = [], []
    for _ in range(3):
        with drawing(9):
            drawn.append(draw())
        got.append(draw())
    assert got == want
    assert len(set(drawn)) == 1
    with drawing(10):
        assert draw() != drawn[0]


def test_the_trainings_numbers_come_back_when_the_data_fails() -> None:
    from gscalar.frameworks.torch.randomness import drawing, seed_all

    def fail() -> None:
        with drawing(9):
            draw()
            raise ValueError

    seed_all(5, False)
    want = draw()
    seed_all(5, False)
    with pytest.raises(ValueError):
        fail()
    assert draw() == want


def test_deterministic_forbids_what_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gscalar.frameworks.torch.randomness import seed_all

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        seed_all(1, False)
        assert not torch.are_deterministic_algorithms_enabled()
        seed_all(1, True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        index = torch.zeros(3, dtype=torch.long)
        with pytest.raises(RuntimeError, match="deterministic"):
            torch.zeros(2).put_(index, torch.ones(3), accumulate=False)
    finally:
        torch.use_deterministic_algorithms(False)
