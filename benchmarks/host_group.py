"""What a sum of arrays over two ranks of one host costs, against gloo's all-reduce.

    python benchmarks/host_group.py [--json] [--rounds N]

Two processes sum float32 arrays in three ways that take turns, so that what disturbs the machine disturbs all: in
shared memory, around the ring through loopback, and with torch.distributed's gloo, in place. Ours leaves what it is
given as it is, and the copy counts. A round's figure is the slower rank's; given are medians over rounds,
gigabytes of the array a second (one way), and ratios to gloo's seconds within a round. CPU seconds are those of both
processes a sum. The small messages are sums of eight numbers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gscalar.runtime.host_group import HostGroup
from gscalar.runtime.launch import Launch

MEGABYTES = (0.01, 4, 64)
WAYS = ("shared", "ring", "gloo")
TIMEOUT_S = 60.0
Figures = dict[str, dict[str, Any]]


def launch(rank: int, port: int, *, one_host: bool) -> Launch:
    return Launch(
        launcher="torchrun",
        identity="benchmark",
        rank=rank,
        world=2,
        local_rank=rank if one_host else 0,
        local_world=2 if one_host else 1,
        master_addr="127.0.0.1",
        master_port=port,
    )


def be_rank(rank: int, ports: list[int], num_rounds: int, told: Connection) -> None:
    """Send wall and CPU seconds of every sum, by way and size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{ports[2]}", rank=rank, world_size=2)
    groups = {
        "shared": HostGroup(launch(rank, ports[0], one_host=True), TIMEOUT_S),
        "ring": HostGroup(launch(rank, ports[1], one_host=False), TIMEOUT_S),
    }
    spent: dict[str, list[tuple[float, float]]] = {}

    def measure(name: str, work: Callable[[], object]) -> None:
        dist.barrier()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        work()
        spent.setdefault(name, []).append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))

    for megabytes in MEGABYTES:
        # As in a training: the same arrays in every step, and the sums of the step before are let go.
        array = np.ones(int(megabytes * 1e6) // 4, np.float32)
        tensor = torch.from_numpy(array.copy())
        for number in range(num_rounds):
            for way in np.roll(WAYS, number):
                group = groups.get(way)
                if group is None:
                    measure(f"{way}_{megabytes:g}_mb", lambda tensor=tensor: dist.all_reduce(tensor))
                else:
                    measure(f"{way}_{megabytes:g}_mb", lambda array=array, group=group: group.sum_arrays([array]))
    small = torch.ones(8, dtype=torch.float64)
    for _ in range(10 * num_rounds):
        measure("messages_small", lambda: groups["ring"].start_sum([1.0] * 8)())
        measure("gloo_small", lambda: dist.all_reduce(small))
    for group in groups.values():
        group.close()
    dist.destroy_process_group()
    told.send(spent)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def run_ranks(num_rounds: int) -> list[dict[str, list[tuple[float, float]]]]:
    context = multiprocessing.get_context("spawn")
    ports = free_ports(3)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context.Process(target=be_rank, args=(rank, ports, num_rounds, pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for _, writing in pipes:
        writing.close()
    return [reading.recv() for reading, _ in pipes]


def figure(value: float, unit: str) -> dict[str, Any]:
    return {"value": round(value, 5), "unit": unit}


def measure(num_rounds: int) -> Figures:
    spent = run_ranks(num_rounds)
    wall_s = {
        name: [max(of_ranks) for of_ranks in zip(*([wall for wall, _ in each[name]] for each in spent), strict=True)]
        for name in spent[0]
    }
    cpu_s = {name: sum(statistics.median(cpu for _, cpu in each[name]) for each in spent) for name in spent[0]}
    figures: Figures = {}
    for name, values in wall_s.items():
        way, _, size = name.partition("_")
        figures[f"{name}_seconds"] = figure(1e3 * statistics.median(values), "ms")
        figures[f"{name}_cpu"] = figure(1e3 * cpu_s[name], "ms")
        if size != "small":
            gigabytes = float(size.removesuffix("_mb")) / 1e3
            figures[f"{name}_rate"] = figure(gigabytes / statistics.median(values), "GB/s")
        if way != "gloo":
            ratios = [own / gloo for own, gloo in zip(values, wall_s[f"gloo_{size}"], strict=True)]
            figures[f"{name}_over_gloo"] = figure(statistics.median(ratios), "x")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sum of arrays over two ranks costs, against gloo.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    figures = measure(options.rounds)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        print(f"{name:32s} {entry['value']:>12,.4f} {entry['unit']}")


if __name__ == "__main__":
    main()
