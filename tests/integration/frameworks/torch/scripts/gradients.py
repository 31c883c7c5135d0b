"""Train every case of a list on one rank, and keep the gradient that each optimizer step used.

    python gradients.py CASES.json FOLDER PORT...

One process holds one run after the other: each case has its own run id and port.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import gscalar

NUM_TOKENS = 5


def make_model() -> nn.Module:
    """Return the same small float64 model in every process."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).double()


def make_samples(size: int) -> list[dict[str, torch.Tensor]]:
    """Return samples of NUM_TOKENS tokens each, of which `length` count."""
    draw = torch.Generator().manual_seed(11)
    return [
        {
            "x": torch.randn(NUM_TOKENS, 3, generator=draw, dtype=torch.float64),
            "y": torch.randn(NUM_TOKENS, 2, generator=draw, dtype=torch.float64) * (0.3 + index % 4),
            "length": torch.tensor(1 + (3 * index) % NUM_TOKENS),
        }
        for index in range(size)
    ]


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor], weight: str) -> torch.Tensor:
    """Return the mean loss over the batch's samples, or over its tokens that count."""
    errors = (model(batch["x"]) - batch["y"]).square().mean(-1)  # (batch, token)
    if weight == "samples":
        return errors.sum(1).mean()
    counts = torch.arange(NUM_TOKENS) < batch["length"][:, None]
    return errors[counts].sum() / counts.sum()


class KeepingSGD(torch.optim.SGD):
    """SGD that keeps the gradient of every step."""

    def __init__(self, model: nn.Module, momentum: float = 0.0) -> None:
        super().__init__(model.parameters(), lr=0.02, momentum=momentum)
        self.kept: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:
        gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        self.kept.append(torch.cat(gradients))
        super().step()


def make_data(case: dict[str, Any]) -> Any:
    """Return the case's data object: a loader, a loader with lists of its own, or a stream of batches."""
    samples = make_samples(case["size"])
    if case["data"] == "loader":
        return DataLoader(samples, batch_size=case["batch"], shuffle=True)  # type: ignore[arg-type]
    if case["data"] == "lists":
        return DataLoader(samples, batch_sampler=case["lists"])  # type: ignore[arg-type]
    collate = torch.utils.data.default_collate
    return [collate([samples[index] for index in indices]) for indices in case["lists"]]


def train(case: dict[str, Any]) -> dict[str, Any]:
    """Train one case to its end."""
    model = make_model()
    optimizer = KeepingSGD(model)
    run = gscalar.init(plan=case["plan"], seed=case["seed"], checkpoint={"every_s": None})
    model, optimizer, data = run.prepare(model, optimizer, make_data(case))
    for batch in run.batches(data, epochs=2):
        loss = loss_of(model, batch, case["weight"])
        weight = None if case["weight"] == "samples" else float(batch["length"].sum())
        run.step(loss, weight=weight)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    steps, samples = run.state.step, run.state.samples
    run.finish()
    return {"gradients": optimizer.kept, "weights": weights, "steps": steps, "samples": samples}


def main() -> None:
    """Train all cases; the ranks of each meet at a port of their own."""
    cases, folder, ports = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), sys.argv[3:]
    results = {}
    for (name, case), port in zip(cases.items(), ports, strict=True):
        os.environ["MASTER_PORT"] = port
        os.environ["GSCALAR_RUN_ID"] = f"case-{port}"
        results[name] = train(case)
    torch.save(results, folder / f"rank{os.environ.get('RANK', '0')}.pt")


if __name__ == "__main__":
    main()
