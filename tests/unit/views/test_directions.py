from __future__ import annotations

import pytest

from gscalar.views.directions import find_direction, is_of_machine

DIRECTIONS = {
    "train/loss": "down",
    "val/loss": "down",
    "loss": "down",
    "valLoss": "down",
    "val/bits_per_byte": "down",
    "perplexity": "down",
    "word-error-rate": "down",
    "train/step_s": "down",
    "val/accuracy": "up",
    "val/top1_accuracy": "up",
    "macro.f1": "up",
    "train/tokens_per_s": "up",
    "accuracy/loss": "down",  # the last part is what it is
    "train/lr": None,
    "train/grad_norm": None,
    "loss_scale": None,
    "glossary": None,
    "score": None,
    "f1_loss": None,  # its words speak for both ways
    "": None,
}


@pytest.mark.parametrize("name", DIRECTIONS)
def test_the_direction_is_what_the_name_says(name: str) -> None:
    assert find_direction(name) == DIRECTIONS[name]


OF_MACHINE = {
    "expert_utilization": False,
    "memorization/rate": False,
    "gpu0/utilization": True,
    "train/step_s": True,
    "train/tokens_per_s": True,
    "epoch_time": True,
    "gpu_memory": True,
    "val/latency_ms": True,
    "train/loss": False,
    "train/lr": False,
    "val/accuracy": False,
    "steps": False,
    "classes": False,
}


@pytest.mark.parametrize("name", OF_MACHINE)
def test_what_measures_the_machine_is_no_part_of_the_training(name: str) -> None:
    assert is_of_machine(name) is OF_MACHINE[name]
