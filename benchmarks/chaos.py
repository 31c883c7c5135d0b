"""Whether a training that is killed, stopped and delayed at random ends as the undisturbed one, bit by bit.

    python benchmarks/chaos.py [--json] [--folder FOLDER] [--seeds N] [--first-seed N] [--minutes M]

recipes/bytes_lm with two workers is first trained undisturbed, with as many steps as take the minutes given, and then
once a seed under a schedule of faults that the seed decides: kills of a rank, of the supervisor (the run is then
resumed) and of everything, stops that are shorter than the hang limit and stops that are longer, delays and slow
ranks, by step and by the clock, so that they fall into starts, saves and ends too. A seed is good if

- the run is completed and its weights are those of the undisturbed run;
- no process of it is left, and nobody has a file of it open;
- every record is sound (torn ends apart), or `gscalar show` names it as damaged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from gscalar.state.records import verify_record
from gscalar.testing.faults import (
    BetweenS,
    BetweenSteps,
    Delay,
    Fault,
    FaultPlan,
    Injected,
    Kill,
    Slow,
    Stop,
    Trigger,
    injecting,
)

ROOT = Path(__file__).resolve().parents[1]
GSCALAR = [sys.executable, "-m", "gscalar"]
WORKERS = 2
CALIBRATION_STEPS = 60
CHECKPOINT_EVERY_S = 3.0  # of the undisturbed run, in steps
# By turns, and each seed begins with another one.
KILLED: tuple[Literal["supervisor", "all"] | None, ...] = (None, "supervisor", None, "all", None, None)
# Faults a minute of undisturbed training; at least one of each kind.
PER_MINUTE = {"kill": 2.0, "short stop": 2.0, "long stop": 0.7, "delay": 1.0, "slow": 1.0}
RESUME_LIMIT = 100
LEFT_LIMIT_S = 10.0
Say = Callable[[str], object]
Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained, for how long, and when a silent worker is hung."""

    minutes: float = 3.0
    hang_after_s: float = 8.0
    config: dict[str, Any] = field(default_factory=dict)  # of the recipe; none: as it is
    calibration_steps: int = CALIBRATION_STEPS


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one seed."""

    seed: int
    injected: list[Injected]
    shown: dict[str, Any]
    took_s: float
    broken: list[str]  # every promise that was

    @property
    def counts(self) -> Counter[str]:
        """How many faults of each kind were injected."""
        return Counter(entry.kind for entry in self.injected if entry.did in ("killed", "stopped", "slowed", "held"))

    def line(self) -> str:
        """Return the result for people."""
        words = [f"{self.counts[kind]} {kind}s" for kind in ("kill", "stop", "slow", "delay")]
        goodput = (self.shown.get("goodput") or {}).get("ratio")
        words += [f"{len(self.shown.get('attempts', ()))} attempts", f"{self.took_s:.0f} s"]
        words += [] if goodput is None else [f"goodput {goodput:.2f}"]
        return f"seed {self.seed}: {', '.join(words)}: {'; '.join(self.broken) or 'equal'}"


def draw_plan(seed: int, steps: int, setting: Setting) -> FaultPlan:
    """Return the faults of a seed."""
    rng, faults = random.Random(f"chaos {seed}"), list[Fault]()
    for kind, per_minute in PER_MINUTE.items():
        for number in range(max(1, round(per_minute * setting.minutes))):
            # By turns by step, which no load of the machine moves, and by the clock, which meets starts too.
            when: Trigger = BetweenS(0.0, 60 * setting.minutes) if number % 2 else BetweenSteps(1, steps - 1)
            faults.append(
                Kill(target=KILLED[(number + seed) % len(KILLED)], when=when)
                if kind == "kill"
                else draw_fault(kind, when, rng, setting)
            )
    return FaultPlan(tuple(faults), seed)


def draw_fault(kind: str, when: Trigger, rng: random.Random, setting: Setting) -> Fault:
    """Return a fault of a kind that kills nobody."""
    lasts_s = rng.uniform(0.05, 0.1) * 60 * setting.minutes
    if kind == "short stop":
        return Stop(rank=None, for_s=rng.uniform(0.1, 0.6) * setting.hang_after_s, when=when)
    if kind == "long stop":
        return Stop(rank=None, for_s=rng.uniform(1.5, 2.0) * setting.hang_after_s, when=when)
    if kind == "delay":
        return Delay(rank=None, delay_s=rng.uniform(0.02, 0.3), every_steps=rng.randint(1, 5), for_s=lasts_s, when=when)
    return Slow(rank=None, factor=rng.uniform(1.5, 4.0), for_s=lasts_s, when=when)


class Arena:
    """A home with all runs of one setting."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        self.home = folder / "home"
        self.folder = folder
        self.setting = setting
        self._started: list[subprocess.Popen[bytes]] = []

    def measure_steps(self) -> int:
        """Return how many undisturbed steps take the setting's minutes."""
        with self.train("calibration", self.setting.calibration_steps, every=1000) as (process, _):
            self._must_end(process, "calibration")
        rate = self.show("calibration")["throughput"]["steps_per_s"]
        return max(self.setting.calibration_steps, round(60 * self.setting.minutes * rate))

    def train_undisturbed(self, steps: int, every: int) -> dict[str, Any]:
        """Return what `gscalar show` says of the undisturbed run."""
        with self.train("undisturbed", steps, every=every) as (process, _):
            self._must_end(process, "undisturbed")
        return self.show("undisturbed")

    def disturb(self, seed: int, steps: int, every: int, want: str) -> Result:
        """Train under the faults of a seed; return what became of it."""
        name, began_s = f"seed-{seed}", time.monotonic()
        broken: list[str] = []
        injected: list[Injected] = []
        with self.train(name, steps, every=every) as (process, run_id):
            try:
                with injecting(draw_plan(seed, steps, self.setting), self.home, run_id) as injection:
                    injected = injection.injected
                    code = self._see_through(process, run_id)
            except (TimeoutError, RuntimeError) as error:
                broken.append(str(error))
            else:
                broken += [] if code == 0 else [f"exit code {code}: {self._last_words(name)}"]
        took_s = time.monotonic() - began_s
        shown = self.show(run_id)
        broken += self.judge(shown, want)
        return Result(seed=seed, injected=injected, shown=shown, took_s=took_s, broken=broken)

    def judge(self, shown: dict[str, Any], want: str) -> list[str]:
        """Return the promises that a run which has ended does not keep."""
        broken = [] if shown["status"] == "completed" else [f"the run is {shown['status']}"]
        if shown["digests"]["weights"] != want:
            broken.append("OTHER WEIGHTS")
        deadline_s = time.monotonic() + LEFT_LIMIT_S
        while (left := what_is_left(shown["id"], Path(shown["folder"]))) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        return broken + left + unnamed_damage(Path(shown["folder"]), shown["damage"])

    def show(self, name: str) -> dict[str, Any]:
        """Return what `gscalar show` says of a run."""
        command = [*GSCALAR, "show", name, "--home", str(self.home), "--json"]
        return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    @contextlib.contextmanager
    def train(self, name: str, steps: int, *, every: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        """Give the process of a run that has begun, and the run's id; whatever is left is killed at the end."""
        config = self.setting.config | {"steps": steps}
        values = {f"config.{key}": value for key, value in config.items()} | {
            "retries": 10_000, "hang_after_s": self.setting.hang_after_s,
            "checkpoint.every_steps": every, "checkpoint.every_s": "null",
        }  # fmt: skip
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        known = self._runs()
        process = self._gscalar(
            name, ["run", str(ROOT / "recipes/bytes_lm"), "--name", name, "--workers", str(WORKERS), *words]
        )
        try:
            while not (begun := self._runs() - known) and process.poll() is None:
                time.sleep(0.01)
            if not begun:
                raise RuntimeError(f"{name} did not begin: {self._last_words(name)}")
            yield process, begun.pop()
        finally:
            for each in self._started:
                each.kill()
                each.wait()
            self._started.clear()

    def _see_through(self, process: subprocess.Popen[bytes], run_id: str) -> int:
        """Return the exit code of the run, resumed as often as its supervisor is killed."""
        limit_s = time.monotonic() + 300 + 20 * 60 * self.setting.minutes
        for _ in range(RESUME_LIMIT):
            try:
                code = process.wait(max(0.0, limit_s - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise TimeoutError("the run did not end in time") from error
            # 2: what the killed supervisor has left is just ending, and the run is not free yet; or its workers had
            # completed it.
            if code not in (-9, 2):
                return code
            if code == 2 and self.show(run_id)["status"] == "completed":
                return 0
            process = self._gscalar(run_id, ["run", "--resume", run_id])
        raise RuntimeError(f"the run was resumed {RESUME_LIMIT} times")

    def _must_end(self, process: subprocess.Popen[bytes], name: str) -> None:
        if process.wait() != 0:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}: {self._last_words(name)}")

    def _gscalar(self, log: str, words: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(
                [*GSCALAR, *words, "--home", str(self.home)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment,
            )  # fmt: skip
        self._started.append(process)
        return process

    def _runs(self) -> set[str]:
        folder = self.home / "runs"
        return {path.parent.name for path in folder.glob("*/job.json")}

    def _last_words(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text()[-2000:] if path.exists() else ""


def what_is_left(run_id: str, folder: Path) -> list[str]:
    """Return who still is of a run, and who has a file of it open."""
    mark, left = f"GSCALAR_RUN_ID={run_id}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended, or it is another user's
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                left.append(f"process {entry.name} is left")
            for link in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if link.readlink().is_relative_to(folder):
                        left.append(f"process {entry.name} has {link.readlink()} open")
    return left


def unnamed_damage(folder: Path, damage: dict[str, Any] | None) -> list[str]:
    """Return the records that are damaged, and of which `gscalar show` does not say so."""
    named = set((damage or {}).get("files", ()))
    files = sorted((folder / "records").glob("*.rec"))
    return [f"{file.name} is damaged" for file in files if not verify_record(file).sound and file.name not in named]


def measure(arena: Arena, seeds: list[int], say: Say) -> tuple[Figures, list[Result]]:
    """Return the figures of all seeds."""
    steps = arena.measure_steps()
    every = max(1, round(steps * CHECKPOINT_EVERY_S / (60 * arena.setting.minutes)))
    began_s = time.monotonic()
    undisturbed = arena.train_undisturbed(steps, every)
    undisturbed_s = time.monotonic() - began_s
    say(f"undisturbed: {steps} steps in {undisturbed_s:.0f} s, a checkpoint every {every}")
    results = []
    for seed in seeds:
        results.append(arena.disturb(seed, steps, every, undisturbed["digests"]["weights"]))
        say(results[-1].line())
    good = sum(not result.broken for result in results)
    counts = sum((result.counts for result in results), Counter[str]())
    ratios = [result.shown["goodput"]["ratio"] for result in results if result.shown.get("goodput")]

    def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
        return {"value": value, "unit": unit, "goal": goal, "holds": holds}

    return {
        "good_seeds": figure(good, "seeds", f"{len(seeds)}", good == len(seeds)),
        # What has injected nothing has shown nothing.
        "kills": figure(counts["kill"], "kills", f">= {len(seeds)}", counts["kill"] >= len(seeds)),
        "stops": figure(counts["stop"], "stops", f">= {len(seeds)}", counts["stop"] >= len(seeds)),
        "slow_phases": figure(counts["slow"], "phases"),
        "delays": figure(counts["delay"], "holds"),
        "attempts": figure(sum(len(result.shown["attempts"]) for result in results), "attempts"),
        "goodput_mean": figure(round(fmean(ratios), 3) if ratios else 0.0, "ratio"),
        "time_over_undisturbed": figure(round(fmean(r.took_s for r in results) / undisturbed_s, 2), "x"),
    }, results


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether a training under random faults ends as the undisturbed one.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--seeds", type=int, default=10, help="how many schedules of faults")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=3.0, help="what the undisturbed training takes")
    options = parser.parse_args()
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    say: Say = (
        (lambda line: print(line, file=sys.stderr, flush=True))
        if options.json
        else (lambda line: print(line, flush=True))
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures, _ = measure(Arena(Path(folder), Setting(minutes=options.minutes)), seeds, say)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, each in figures.items():
        goal = f"of {each['goal']}{'' if each['holds'] else '  DOES NOT HOLD'}" if each["goal"] else ""
        print(f"{name:24s} {each['value']:>10g} {each['unit']:<9s} {goal}")


if __name__ == "__main__":
    main()
