"""One run in three worlds: every step has the gradient of the global batch it began with, to 1e-12 in float64.

Parameters and optimizer states at a change of world are those of the checkpoint, bit by bit, on every rank.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.runtime.cursor import Permutation
from gscalar.state.checkpoints import list_checkpoints
from gscalar.state.home import Home
from gscalar.views.samples import consumed_samples

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SCRIPTS = Path(__file__).parent / "scripts"
SEED = 5
LISTS = [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9], [10], [11, 12], [13]]
# (world, the step after which it stops); the last one trains to the end
WORLDS = ((2, 1), (3, 2), (1, 0))


def case(weight: str = "samples", data: str = "loader", **plan: Any) -> dict[str, Any]:
    """Return a case as the script reads it: 29 samples in global batches of 2 x 2, or seven lists, two at a time."""
    lists = {"lists": LISTS, "size": 14} if data != "loader" else {"size": 29}
    return {"seed": SEED, "batch": 2, "weight": weight, "data": data, "plan": plan, **lists}


CASES: dict[str, dict[str, Any]] = {
    "plain": case(schedule={"kind": "cosine", "warmup_steps": 3}),
    "accumulated": case(accumulate=3),
    "accumulated, weighted by tokens, clipped": case("tokens", accumulate=3, clip_norm=0.5),
    "a batch sampler of the user's": case(data="lists"),
    "a batch sampler of the user's, accumulated": case(data="lists", accumulate=2),
    "a stream": case(data="stream"),
    "a stream, accumulated and weighted by tokens": case("tokens", "stream", accumulate=2),
}


@pytest.fixture(scope="module")
def script() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("gradients_script", SCRIPTS / "gradients.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step_samples(chosen: dict[str, Any], epoch: int) -> Iterator[list[int]]:
    """Yield the samples of each step of an epoch, as the first world would take them."""
    accumulate, world = chosen["plan"].get("accumulate", 1), WORLDS[0][0]
    if chosen["data"] == "loader":
        order = Permutation(chosen["size"], SEED, epoch).at(np.arange(chosen["size"])).tolist()
        batches, per_step = [[index] for index in order], world * chosen["batch"] * accumulate
    else:
        batches, per_step = chosen["lists"], world * accumulate
    for start in range(0, len(batches), per_step):
        yield list(itertools.chain.from_iterable(batches[start : start + per_step]))


def train_on_one_process(script: types.ModuleType, chosen: dict[str, Any], rates: list[float]) -> list[Any]:
    """Return the gradient of each step of a script without gscalar that has the whole global batch at once."""
    import torch

    model = script.make_model()
    optimizer = script.KeepingSGD(model, momentum=0.9)
    samples = script.make_samples(chosen["size"])
    steps = itertools.chain(step_samples(chosen, 0), step_samples(chosen, 1))
    for indices, rate in zip(steps, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        batch = torch.utils.data.default_collate([samples[index] for index in indices])
        script.loss_of(model, batch, chosen["weight"]).backward()
        if "clip_norm" in chosen["plan"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), chosen["plan"]["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
    return list(optimizer.kept)


def test_a_run_in_three_worlds_trains_as_it_would_have_in_the_first(
    script: types.ModuleType,
    gang: Callable[..., None],
    free_ports: Callable[[int], list[int]],
    home: Path,
    tmp_path: Path,
) -> None:
    import torch

    from gscalar.frameworks.torch.storage import read_arrays

    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(CASES))
    told: list[list[dict[str, Any]]] = []  # by attempt and rank
    folders = [Home(home).run(f"case-{number}") for number in range(len(CASES))]
    for attempt, (world, stop) in enumerate(WORLDS):
        ports = map(str, free_ports(len(CASES)))
        gang(SCRIPTS / "worlds.py", world, cases, tmp_path, str(stop), *ports, GSCALAR_ATTEMPT=str(attempt))
        told.append([torch.load(tmp_path / f"stop{stop}-rank{rank}.pt") for rank in range(world)])
        for folder, name in zip(folders, CASES, strict=True):
            arrays = read_arrays(list_checkpoints(folder.checkpoints)[0].path / "arrays")
            for rank in told[attempt]:
                assert_same_bits(rank[name]["left"], arrays, f"{name}, the checkpoint of attempt {attempt}")

    for folder, (name, chosen) in zip(folders, CASES.items(), strict=True):
        for before, after in itertools.pairwise(told):
            for rank in after:
                assert_same_bits(rank[name]["restored"], before[0][name]["left"], f"{name}, restored")
        rates = [rate for ranks in told for rate in ranks[0][name]["rates"]]
        got = [gradient for ranks in told for gradient in ranks[0][name]["gradients"]]
        want = train_on_one_process(script, chosen, rates)
        assert len(got) == len(want) == told[-1][0][name]["steps"], name
        for step, (mine, whole) in enumerate(zip(got, want, strict=True)):
            assert float((mine - whole).abs().max()) < 1e-12, f"{name}, step {step + 1}"
        assert told[-1][0][name]["samples"] == 2 * chosen["size"], name
        positions = chosen["size"] if chosen["data"] == "loader" else len(LISTS)
        for epoch in range(2):
            assert consumed_samples(folder, epoch) == Counter(range(positions)), f"{name}, epoch {epoch}"
    # Cosine after 3 steps of warm-up over 16 steps: the world does not change how long the training is.
    rates = [rate for ranks in told for rate in ranks[0]["plain"]["rates"]]
    assert len(rates) == 16
    assert max(rates) == rates[2] == pytest.approx(0.02)
    assert rates[-1] < 0.001
    draws = [rank["plain"]["draw"] for rank in told[1]]
    assert len(set(draws)) == 3, "a new rank draws its own numbers"


def assert_same_bits(got: dict[str, Any], want: dict[str, Any], place: str) -> None:
    import torch

    assert any(name.startswith("optimizer0/") for name in got), place
    for name, value in got.items():
        assert torch.equal(value, want[name]), f"{place}: {name}"
