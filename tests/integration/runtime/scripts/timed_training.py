"""Ten steps on two ranks in which everything takes a time of its own. Rank 1 is late."""

import gc
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import gscalar

DATA_S, LATE_S, SCRIPT_S, EVALUATION_S = (float(argument) for argument in sys.argv[1:5])


class Slow(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(DATA_S / 4)
        return torch.full((8,), float(index))


run = gscalar.init(project="timed", checkpoint={"every_steps": 4})
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 300_000), nn.Linear(300_000, 1))  # more than one bucket
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
model, optimizer, data = run.prepare(model, optimizer, DataLoader(Slow(), batch_size=4))
gc.disable()
for batch in run.batches(data, steps=10):
    if run.rank == 1:
        time.sleep(LATE_S)
    run.step(model(batch).mean())
    time.sleep(SCRIPT_S)
    if run.state.step == 5:
        gc.collect()
    if run.state.step == 6:
        for _ in run.eval_batches([torch.zeros(4, 8)] * 2):
            time.sleep(EVALUATION_S)
