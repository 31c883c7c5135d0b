"""Handwritten digits of 8 x 8 pixels, by a small network on one worker: the shortest whole training.

Four lines make a plain PyTorch script a recorded and resumable one; they are numbered below. All
else is the script that one would have written anyway.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gscalar

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("This recipe's data comes with scikit-learn, which is not installed: pip install scikit-learn")


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 images for training and the other 360 for validation, as (pixels, label)."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32) / 16 - 0.5  # (1797, 64), from 0..16 to -0.5..0.5
    y = torch.tensor(labels)
    held_out = torch.arange(len(y)) % 5 == 0
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


# 1. Open the run. The job's values win over these, so that `--set config.lr=1e-2` needs no change here.
run = gscalar.init(
    project="recipes", config={"epochs": 30, "batch_size": 64, "width": 128, "lr": 3e-3, "eval_every": 100}
)
config = run.config

train_set, val_set = load_data()
data = DataLoader(train_set, batch_size=config.batch_size, shuffle=True)
val_data = DataLoader(val_set, batch_size=256)

model = nn.Sequential(
    nn.Linear(64, config.width), nn.GELU(), nn.Dropout(0.1),
    nn.Linear(config.width, config.width), nn.GELU(), nn.Dropout(0.1),
    nn.Linear(config.width, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)

# 2. Hand over what is trained. After a restart it comes back as the last checkpoint had it.
model, optimizer, data = run.prepare(model, optimizer, data)


@torch.no_grad()
def validate() -> float:
    """Return the share of the held-out images, over all workers, that the model names rightly."""
    model.eval()
    shares, counts = [], []
    for x, y in run.eval_batches(val_data):
        shares.append((model(x).argmax(dim=1) == y).float().mean())
        counts.append(len(y))
    model.train()
    return run.reduce(shares, weights=counts)


# 3. The run deals the batches: shuffled by its seed, shared by its workers, from where it stands.
for x, y in run.batches(data, epochs=config.epochs):
    loss = F.cross_entropy(model(x), y)
    # 4. Backward, clipping, optimizer and schedule as job.yaml says; True when the optimizer moved.
    if run.step(loss) and run.state.step % config.eval_every == 0:
        run.log({"val/accuracy": validate()})

accuracy = validate()
run.log({"val/accuracy": accuracy})
if run.rank == 0:
    print(f"{accuracy:.1%} of the {len(val_set)} held-out digits are named rightly")
