"""Two ranks: batch statistics, evaluations of different lengths, reductions. Each rank tells what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gscalar

run = gscalar.init(checkpoint={"every_s": None})
told = {"reduced_before_prepare": run.reduce(float(run.rank))}
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4, generator=torch.Generator().manual_seed(2))
data = DataLoader(TensorDataset(x), batch_size=4, shuffle=True)
val = DataLoader(TensorDataset(x), batch_size=7)
model, optimizer, data = run.prepare(model, optimizer, data)
means: list[list[float]] = []
evaluated, training = 0, True
model[1].register_forward_pre_hook(
    lambda module, args: means.append(module.running_mean.tolist()) if training else None
)
for (batch,) in run.batches(data, steps=3):
    run.step(model(batch).square().mean())
    # In training mode on purpose: were this no evaluation, the ranks would wait for each other's statistics.
    training = False
    for _ in run.eval_batches([None] * (1 if run.rank == 0 else 4), sharded=True):
        model(batch)
        evaluated += 1
    training = True
told["evaluated"] = evaluated
told["met"] = [len(batch) for (batch,) in run.eval_batches(val)]
told["means"] = means
told["weights"] = nn.utils.parameters_to_vector(model.parameters()).tolist()
told["reduced"] = run.reduce([1.0] if run.rank == 0 else [2.0], weights=[1.0] if run.rank == 0 else [3.0])
(Path(sys.argv[1]) / f"rank{run.rank}.json").write_text(json.dumps(told))
