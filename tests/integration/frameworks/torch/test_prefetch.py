"""The depth of a loader's prefetch queue, seen from outside."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_without_worker_processes_there_is_no_queue() -> None:
    from torch.utils.data import DataLoader

    from gscalar.frameworks.torch.prefetch import with_ready

    assert [ready for _, ready in with_ready(iter(DataLoader([1, 2, 3], batch_size=1)))] == [-1, -1, -1]  # type: ignore[arg-type]
    assert list(with_ready(iter("ab"))) == [("a", -1), ("b", -1)]


def test_a_consumer_that_is_slower_finds_batches_ready_and_the_last_ones_run_out() -> None:
    from torch.utils.data import DataLoader

    from gscalar.frameworks.torch.prefetch import count_ready, with_ready

    loader: Any = DataLoader(list(range(12)), batch_size=1, num_workers=2, prefetch_factor=2)  # type: ignore[arg-type]
    source = iter(loader)
    deadline = time.monotonic() + 60
    while count_ready(source) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count_ready(source) == 4  # what two workers prefetch, and no more
    seen = list(with_ready(source))
    assert [int(item) for item, _ in seen] == list(range(12))
    assert seen[0][1] == 4
    assert all(0 <= ready <= 4 for _, ready in seen)
    assert seen[-1][1] <= 1
    assert count_ready(source) == 0
