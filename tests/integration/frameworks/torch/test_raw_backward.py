"""A backward that the script calls by itself exchanges gradients as DistributedDataParallel does: the mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parent / "scripts" / "raw_backward.py"


def test_it_gives_the_mean_over_the_ranks_as_the_runs_own_does(gang: Callable[..., None], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    gang(SCRIPT, 2, out)
    assert json.loads(out.read_text()) == {"raw": 1.5, "run": 1.5, "raw again": 1.5, "zeroed in place": 1.5}
