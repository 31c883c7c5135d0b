"""PyTorch in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gscalar.runtime.launch import Launch


@pytest.fixture
def place() -> Callable[..., Launch]:
    """Return a launch of any rank and world; nobody is there but this process."""

    def make(rank: int = 0, world: int = 1) -> Launch:
        return Launch(
            launcher="alone", identity="test", rank=rank, world=world, local_rank=rank, local_world=world,
            master_addr="127.0.0.1", master_port=1,
        )  # fmt: skip

    return make


@pytest.fixture
def process_group() -> Iterator[Any]:
    """A real gloo group of this process alone: data parallel works in it as in a larger one."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def random_numbers_of_the_test() -> Iterator[None]:
    """Give torch's and Python's generators back as they were."""
    import random

    import torch

    python_state, torch_state = random.getstate(), torch.get_rng_state()
    yield
    random.setstate(python_state)
    torch.set_rng_state(torch_state)
