"""One rank of a group: RANK WORLD PORT PATH CASE [ATTEMPT] on the command line, one JSON line on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np

from gscalar.base.errors import ScalarError
from gscalar.runtime.host_group import HostGroup
from gscalar.runtime.launch import Launch

TIMEOUT_S = 60.0
SHAPES = [(0,), (1,), (3,), (10, 100), (), (7, 11, 13)]
LONG = 1_000_003  # elements; no multiple of any world or piece
TYPES = ["float32", "float64", "float16", "int32", "int64", "uint8"]


def inputs(rank: int) -> list[np.ndarray[Any, Any]]:
    """Return arrays of all types and shapes, some not contiguous, alike wherever they are made."""
    rng = np.random.default_rng(rank)
    arrays = []
    for number, shape in enumerate(SHAPES):
        for name in TYPES:
            array = rng.normal(size=shape) * 10.0 ** (number - 2) if "float" in name else rng.integers(0, 50, shape)
            arrays.append(np.asarray(array).astype(name))
    arrays.append(rng.normal(size=(50, 60)).astype("float32").T)
    arrays.append(rng.normal(size=1000)[::3])
    arrays.append(rng.normal(size=LONG).astype("float32"))
    return arrays


def told(arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Return type, shape and bits of each array."""
    return [[str(each.dtype), list(each.shape), sha256(each.tobytes()).hexdigest()] for each in arrays]


def sums(group: HostGroup, rank: int, world: int) -> Any:
    summed = group.sum_arrays(inputs(rank))
    if rank == 0:
        np.savez("sums.npz", *summed)
    direct = told(summed)
    begun = [group.start_sum_arrays(inputs(rank)) for _ in range(2)]
    small = [group.start_sum([rank + 0.1, float(number)]) for number in range(20)]
    values = [wait() for wait in reversed(small)]
    return {"shared": group.shares_memory, "sums": [direct, *(told(wait()) for wait in begun)], "small": values}


def messages(group: HostGroup, rank: int, world: int) -> Any:
    got = []
    for size in (0, 1, 300_000):
        got.append(len(group.broadcast(bytes([rank]) * size)))
        got.append([[len(each), each[:1].hex()] for each in group.gather(bytes([rank]) * (size + rank))])
    return got


def last_words(group: HostGroup, rank: int, world: int) -> Any:
    """Rank 0 leaves at once after a broadcast; others must have it all the same."""
    time.sleep(0.2 * rank)
    return group.broadcast(bytes(500_000 * (rank == 0))) == bytes(500_000)


def until_lost(work: Callable[[], object]) -> Any:
    """Return what ends the work, the seconds that the last call took until then, and what a call says after it."""
    print("ready", flush=True)
    began_s = time.monotonic()
    try:
        while True:
            began_s = time.monotonic()
            work()
    except ScalarError as error:
        told = {"code": error.code, "what": error.what, "took_s": time.monotonic() - began_s}
    try:
        work()
    except ScalarError as again:
        told["again"] = again.code
    return told


def endless_arrays(group: HostGroup, rank: int, world: int) -> Any:
    array = np.ones(300_000, np.float32)
    return until_lost(lambda: group.sum_arrays([array]))


def endless_sums(group: HostGroup, rank: int, world: int) -> Any:
    return until_lost(lambda: group.start_sum([1.0])())


def wait_for_arrays(group: HostGroup, rank: int, world: int) -> Any:
    """The last rank never comes; all others wait for it."""
    if rank == world - 1:
        print("ready", flush=True)
        time.sleep(600)
    return endless_arrays(group, rank, world)


def leave(group: HostGroup, rank: int, world: int) -> Any:
    if rank == world - 1:
        group.close()
        return "left"
    return endless_sums(group, rank, world)


def other_shapes(group: HostGroup, rank: int, world: int) -> Any:
    return until_lost(lambda: group.sum_arrays([np.ones(10 + (rank == world - 1))]))


def other_call(group: HostGroup, rank: int, world: int) -> Any:
    return until_lost(lambda: group.broadcast(b"") if rank == 0 else group.start_sum([1.0])())


def forked(group: HostGroup, rank: int, world: int) -> Any:
    """The last rank leaves a child behind that outlives it."""
    if rank == world - 1:
        child = os.fork()
        if child == 0:
            os.close(1)
            os.close(2)
            time.sleep(600)  # the test ends it
            os._exit(0)
        print(f"child {child}", flush=True)
    return endless_sums(group, rank, world)


def main() -> None:
    rank, world, port = map(int, sys.argv[1:4])
    path, case = sys.argv[4:6]
    launch = Launch(
        launcher="torchrun",
        identity="a test",
        rank=rank,
        world=world,
        local_rank=rank if path == "shared" else 0,
        local_world=world if path == "shared" else 1,
        attempt=int(sys.argv[6]) if len(sys.argv) > 6 else 0,
        master_addr="127.0.0.1",
        master_port=port,
    )
    timeout_s = float(os.environ.get("TIMEOUT_S", TIMEOUT_S))
    try:
        group = HostGroup(launch, timeout_s)
    except ScalarError as error:
        print(json.dumps({"code": error.code, "what": error.what}))
        return
    result = globals()[case](group, rank, world)
    group.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
