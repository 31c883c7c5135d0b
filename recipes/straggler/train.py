"""Two of eight workers are always late. Is their machine slow, or have they more to do?

The others see the same: at every exchange of gradients they wait for workers 3 and 6. What helps is not the same: a
slow machine is replaced, more work is shared out evenly. The time that a worker needs for a token tells them apart.

- `slow_machine`: all documents are of one kind, and workers 3 and 6 need 1.5 times as long for a token.
- `more_work`: all machines are alike. The documents come from eight sources in turn, two of which write longer ones;
  since a worker's share of each batch lies in one piece, workers 3 and 6 always meet those.

Eight workers fit on a laptop because time.sleep stands for most of the computing: a device that computes keeps its
host waiting just so. The model beside it is real and small: it learns which byte follows which.
"""

import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import gscalar

LATE = (3, 6)
SOURCES = 8

run = gscalar.init(
    project="recipes",
    config={
        "version": "slow_machine", "steps": 100, "batch_size": 4, "seconds_per_token": 2e-3, "factor": 1.5, "lr": 0.05
    },
)  # fmt: skip
config = run.config


def read_documents(num_documents: int) -> list[torch.Tensor]:
    """Return pieces of Python's standard library, of 24 to 40 bytes; those of two sources may be longer."""
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in library)), dtype=torch.uint8)
    lengths = torch.randint(24, 41, (num_documents,), generator=torch.Generator().manual_seed(0))
    if config.version == "more_work":
        source = torch.arange(num_documents) // config.batch_size % SOURCES
        lengths = torch.where(torch.isin(source, torch.tensor(LATE)), lengths * config.factor, lengths).long()
    starts = lengths.cumsum(0) % (len(text) - 1000)
    return [
        text[start : start + length].long() for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


slow = config.factor if config.version == "slow_machine" and run.rank in LATE else 1.0
# Not shuffled: the sources stay where they are. A batch is its documents, one after the other.
documents = read_documents(SOURCES * config.batch_size * 50)
data = DataLoader(documents, batch_size=config.batch_size, collate_fn=torch.cat)
model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
model, optimizer, data = run.prepare(model, optimizer, data)

for batch in run.batches(data, steps=config.steps):
    num_tokens = len(batch) - 1
    loss = F.cross_entropy(model(batch[:-1]), batch[1:])
    time.sleep(config.seconds_per_token * num_tokens * slow)  # as long as a device would compute
    # Tokens are the work: by their number the mean over all workers is exact, and the record says who had how many.
    if run.step(loss, weight=num_tokens, tokens=num_tokens):
        run.log({"loss": loss})

if run.rank == 0:
    print(f"{config.version}: {run.state.step} steps, {run.state.tokens:,.0f} tokens")
