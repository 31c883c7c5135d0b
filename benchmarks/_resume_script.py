"""The training of resume_matrix.py: small, and with everything that a resume could get wrong.

Dropout, noise from the data set, momentum, a schedule, epochs that end raggedly. It is told by

    MATRIX_PLANS     which plans to train, one run after the other (PLAN or PLAN:SEED); a launcher's own run is one
    MATRIX_KILL      nothing, or TARGET:STEP: in the first attempt, when that step is done and the first
                     checkpoint is there, the last rank kills itself (worker), the supervisor, or all
    MATRIX_FOLDER    where the processes say who they are, so that they can be killed
    MATRIX_PORTS     where several runs meet, a port each
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gscalar

PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 3, "clip_norm": 0.5},
    "bf16": {"precision": "bf16", "schedule": {"kind": "cosine", "warmup_steps": 2}},
}
NUM_STEPS = 13
FOLDER = Path(os.environ["MATRIX_FOLDER"])


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    """59 samples: no world of 2, 3 or 4 with batches of 4 divides them."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(59, 8, generator=draw), torch.randint(0, 4, (59,), generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index] * random.uniform(0.9, 1.1) + 0.1 * torch.randn(8), int(self.y[index])


def make_model() -> nn.Module:
    """Return a model of more than 1 MiB, so that its gradients travel in two buckets."""
    layers: list[nn.Module] = [nn.Linear(8, 64)]
    for _ in range(4):
        layers += [nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.LayerNorm(64)]
    wide = [nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 64)]
    return nn.Sequential(*layers, *wide, nn.Linear(64, 4))


def train(plan: str, seed: int) -> None:
    run = gscalar.init(project="matrix", plan=PLANS[plan], seed=seed, checkpoint={"every_steps": 3})
    torch.manual_seed(run.seed)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, data = run.prepare(model, optimizer, DataLoader(Noisy(), batch_size=4, shuffle=True))
    for x, y in run.batches(data, steps=NUM_STEPS):
        loss = nn.functional.cross_entropy(model(x), y)
        if run.step(loss, tokens=x.numel()):
            run.log({"loss": loss})
            kill_if_asked(run)
    run.finish()


def kill_if_asked(run: gscalar.Run) -> None:
    target, _, step = os.environ.get("MATRIX_KILL", "").partition(":")
    attempts = [os.environ.get(name, "0") for name in ("GSCALAR_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")]
    if not target or attempts != ["0", "0"] or run.state.step != int(step) or run.rank != run.world - 1:
        return
    latest = Path(os.environ["GSCALAR_HOME"]) / "runs" / run.id / "checkpoints" / "latest"
    while not latest.exists():
        time.sleep(0.01)
    if target in ("supervisor", "all"):
        os.kill(int((FOLDER / "supervisor").read_text()), signal.SIGKILL)
    if target == "all":
        for rank in range(run.world - 1):
            os.kill(int((FOLDER / f"rank{rank}").read_text()), signal.SIGKILL)
    if target != "supervisor":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # until whoever watches over us ends us too


def main() -> None:
    (FOLDER / f"rank{os.environ.get('RANK', '0')}").write_text(str(os.getpid()))
    plans = os.environ["MATRIX_PLANS"].split(",")
    ports = os.environ.get("MATRIX_PORTS", "").split(",")
    for index, entry in enumerate(plans):
        plan, _, seed = entry.partition(":")
        if len(plans) > 1:
            os.environ["MASTER_PORT"] = ports[index]
            os.environ["GSCALAR_RUN_ID"] = f"{plan}-{seed or 'undisturbed'}"
        train(plan, int(seed or 0))


if __name__ == "__main__":
    main()
