"""The user's map-style data loader, taken as it is and sharded over ranks.

The loader's data set, batch size (per worker), collate function, data workers and pinning are kept.
Its sampler is replaced by the run's global order, which is a counter and so can be resumed anywhere;
a sampler of the user's own is listed once an epoch and dealt from that list. Each batch is fetched
under random numbers seeded by the batch itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from gscalar.frameworks.torch.fetching import Request, SeededFetch, as_it_is
from gscalar.frameworks.torch.prefetch import with_ready
from gscalar.frameworks.torch.randomness import drawing
from gscalar.runtime.cursor import Cursor, MicroBatch, Order, OrderFacts, eval_shard, order_digest
from gscalar.runtime.framework import Batch
from gscalar.runtime.launch import Launch


def is_loader(data: Any) -> bool:
    """Whether this is a data loader of torch (or torchdata) over a map-style data set."""
    parts = ("dataset", "batch_sampler", "collate_fn", "num_workers")
    return all(hasattr(data, part) for part in parts) and not isinstance(data.dataset, IterableDataset)


@dataclass(frozen=True, slots=True)
class FeedPlace:
    """Where a feed stands: the rank, its device, the run's seed, and what the run has fixed before."""

    launch: Launch
    seed: int
    device: torch.device
    number: int  # of the data object, in the record
    global_batch: int | None


class LoaderFeed:
    """A map-style loader, fed in the run's order."""

    def __init__(self, loader: Any, place: FeedPlace) -> None:
        self._loader = loader
        self._launch = place.launch
        self._seed = place.seed
        self._device = place.device
        self._number = place.number
        self._lists = _user_batches(loader, place.seed)
        self._batched = loader.batch_size is not None or self._lists is not None
        # Without automatic batching the data set yields whole batches, of a size only they know.
        self._per_item = self._lists is not None or not self._batched
        self._order = self._make_order(place.global_batch)

    @property
    def order(self) -> OrderFacts:
        """What the global order follows from; a batch sampler's positions are its lists."""
        return self._order.facts

    def batches_left(self, cursor: Cursor) -> int | None:
        """Return the global micro-batches that the cursor's epoch still has."""
        return self._order.batches_left(cursor)

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's micro-batches from the cursor on, without end."""
        waiting: deque[tuple[MicroBatch, int | None, int]] = deque()

        def requests() -> Iterator[Request]:
            for step in self._order.steps(cursor, accumulate):
                total = None if self._per_item else sum(micro.num_global for micro in step)
                for micro in step:
                    waiting.append((micro, total, len(step)))
                    yield Request(self._indices(micro.indices, micro.epoch), micro.draw)

        for value, num_ready in with_ready(self._open(requests)):
            micro, group_samples, step_size = waiting.popleft()
            num_samples = micro.num_samples
            if self._per_item:
                num_samples = 0 if micro.is_padding else leading_size(value)
            value, transfer_s = moved(value, self._device)
            yield Batch(
                value=value,
                num_samples=num_samples,
                group_samples=group_samples,
                after=micro.after,
                ends_epoch=micro.ends_epoch,
                shares=micro.shares(self._number),
                step_size=step_size,
                transfer_s=transfer_s,
                num_ready=num_ready,
            )

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass in order; every sample is met once over all ranks."""
        size = len(self._lists(0)) if self._lists is not None else len(self._loader.dataset)
        per_batch = 1 if self._per_item else self._loader.batch_size
        shares = eval_shard(size, per_batch, self._launch.world, self._launch.rank)
        requests = [Request(self._indices(share, 0), self._seed + share[0]) for share in shares]
        for value in self._open(lambda: iter(requests)):
            yield to_device(value, self._device)

    def digest(self, cursor: Cursor) -> str:
        """Return the digest of the order up to the cursor."""
        return order_digest(self._order, cursor)

    def _indices(self, indices: tuple[int, ...], epoch: int) -> tuple[int, ...]:
        return tuple(self._lists(epoch)[indices[0]]) if self._lists is not None else indices

    def _open(self, requests: Callable[[], Iterator[Request]]) -> Iterator[Any]:
        """Return an iterator of the user's loader with our requests in the place of its sampler."""
        loader = self._loader
        options: dict[str, Any] = {"num_workers": loader.num_workers, "pin_memory": loader.pin_memory}
        if loader.num_workers > 0:
            options |= {
                "timeout": loader.timeout,
                "worker_init_fn": loader.worker_init_fn,
                "multiprocessing_context": loader.multiprocessing_context,
                "prefetch_factor": loader.prefetch_factor,
            }
        return iter(
            DataLoader(
                SeededFetch(loader.dataset, loader.collate_fn, self._batched),  # type: ignore[arg-type]  # duck-typed
                batch_sampler=_Requests(requests),  # type: ignore[arg-type]  # yields requests, not indices
                collate_fn=as_it_is,
                # Else every pass would draw a seed from the training's own random numbers.
                generator=torch.Generator().manual_seed(self._seed),
                **options,
            )
        )

    def _make_order(self, global_batch: int | None) -> Order:
        loader, lists, launch = self._loader, self._lists, self._launch
        order = partial(Order, world=launch.world, rank=launch.rank, seed=self._seed, fixed_batch=global_batch)
        if lists is not None:
            return order(size=len(lists(0)), batch_size=1, shuffle=False, listed=lambda epoch: range(len(lists(epoch))))
        sampler = loader.sampler
        size = len(loader.dataset)
        order = partial(order, batch_size=loader.batch_size or 1, drop_last=bool(loader.drop_last))
        if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == size:
            return order(size=size, shuffle=True)
        if isinstance(sampler, SequentialSampler):
            return order(size=size, shuffle=False)
        if isinstance(sampler, DistributedSampler):  # a script that sharded by itself before
            return order(size=size, shuffle=sampler.shuffle)
        listed = _Listing(sampler, self._seed)
        return order(size=len(listed(0)), shuffle=False, listed=listed)


