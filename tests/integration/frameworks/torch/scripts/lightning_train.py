"""A script of a Lightning user: a small network with dropout on shuffled data, and a validation every epoch.

    lightning_train.py OUTPUT [key=value ...]

Keys are the Trainer's, `width`, and the steps before which there is trouble, once: `fail_at` (an exception),
`stop_at` (SIGTERM), `die_at` (SIGKILL), `bad_at` (weights that are not a number). `full_at` is a step whose checkpoint
meets a full disk. Writes the last step and the digest of the weights to OUTPUT/rank-RANK.json.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import TorchCheckpointIO
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gscalar
from gscalar.frameworks.torch.storage import weights_digest

WISHES = ("fail_at", "stop_at", "die_at", "bad_at", "full_at", "width")


class Net(pl.LightningModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 1))
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=14)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Disk(TorchCheckpointIO):
    """Is full at one step."""

    def __init__(self, full_at: int) -> None:
        self.full_at = full_at

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if checkpoint["global_step"] == self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().save_checkpoint(checkpoint, path, storage_options)


class Trouble(pl.Callback):
    """Makes the trouble that the test asks for, in the first attempt alone."""

    def __init__(self, wishes: dict[str, int], output: Path) -> None:
        self.wishes, self.output = wishes, output

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step + 1
        once = self.output / "troubled"
        wished = [name for name in ("fail_at", "stop_at", "die_at") if self.wishes.get(name) == step]
        if step == self.wishes.get("bad_at"):
            for parameter in pl_module.parameters():
                parameter.data.fill_(float("nan"))
        if not wished or once.exists():
            return
        wait_for_checkpoint()
        once.touch()
        if wished == ["fail_at"]:
            raise RuntimeError("as the test asked")
        signal.raise_signal(signal.SIGTERM if wished == ["stop_at"] else signal.SIGKILL)


def wait_for_checkpoint() -> None:
    """Wait until nothing is being written: the commit goes on in the background."""
    for _ in range(1000):
        runs = Path(os.environ["GSCALAR_HOME"]) / "runs"
        if any(runs.glob("*/checkpoints/latest")) and not any(runs.glob("*/checkpoints/.draft-*")):
            return
        time.sleep(0.02)


def data(size: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(11)
    x = torch.randn(size, 4, generator=draw)
    return TensorDataset(x, x.sum(1, keepdim=True))


def train(output: Path, words: list[str]) -> pl.Trainer:
    """Train as the words say, and return the trainer."""
    values = {name: json.loads(value) for name, value in (word.split("=", 1) for word in words)}
    wishes = {name: values.pop(name) for name in WISHES if name in values}
    pl.seed_everything(3)
    defaults = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "log_every_n_steps": 1,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": output,
        "plugins": [Disk(wishes.get("full_at", 0))],
    }  # fmt: skip
    trainer = pl.Trainer(**{**defaults, **values}, callbacks=[gscalar.lightning.callback(), Trouble(wishes, output)])
    module = Net(wishes.get("width", 8))
    batches = DataLoader(data(26), batch_size=4, shuffle=True)
    trainer.fit(module, batches, DataLoader(data(6), batch_size=4), ckpt_path=gscalar.lightning.last_checkpoint())
    return trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trained = train(folder, sys.argv[2:])
    digest = weights_digest(trained.lightning_module.named_parameters())
    (folder / f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps([trained.global_step, digest]))
