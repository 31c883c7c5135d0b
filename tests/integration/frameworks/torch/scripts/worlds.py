"""Train every case of a list on one rank up to a step, from where the world before has left it.

    python worlds.py CASES.json FOLDER STOP PORT...

What the rank had after `prepare` and at the end, and the gradient of each step, go into FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from gradients import KeepingSGD, loss_of, make_data, make_model
from torch import nn

import gscalar


def numbers_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return copies of all parameters and optimizer states."""
    named = {f"model0/{name}": value.detach().clone() for name, value in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                named[f"optimizer0/model0/{name}/{key}"] = value.clone()
    return named


def train(case: dict[str, Any], stop: int) -> dict[str, Any]:
    """Train one case to step `stop` (0: to the end of the second epoch)."""
    model = make_model()
    optimizer = KeepingSGD(model, momentum=0.9)
    run = gscalar.init(plan=case["plan"], seed=case["seed"], checkpoint={"every_s": 1e6})
    model, optimizer, data = run.prepare(model, optimizer, make_data(case))
    restored = numbers_of(model, optimizer)
    rates = []
    for batch in run.batches(data, epochs=2, steps=stop or None):
        loss = loss_of(model, batch, case["weight"])
        weight = None if case["weight"] == "samples" else float(batch["length"].sum())
        if run.step(loss, weight=weight):
            rates.append(optimizer.param_groups[0]["lr"])
    told = {"steps": run.state.step, "samples": run.state.samples, "rates": rates, "draw": float(torch.rand(()))}
    told |= {"restored": restored, "left": numbers_of(model, optimizer), "gradients": optimizer.kept}
    run.finish()
    return told


def main() -> None:
    """Train all cases; the ranks of each meet at a port of their own."""
    cases, folder, stop = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), int(sys.argv[3])
    results = {}
    for number, ((name, case), port) in enumerate(zip(cases.items(), sys.argv[4:], strict=True)):
        os.environ["MASTER_PORT"] = port
        os.environ["GSCALAR_RUN_ID"] = f"case-{number}"
        results[name] = train(case, stop)
    torch.save(results, folder / f"stop{stop}-rank{os.environ.get('RANK', '0')}.pt")


if __name__ == "__main__":
    main()
