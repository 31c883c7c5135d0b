"""A script of a Hugging Face user: a tiny GPT-2 from its config, trained on random tokens.

    huggingface_train.py OUTPUT [key=value ...]

Keys are TrainingArguments', `width`, and the steps before which there is trouble, once: `fail_at` (an exception),
`stop_at` (SIGTERM), `die_at` (SIGKILL), `bad_at` (weights that are not a number). Writes the last step and the
digest of the weights to OUTPUT/rank-RANK.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

import gscalar
from gscalar.frameworks.torch.storage import weights_digest

WISHES = ("fail_at", "stop_at", "die_at", "bad_at", "width")


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random tokens that are the same in every process."""

    def __init__(self, size: int) -> None:
        draw = torch.Generator().manual_seed(11)
        self.rows = torch.randint(0, 64, (size, 12), generator=draw)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Trouble(transformers.TrainerCallback):
    """Makes the trouble that the test asks for, in the first attempt alone."""

    def __init__(self, wishes: dict[str, int], output: Path) -> None:
        self.wishes, self.output = wishes, output

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        step = state.global_step + 1
        once = self.output / "troubled"
        wished = [name for name in ("fail_at", "stop_at", "die_at") if self.wishes.get(name) == step]
        if step == self.wishes.get("bad_at"):
            for parameter in objects["model"].parameters():
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


def train(output: Path, words: list[str]) -> transformers.Trainer:
    """Train as the words say, and return the trainer."""
    values = {name: json.loads(value) for name, value in (word.split("=", 1) for word in words)}
    wishes = {name: values.pop(name) for name in WISHES if name in values}
    transformers.set_seed(3)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=wishes.get("width", 16), n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    defaults = {
        "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 1e-2, "logging_steps": 1,
        "save_strategy": "no", "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3,
    }  # fmt: skip
    args = transformers.TrainingArguments(output_dir=str(output / "out"), **{**defaults, **values})
    trainer = transformers.Trainer(
        model=model,
        args=args,
        train_dataset=Tokens(26),
        eval_dataset=Tokens(6),
        callbacks=[gscalar.huggingface.callback(), Trouble(wishes, output)],
    )
    trainer.train(resume_from_checkpoint=gscalar.huggingface.last_checkpoint())
    return trainer


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trained = train(folder, sys.argv[2:])
    digest = weights_digest(trained.model.named_parameters())
    (folder / f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps([trained.state.global_step, digest]))
