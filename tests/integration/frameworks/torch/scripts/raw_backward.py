"""A gradient that the script asks for by itself, beside one of the run: both are means over the ranks."""

import json
import sys
from pathlib import Path

import torch

import gscalar

run = gscalar.init(project="raw")
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
model, optimizer = run.prepare(model, optimizer)
sample = torch.tensor([[float(run.rank + 1)]])  # the gradient of the output is the sample itself

found = {}
for kind in ("raw", "run", "raw again", "zeroed in place"):
    loss = model(sample).mean()
    if kind == "run":
        run.backward(loss)
    else:
        loss.backward()
    found[kind] = model.weight.grad.item()
    if kind == "run":
        run.sync()
        run.update()
    model.zero_grad(set_to_none=kind != "raw again")
if run.rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
