"""The gradient of every step is that of the whole global batch on one process, to 1e-12 in float64."""

from __future__ import annotations

import importlib.util
import itertools
import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.runtime.cursor import Permutation

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parent / "scripts" / "gradients.py"
WORLDS = (1, pytest.param(2, marks=pytest.mark.long), 3)
SEED = 5
# Batches as a user's own batch sampler or stream gives them: of different sizes, seven of them.
LISTS = [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9], [10], [11, 12], [13]]


def case(size: int = 13, batch: int = 2, weight: str = "samples", data: str = "loader", **plan: Any) -> dict[str, Any]:
    """Return a case as the script reads it; epochs of 13 by 2 end raggedly in every world."""
    lists = {"lists": LISTS, "size": 14} if data != "loader" else {"size": size}
    return {"seed": SEED, "batch": batch, "weight": weight, "data": data, "plan": plan, **lists}


CASES: dict[str, dict[str, Any]] = {
    "plain": case(),
    "clipped": case(clip_norm=0.5),
    "weighted by tokens": case(weight="tokens"),
    "weighted by tokens and clipped": case(weight="tokens", clip_norm=0.5),
    "accumulated": case(accumulate=3),
    "accumulated and clipped": case(accumulate=3, clip_norm=0.5),
    "accumulated, weighted by tokens": case(accumulate=3, weight="tokens"),
    "accumulated, weighted by tokens, clipped": case(accumulate=3, weight="tokens", clip_norm=0.5),
    "full batches": case(size=12),
    "a rank without a sample in every epoch's last step": case(size=7, batch=3, accumulate=2),
    "as few samples as ranks": case(size=3, batch=4, weight="tokens"),
    "padding inside an accumulated step, weighted by tokens": case(size=9, accumulate=3, weight="tokens"),
    "a batch sampler of the user's": case(data="lists", accumulate=2),
    "a batch sampler of the user's, weighted by tokens": case(data="lists", weight="tokens"),
    "a stream": case(data="stream"),
    "a stream, accumulated": case(data="stream", accumulate=3),
    "a stream, accumulated and weighted by tokens": case(data="stream", accumulate=3, weight="tokens"),
}


@pytest.fixture(scope="module")
def script() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("gradients_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step_samples(chosen: dict[str, Any], world: int, epoch: int) -> Iterator[list[int]]:
    """Yield the samples of each step of an epoch, over all ranks and micro-steps."""
    accumulate = chosen["plan"].get("accumulate", 1)
    if chosen["data"] == "loader":
        order = Permutation(chosen["size"], SEED, epoch).at(np.arange(chosen["size"])).tolist()
        batches = [[index] for index in order]
        per_step = world * chosen["batch"] * accumulate
    else:
        batches, per_step = chosen["lists"], world * accumulate
    for start in range(0, len(batches), per_step):
        yield list(itertools.chain.from_iterable(batches[start : start + per_step]))


def train_on_one_process(script: types.ModuleType, chosen: dict[str, Any], world: int) -> dict[str, Any]:
    """Train as a script without gscalar does that has the whole global batch at once."""
    import torch

    model = script.make_model()
    optimizer = script.KeepingSGD(model)
    samples = script.make_samples(chosen["size"])
    seen = 0
    for indices in itertools.chain(step_samples(chosen, world, 0), step_samples(chosen, world, 1)):
        batch = torch.utils.data.default_collate([samples[index] for index in indices])
        script.loss_of(model, batch, chosen["weight"]).backward()
        if "clip_norm" in chosen["plan"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), chosen["plan"]["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        seen += len(indices)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"gradients": optimizer.kept, "weights": weights, "steps": len(optimizer.kept), "samples": seen}


@pytest.mark.parametrize("world", WORLDS)
def test_every_step_has_the_gradient_of_the_global_batch(
    world: int,
    script: types.ModuleType,
    gang: Callable[..., None],
    free_ports: Callable[[int], list[int]],
    tmp_path: Path,
) -> None:
    import torch

    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(CASES))
    gang(SCRIPT, world, cases, tmp_path, *map(str, free_ports(len(CASES))))
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(world)]
    for name, chosen in CASES.items():
        want = train_on_one_process(script, chosen, world)
        for rank, results in enumerate(ranks):
            got = results[name]
            place = f"{name}, rank {rank}"
            assert (got["steps"], got["samples"]) == (want["steps"], want["samples"]), place
            for step, (mine, whole) in enumerate(zip(got["gradients"], want["gradients"], strict=True)):
                assert float((mine - whole).abs().max()) < 1e-12, f"{place}, step {step + 1}"
            assert float((got["weights"] - want["weights"]).abs().max()) < 1e-12, place
            assert torch.equal(got["weights"], ranks[0][name]["weights"]), place
