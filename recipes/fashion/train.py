"""Photographs of clothes in ten classes (Fashion-MNIST, arXiv 1708.07747) and a small convolutional network.

The 60,000 + 10,000 images of 28 x 28 pixels are a Debian package, so that nothing is downloaded here.
"""

import gzip
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gscalar

FOLDER = Path("/usr/share/datasets/fashion-mnist")
# Said before the run is opened: to try again would not help, and a run without data is worth no record.
if not FOLDER.is_dir():
    sys.exit(f"The data is not installed: {FOLDER} does not exist. Do: apt-get install dataset-fashion-mnist")


def read_idx(name: str, max_items: int | None) -> Tensor:
    """Return the uint8 array of an IDX file: its dimensions stand before it, as 4-byte integers."""
    content = gzip.decompress((FOLDER / f"{name}.gz").read_bytes())
    num_dims = content[3]
    shape = [int.from_bytes(content[4 * n + 4 : 4 * n + 8], "big") for n in range(num_dims)]
    return torch.frombuffer(bytearray(content[4 * num_dims + 4 :]), dtype=torch.uint8).reshape(shape)[:max_items]


def load(part: str, max_images: int | None) -> TensorDataset:
    """Return the images of a part, (n, 1, 28, 28) of about -1 to 2, with their classes."""
    images = read_idx(f"{part}-images-idx3-ubyte", max_images).float().unsqueeze(1)
    return TensorDataset((images - 73) / 90, read_idx(f"{part}-labels-idx1-ubyte", max_images).long())


# Run alone, these are the values; launched, job.yaml's stand in their place.
defaults = {"epochs": 3, "batch_size": 256, "lr": 3e-3, "eval_every": 200, "max_images": None}
run = gscalar.init(project="recipes", config=defaults)
config = run.config

train_set, val_set = load("train", config.max_images), load("t10k", config.max_images)
# The batch size is a worker's: two workers with 128 images take the same steps as one with 256.
data = DataLoader(train_set, batch_size=config.batch_size, shuffle=True)
val_data = DataLoader(val_set, batch_size=500)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.ReLU(),  # (n, 32, 14, 14)
    nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),  # (n, 64, 7, 7)
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
model, optimizer, data = run.prepare(model, optimizer, data)


@torch.no_grad()
def validate() -> dict[str, float]:
    """Return the loss and accuracy on all held-out images; each worker looks at its share of them."""
    model.eval()
    losses, shares, counts = [], [], []
    for images, classes in run.eval_batches(val_data):
        scores = model(images)
        losses.append(F.cross_entropy(scores, classes))
        shares.append((scores.argmax(dim=1) == classes).float().mean())
        counts.append(len(classes))
    model.train()
    return {"val/loss": run.reduce(losses, weights=counts), "val/accuracy": run.reduce(shares, weights=counts)}


for images, classes in run.batches(data, epochs=config.epochs):
    if run.step(F.cross_entropy(model(images), classes)) and run.state.step % config.eval_every == 0:
        run.log(validate())

result = validate()
run.log(result)
if run.rank == 0:
    print(f"{result['val/accuracy']:.1%} of the {len(val_set):,} held-out images are classified rightly")
