"""How well a transformer's iterations are predicted on measured layouts, which others have published.

The data are no part of the project: `GSCALAR_SHARED` names their folder. A twin that needs none is in
tests/unit/prediction/test_transformer.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The tests' own environment has no GSCALAR_ variables, so it is read before.
SHARED = Path(os.environ.get("GSCALAR_SHARED") or ROOT.parent / "shared" / "data")


def measure(*words: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks/scaling_fit.py"
    return subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )


@pytest.mark.skipif(
    not (SHARED / "scaling").is_dir(), reason=f"{SHARED}/scaling is absent; GSCALAR_SHARED names its parent"
)
def test_measured_layouts_predict_those_that_were_not_fitted() -> None:
    got = json.loads(measure("--json", "--shared", SHARED).stdout)
    thirds = [each for name, each in got.items() if name.startswith("a third")]
    assert len(thirds) == 5
    assert all(each["mape"] < 0.08 for each in thirds)
    assert all(each["fitted"] + each["tested"] == 1440 for each in thirds)
    assert got["at most 4 GPUs, tested on 8"]["mape"] < 0.10
    assert all(each["inside"] > 0.75 for each in got.values())


def test_absent_data_are_a_reason_and_no_failure(tmp_path: Path) -> None:
    done = measure("--shared", tmp_path)
    assert done.stdout == ""
    assert done.stderr.startswith("skipped:")
