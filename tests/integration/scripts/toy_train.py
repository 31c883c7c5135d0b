"""Train the toy framework under whatever launcher; TOY is a JSON object that says what shall happen.

init (arguments of init), size, features, steps, pace_s; nan_at: a step whose loss is NaN on the last rank;
limit_after: the step after which no file may grow beyond 1 MB; wait: before the loop; exit_code; error.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from typing import Any

from gscalar.testing.toy import ToyData, ToyLoss, ToyModel, ToySGD, open_toy_run

told: dict[str, Any] = json.loads(os.environ.get("TOY", "{}"))
run = open_toy_run(**{"project": "toys", "checkpoint": {"every_steps": 2}, **told.get("init", {})})
features = told.get("features", 3)
model = ToyModel(features)
optimizer = ToySGD(model, lr=0.02)
data = ToyData.make(told.get("size", 40), features)
model, optimizer, data = run.prepare(model, optimizer, data)
if told.get("wait"):
    print("waiting", flush=True)
    time.sleep(60)
for batch in run.batches(data, steps=told.get("steps", 10)):
    loss = model.loss(batch)
    if run.state.step + 1 == told.get("nan_at") and run.rank == run.world - 1:
        loss = ToyLoss(math.nan, loss.gradient)
    run.step(loss, tokens=3)
    if run.state.step == 5:
        print("step 5", flush=True)
    if run.state.step == told.get("limit_after"):
        while not (run._opened.folder.checkpoints / "latest").exists():
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    time.sleep(told.get("pace_s", 0.0))
if "error" in told:
    raise RuntimeError(told["error"])
sys.exit(told.get("exit_code", 0))