class _Requests:
    """A batch sampler for torch's loader. Iterated in the training process, ahead of the batches."""

    def __init__(self, make: Callable[[], Iterator[Request]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Request]:
        return self._make()


class _Listing:
    """A sampler of the user's, as a pure function of the epoch."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._known: tuple[int, list[Any]] | None = None

    def __call__(self, epoch: int) -> list[Any]:
        if self._known is None or self._known[0] != epoch:
            seed = (self._seed * 1_000_003 + epoch) % 2**63
            sampler: Any
            for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
                if getattr(sampler, "generator", None) is not None:
                    sampler.generator.manual_seed(seed)
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
            with drawing(seed):
                self._known = (epoch, list(self._sampler))
        return self._known[1]


def _user_batches(loader: Any, seed: int) -> Callable[[int], Sequence[Sequence[int]]] | None:
    """Return the batches of an epoch where the user gave a batch sampler, else None."""
    sampler = loader.batch_sampler
    own = sampler is not None and (loader.batch_size is None or type(sampler) is not BatchSampler)
    return _Listing(sampler, seed) if own else None


def leading_size(value: Any) -> int:
    """Return the number of samples of a batch: the first dim of its first tensor, or 1."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.ndim else 1
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((leading_size(item) for item in items), 1)


def moved(value: Any, device: torch.device) -> tuple[Any, float]:
    """Return the batch on the device, and how long the host was held up by it; on the CPU by nothing."""
    if device.type == "cpu":
        return value, 0.0
    began = time.perf_counter()
    return to_device(value, device), time.perf_counter() - began


def to_device(value: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device; on the CPU it is returned as it is."""
    if device.type == "cpu":
        return value
    if hasattr(value, "to"):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(to_device(item, device) for item in value)
    if isinstance(value, dict):
        return type(value)((name, to_device(item, device)) for name, item in value.items())
    return value
