"""Which data sets are fetched under random numbers of the batch's own, and that the others cannot draw."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from gscalar.frameworks.torch import fetching
from gscalar.frameworks.torch.fetching import Request, SeededFetch, holds_tensors

pytestmark = pytest.mark.torch
ROWS = torch.arange(12.0).reshape(6, 2)


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(part + random.random() + torch.rand(()) for part in super().__getitem__(index))


class Own(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return ROWS[index]


@pytest.mark.parametrize(
    ("case", "dataset", "still"),
    [
        ("a tensor", ROWS, True),
        ("tensors side by side", TensorDataset(ROWS, ROWS), True),
        ("a part of them", Subset(TensorDataset(ROWS), [1, 2]), True),
        ("several", ConcatDataset([TensorDataset(ROWS), Subset(TensorDataset(ROWS), [0])]), True),
        ("stacked by position", StackDataset(ROWS, TensorDataset(ROWS)), True),
        ("stacked by name", StackDataset(x=ROWS, y=ROWS), True),
        ("a parameter, whose class may do anything", torch.nn.Parameter(ROWS), False),
        ("a subclass", Noisy(ROWS), False),
        ("a part of a subclass", Subset(Noisy(ROWS), [1]), False),
        ("several with one of them", ConcatDataset([TensorDataset(ROWS), Noisy(ROWS)]), False),
        ("a class of the script's own", Own(), False),
        ("a list", [1, 2, 3], False),
    ],
)
def test_what_cannot_draw(case: str, dataset: Any, still: bool) -> None:
    assert holds_tensors(dataset) is still, case


@pytest.mark.parametrize("collate", [default_collate, default_convert, lambda samples: samples])
def test_numbers_are_put_aside_only_where_something_may_draw(collate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    drawing = fetching.drawing
    monkeypatch.setattr(fetching, "drawing", lambda seed: seeds.append(seed) or drawing(seed))
    request = Request((1, 3), 17)
    SeededFetch(TensorDataset(ROWS), collate, batched=True).__getitems__(request)
    assert seeds == ([] if collate in (default_collate, default_convert) else [17])
    SeededFetch(Noisy(ROWS), collate, batched=True).__getitems__(request)
    assert seeds[-1:] == [17]


@pytest.mark.parametrize("batched", [True, False])
def test_the_batch_is_the_loaders_own(batched: bool) -> None:
    dataset = TensorDataset(ROWS, torch.arange(6))
    fetched = SeededFetch(dataset, default_collate if batched else default_convert, batched)
    got = fetched.__getitems__(Request((1, 3) if batched else (3,), 0))
    own: list[int | list[int]] = [[1, 3]] if batched else [3]
    options: dict[str, Any] = {"batch_sampler": own} if batched else {"sampler": own, "batch_size": None}
    loader: DataLoader[Any] = DataLoader(dataset, **options)
    want = next(iter(loader))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))


def test_what_draws_draws_the_same_for_the_same_batch_and_leaves_the_training_alone() -> None:
    fetched = SeededFetch(Noisy(ROWS), default_collate, batched=True)
    torch.manual_seed(1)
    random.seed(1)
    before = (torch.rand(()), random.random())
    torch.manual_seed(1)
    random.seed(1)
    first = fetched.__getitems__(Request((1, 3), 17))
    after = (torch.rand(()), random.random())
    assert after == before
    assert torch.equal(fetched.__getitems__(Request((1, 3), 17))[0], first[0])
    assert not torch.equal(fetched.__getitems__(Request((1, 3), 18))[0], first[0])
