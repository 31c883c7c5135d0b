"""Whether a run that was killed and resumed ends with the weights of the undisturbed one, bit by bit.

    python benchmarks/resume_matrix.py [--json] [--folder FOLDER] [--worlds 2,3,4] [--seed N]

Every plan (plain, accumulated, bf16) in every world (2, 3, 4) is trained once undisturbed and then killed
with SIGKILL in three ways (a worker; the supervisor; all of them), each time at another of five steps. A
supervisor starts the next attempt by itself after a worker is killed; else `gscalar run --resume` does. A figure
counts the killed runs of its plan and world that went on from a step above 0 and ended with equal weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("_resume_script.py")
GSCALAR = [sys.executable, "-m", "gscalar"]
PLANS = ("plain", "accumulated", "bf16")
WORLDS = (2, 3, 4)
TARGETS = ("worker", "supervisor", "all")
STEPS = (4, 5, 7, 8, 11)  # a checkpoint is taken every third step
LIMIT_S = 300.0
Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Kill:
    """Who is killed when, in a run of this plan and world."""

    plan: str
    world: int
    target: str
    step: int

    @property
    def name(self) -> str:
        return f"{self.plan}-{self.world}-{self.target}-{self.step}"


def whole_matrix(worlds: tuple[int, ...] = WORLDS) -> Iterator[Kill]:
    """Yield every plan, world and target; the steps go round."""
    cells = itertools.product(worlds, PLANS, TARGETS)
    for (world, plan, target), step in zip(cells, itertools.cycle(STEPS), strict=False):
        yield Kill(plan, world, target, step)


class Matrix:
    """A home with the runs of one table."""

    def __init__(self, home: Path, folder: Path, seed: int = 0) -> None:
        self.home = home
        self.folder = folder
        self.seed = seed

    def train(self, name: str, plan: str, world: int, kill: str = "") -> None:
        """Train one run to its end, with as many attempts as that takes."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        options = ["--workers", str(world), "--name", name, "--set", f"seed={self.seed}"]
        code = self._gscalar(folder, [*options, "--", "python", str(SCRIPT)], plan, kill)
        if code == -9:
            code = self._gscalar(folder, ["--resume", name], plan, kill)
        if code != 0:
            raise RuntimeError(f"{name} ended with exit code {code}:\n{(folder / 'err').read_text()}")

    def show(self, name: str) -> dict[str, Any]:
        """Return what `gscalar show` says of a run."""
        command = [*GSCALAR, "show", name, "--home", str(self.home), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        return dict(json.loads(done.stdout))

    def _gscalar(self, folder: Path, words: list[str], plan: str, kill: str) -> int:
        told = {"MATRIX_FOLDER": str(folder), "MATRIX_PLANS": plan, "MATRIX_KILL": kill, "OMP_NUM_THREADS": "1"}
        command = [*GSCALAR, "run", "--home", str(self.home), *words]
        with (folder / "out").open("a") as out, (folder / "err").open("a") as err:
            process = subprocess.Popen(
                command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **told}
            )
            try:
                (folder / "supervisor").write_text(str(process.pid))
                return process.wait(LIMIT_S)
            finally:
                process.kill()


def is_resumed(run: dict[str, Any]) -> bool:
    """Whether the run is complete, and its last attempt went on from a checkpoint."""
    last = run["attempts"][-1]
    return run["status"] == "completed" and len(run["attempts"]) == 2 and last["from_step"] > 0


def measure(matrix: Matrix, worlds: tuple[int, ...], say: Any) -> Figures:
    """Return, for each plan and world, the killed runs that ended as the undisturbed one."""
    figures: Figures = {}
    for world, plan in itertools.product(worlds, PLANS):
        name = f"{plan}-{world}-undisturbed"
        matrix.train(name, plan, world)
        want = matrix.show(name)["digests"]["weights"]
        kills = [kill for kill in whole_matrix(worlds) if (kill.world, kill.plan) == (world, plan)]
        equal = 0
        for kill in kills:
            matrix.train(kill.name, plan, world, f"{kill.target}:{kill.step}")
            run = matrix.show(kill.name)
            good = is_resumed(run) and run["digests"]["weights"] == want
            equal += good
            place = f"killed at step {kill.step:2d}, resumed from {run['attempts'][-1]['from_step']}"
            say(f"world {world}  {plan:11s}  {kill.target:10s} {place}: {'equal' if good else 'DIFFERENT'}")
        figures[f"equal_{plan}_world_{world}"] = {
            "value": equal, "unit": "runs", "goal": f"{len(kills)}", "holds": equal == len(kills),
        }  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether killed and resumed runs end as undisturbed ones.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--worlds", default="2,3,4", help="numbers of workers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    worlds = tuple(int(world) for world in options.worlds.split(","))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        matrix = Matrix(Path(name) / "home", Path(name), options.seed)
        say = (lambda line: print(line, file=sys.stderr, flush=True)) if options.json else print
        figures = measure(matrix, worlds, say)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        print(f"{name:28s} {entry['value']} of {entry['goal']}{'' if entry['holds'] else '  DOES NOT HOLD'}")


if __name__ == "__main__":
    main()
