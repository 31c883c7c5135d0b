"""Real torchrun agents: what their workers find out about themselves without talking."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gscalar.runtime.launch import run_id_of

pytestmark = pytest.mark.torch

WORKER = """
import json, os, pathlib, sys, time
from gscalar.runtime.launch import read_launch
launch = read_launch(os.environ, script=sys.argv[0])
fields = {name: getattr(launch, name) for name in ("launcher", "identity", "unique", "rank", "world", "attempt")}
folder = pathlib.Path(sys.argv[1])
draft = folder / f"{launch.attempt}-{launch.rank}.draft"
draft.write_text(json.dumps(fields))
draft.rename(draft.with_suffix(".json"))
# The agent ends all workers when one fails, so nobody leaves before all have written.
deadline = time.monotonic() + 60
while len(list(folder.glob(f"{launch.attempt}-*.json"))) < launch.world and time.monotonic() < deadline:
    time.sleep(0.05)
sys.exit(1 if launch.attempt == 0 and sys.argv[2] == "fail-once" else 0)
"""


def launched(folder: Path, behaviour: str, *through: str) -> list[dict[str, Any]]:
    """Return what each worker of each attempt wrote, under one torchrun of two workers."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(WORKER)
    agent = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", "0"]
    command = [sys.executable, *agent, "--no-python", *through, sys.executable, str(script), str(folder), behaviour]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_workers_of_one_torchrun_agree_over_a_restart_and_another_one_is_told_apart(tmp_path: Path) -> None:
    first = launched(tmp_path / "first", "fail-once")
    assert [(worker["attempt"], worker["rank"]) for worker in first] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {(worker["launcher"], worker["world"], worker["unique"]) for worker in first} == {("torchrun", 2, True)}
    assert len({run_id_of(worker["identity"]) for worker in first}) == 1
    # A shell between the agent and each worker: the workers no longer have the same parent.
    shell = tmp_path / "wrapper.sh"
    shell.write_text('"$@"\nexit $?\n')
    second = launched(tmp_path / "second", "end", "/bin/sh", str(shell))
    assert len(second) == 2
    assert len({worker["identity"] for worker in second}) == 1
    assert second[0]["identity"].split(":")[1:4] != first[0]["identity"].split(":")[1:4]
