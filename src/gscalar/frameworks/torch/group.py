"""The ranks of one launch, and their collectives on the host.

The host group is a gloo group of its own, beside the one that exchanges gradients: its small
messages then never change the order of the gradient collectives, and they run during the backward.
Every attempt has its own key prefix in the rendezvous store. Under torchrun the agent's store
outlives an attempt, and a new attempt would read the addresses of the dead one.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from gscalar.base.errors import EnvironmentProblem, Retryable
from gscalar.runtime.launch import Launch


class SingleGroup:
    """A world of one."""

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Return the values themselves."""
        totals = list(values)
        return lambda: totals

    def broadcast(self, payload: bytes) -> bytes:
        """Return the payload."""
        return payload

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payload alone."""
        return [payload]

    def close(self) -> None:
        """Do nothing."""


class HostGroup:
    """All ranks, over gloo. Owns the process groups that it made."""

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        timeout = datetime.timedelta(seconds=timeout_s)
        self._rank = launch.rank
        self._owns_world = not dist.is_initialized()
        if self._owns_world:
            _join_world(launch, timeout)
        self._group = dist.new_group(backend="gloo", timeout=timeout)

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin a float64 sum over all ranks."""
        totals = torch.tensor(list(values), dtype=torch.float64)
        work = dist.all_reduce(totals, group=self._group, async_op=True)

        def wait() -> list[float]:
            work.wait()
            return totals.tolist()

        return wait

    def broadcast(self, payload: bytes) -> bytes:
        """Return rank 0's payload."""
        size = torch.tensor([len(payload)])
        dist.broadcast(size, 0, group=self._group)
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self._rank == 0:
            content = _as_tensor(payload)
        dist.broadcast(content, 0, group=self._group)
        return content.numpy().tobytes()

    def gather(self, payload: bytes) -> list[bytes]:
        """Return all payloads on rank 0; they are padded to the longest on the way."""
        world = dist.get_world_size(self._group)
        sizes = torch.zeros(world, dtype=torch.int64)
        sizes[self._rank] = len(payload)
        dist.all_reduce(sizes, group=self._group)
        padded = torch.zeros(max(int(sizes.max()), 1), dtype=torch.uint8)
        padded[: len(payload)] = _as_tensor(payload)
        rows = [torch.zeros_like(padded) for _ in range(world)] if self._rank == 0 else None
        dist.gather(padded, rows, 0, group=self._group)
        if rows is None:
            return []
        return [row[: int(size)].numpy().tobytes() for row, size in zip(rows, sizes, strict=True)]

    def close(self) -> None:
        """Leave; a world group that the script made itself stays the script's."""
        if self._owns_world and dist.is_initialized():
            dist.destroy_process_group()


def _as_tensor(payload: bytes) -> torch.Tensor:
    if not payload:  # which frombuffer refuses
        return torch.zeros(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def _join_world(launch: Launch, timeout: datetime.timedelta) -> None:
    assert launch.master_addr is not None
    assert launch.master_port is not None
    if launch.master_port == 0:
        raise EnvironmentProblem(
            code="launcher-unclear",
            what="MASTER_PORT is 0, at which no rank can reach another (torchrun --master-port 0 does that).",
            value=launch.master_port,
            next_step="Give a port, or launch on one machine with torchrun --standalone.",
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    # torchrun's agent already serves the store; everywhere else rank 0 does.
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    try:
        store: Store = TCPStore(
            launch.master_addr,
            launch.master_port,
            launch.world,
            is_master=launch.rank == 0 and not agent_serves,
            timeout=timeout,
        )
        store = PrefixStore(f"gscalar/attempt-{launch.attempt}", store)
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.world, timeout=timeout)
    except (dist.DistNetworkError, dist.DistStoreError, RuntimeError) as error:
        raise Retryable(
            code="rendezvous-failed",
            what=f"Rank {launch.rank} of {launch.world} did not reach the others: {error}",
            value=f"{launch.master_addr}:{launch.master_port}",
            next_step="See whether all workers started, and whether they reach that address.",
        ) from error
