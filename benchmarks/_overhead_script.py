"""The worker of step_overhead.py: three arms of the same training take turns in blocks, in one process a rank.

`bare_a` and `bare_b` are plain DistributedDataParallel loops, `scalar` is the same loop through a run. Each
has a model, an optimizer and data of its own, but the weights and the optimizers' moments of all three lie in
the same memory: where they lie alone makes per cents. Rank 0 writes what it measured as JSON.
"""

import ast
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import gscalar

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "bytes_lm" / "train.py"
BLOCK_STEPS = 5  # the first of them finds another model in the caches, and is left out
WARMUP_BLOCKS = 2
CONTEXT = 128
BATCH = 8
LR = 6e-3
CLIP = 1.0
TOTAL_STEPS = 100_000


def load_recipe() -> dict[str, Any]:
    """Return the recipe's classes and functions, without running its training."""
    tree = ast.parse(RECIPE.read_text())
    kept = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef)
    ]
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(ast.Module(kept, []), str(RECIPE), "exec"), names)  # noqa: S102 - a file of this repository
    return names


def make_model(recipe: dict[str, Any]) -> nn.Module:
    torch.manual_seed(1)
    model: nn.Module = recipe["GPT"](128, 2, 4, 3061)
    return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.1)


@dataclass(frozen=True)
class Arm:
    """One step of one of the loops, and what it trains."""

    step: Callable[[], None]
    model: nn.Module
    optimizer: torch.optim.Optimizer


def bare_arm(recipe: dict[str, Any], windows: Tensor) -> Arm:
    """Return the loop that a user of plain DDP writes."""
    model = DistributedDataParallel(make_model(recipe))
    optimizer = make_optimizer(model)
    sampler: DistributedSampler[Tensor] = DistributedSampler(windows, shuffle=True, seed=1)  # type: ignore[arg-type]
    data = DataLoader(windows, batch_size=BATCH, sampler=sampler)  # type: ignore[arg-type]
    batches: Iterator[Tensor] = iter(data)
    state = {"step": 0, "loss": 0.0}

    def step() -> None:
        loss = model(next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        rate = LR * 0.5 * (1 + math.cos(math.pi * state["step"] / TOTAL_STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state["step"] += 1
        state["loss"] = float(loss)

    return Arm(step, model, optimizer)


def scalar_arm(run: Any, recipe: dict[str, Any], windows: Tensor) -> Arm:
    """Return the same loop through the run."""
    model = make_model(recipe)
    optimizer = make_optimizer(model)
    data = DataLoader(windows, batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
    model, optimizer, data = run.prepare(model, optimizer, data)
    batches = run.batches(data, steps=TOTAL_STEPS)

    def step() -> None:
        batch = next(batches)
        run.step(model(batch), tokens=BATCH * CONTEXT)

    return Arm(step, model, optimizer)


def share_memory(arms: Iterable[Arm]) -> None:
    """Let all arms train the same weights with the same moments, once their first steps have made these."""
    first, *others = arms
    for other in others:
        for ours, theirs in zip(first.model.parameters(), other.model.parameters(), strict=True):
            theirs.data = ours.data
            for moment in ("exp_avg", "exp_avg_sq"):
                other.optimizer.state[theirs][moment] = first.optimizer.state[ours][moment]


def supervisor_cpu_s() -> dict[str, float]:
    """Return the CPU seconds of each thread of the supervisor, by its name."""
    pid = psutil.Process(os.getppid()).ppid()
    ticks = os.sysconf("SC_CLK_TCK")
    spent: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "stat").read_text()
        fields = text.rpartition(")")[2].split()
        name = "supervisor" if task.name == str(pid) else (task / "comm").read_text().strip()
        spent[name] = spent.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / ticks
    return spent


def measure(arms: dict[str, Arm], num_rounds: int) -> dict[str, list[list[float]]]:
    """Return the seconds of each step by arm and round.

    The run's block lies between the two plain ones, so that a drift of the machine's speed cancels out.
    """
    plain = ["bare_a", "bare_b"]
    shuffled = random.Random(0)
    spent: dict[str, list[list[float]]] = {name: [] for name in arms}
    for number in range(num_rounds + WARMUP_BLOCKS):
        shuffled.shuffle(plain)
        for name in (plain[0], "scalar", plain[1]):
            dist.barrier()
            times = []
            for _ in range(BLOCK_STEPS):
                began = time.perf_counter()
                arms[name].step()
                times.append(time.perf_counter() - began)
            if number >= WARMUP_BLOCKS:
                spent[name].append(times[1:])
    return spent


def main() -> None:
    num_rounds, out, rotation = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    run = gscalar.init(project="bench")
    recipe = load_recipe()
    text, _ = recipe["read_text"](4_000_000)
    windows = text.unfold(0, CONTEXT + 1, 1)
    make: dict[str, Callable[[], Arm]] = {
        "scalar": lambda: scalar_arm(run, recipe, windows),
        "bare_a": lambda: bare_arm(recipe, windows),
        "bare_b": lambda: bare_arm(recipe, windows),
    }
    # Buckets and gradients lie where the arms before have left room, so each launch makes the arms in another order.
    orders = list(itertools.permutations(make))
    dist.init_process_group("gloo")
    arms = {name: make[name]() for name in orders[rotation % len(orders)]}
    measure(arms, 0)
    share_memory(arms.values())
    measure(arms, 0)
    cpu_s, began = supervisor_cpu_s(), time.perf_counter()
    spent = measure(arms, num_rounds)
    wall_s = time.perf_counter() - began
    share = {name: (after - cpu_s.get(name, 0.0)) / wall_s for name, after in supervisor_cpu_s().items()}
    if run.rank == 0:
        out.write_text(json.dumps({"spent_s": spent, "cpu_share": share, "wall_s": wall_s}))
    run.finish()


if __name__ == "__main__":
    main()
