"""How a loader's data set is asked for one batch: as a whole, and under random numbers of the batch's own.

Putting the training's random numbers aside and back costs a few tenths of a millisecond, since the states of
Python's and NumPy's generators are 2.5 KB each and leave the caches between two steps. Where what is fetched lies in
tensors and is put together by torch's own function, nothing can draw, and nothing is put aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, default_collate, default_convert

from gscalar.frameworks.torch.randomness import drawing

_COLLATES = (default_collate, default_convert)


@dataclass(frozen=True, slots=True)
class Request:
    """What the data set is asked for: the indices of one batch, and the seed of its random numbers."""

    indices: tuple[int, ...]
    draw: int


class SeededFetch:
    """The data set as a loader sees it: fetches and collates a whole batch under the batch's seed."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], batched: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batched = batched
        self._draws = not (collate in _COLLATES and holds_tensors(dataset))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, request: Request) -> Any:
        if not self._draws:
            return self._fetch(request.indices)
        with drawing(request.draw):
            return self._fetch(request.indices)

    def _fetch(self, indices: tuple[int, ...]) -> Any:
        if not self._batched:
            return self._collate(self._dataset[indices[0]])
        many = getattr(self._dataset, "__getitems__", None)
        samples = many(list(indices)) if many else [self._dataset[index] for index in indices]
        return self._collate(samples)


def as_it_is(batch: Any) -> Any:
    """Return the batch, which the data set has put together already."""
    return batch


def holds_tensors(dataset: Any) -> bool:
    """Whether a data set only picks rows of tensors, and so draws no random numbers."""
    kind = type(dataset)  # a subclass may do anything
    if kind is torch.Tensor:
        return True
    if kind is TensorDataset:
        return all(type(tensor) is torch.Tensor for tensor in dataset.tensors)
    if kind is Subset:
        return holds_tensors(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(holds_tensors, dataset.datasets))
    if kind is StackDataset:
        parts = dataset.datasets
        return all(map(holds_tensors, parts.values() if isinstance(parts, dict) else parts))
    return False
