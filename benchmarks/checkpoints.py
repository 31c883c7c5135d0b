"""Whether a kill can leave a `latest` that does not load, and what a checkpoint costs beside `torch.save`.

    python benchmarks/checkpoints.py [--json] [--folder FOLDER] [--kills N] [--torch-kills N] [--blocks N] [--mib N]

Kills: a process that saves small checkpoints is killed at random instants around the saves, first one
that writes plain files, then one that writes tensors (which are loaded again after each kill).
Times: the same tensors are saved in turns by a whole commit (write, checksums, fsync of everything, two
renames) and by `torch.save` with one fsync, so that a busy disk disturbs both alike. `torch.save` runs
twice a turn; the ratio of its two halves says how far the machine alone moves a ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gscalar.frameworks.torch.storage import read_arrays, write_arrays
from gscalar.state.checkpoints import find_loadable, save_checkpoint
from gscalar.testing.checkpoint_kills import KillReport, kill_writers, serve_writers

SEED = 2
RATIO_GOAL = 2.0
Figures = dict[str, dict[str, Any]]


def figure(value: float, unit: str, goal: str | None = None, holds: bool | None = None) -> dict[str, Any]:
    return {"value": round(value, 3), "unit": unit, "goal": goal, "holds": holds}


def write_tensors(draft: Path, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    arrays = {f"layer.{index}.weight": torch.randn(64, 64, generator=generator) for index in range(8)}
    write_arrays(draft / "arrays", arrays)


def load_tensors(checkpoint: Path) -> None:
    arrays = read_arrays(checkpoint / "arrays")
    assert len(arrays) == 8, arrays.keys()


def measure_kills(folder: Path, num_plain: int, num_torch: int) -> Figures:
    (folder / "plain").mkdir()
    (folder / "torch").mkdir()
    server = (sys.executable, __file__, "--serve")
    reports = {
        "": kill_writers(folder / "plain", num_plain, SEED),
        "torch_": kill_writers(folder / "torch", num_torch, SEED, command=server, load=load_tensors),
    }
    figures: Figures = {}
    for prefix, report in reports.items():
        figures |= {f"{prefix}{name}": entry for name, entry in kill_figures(report).items()}
    return figures


def kill_figures(report: KillReport) -> Figures:
    for sentence in report.broken:
        print(sentence, file=sys.stderr)
    wanted = report.kills // 4
    return {
        "kills": figure(report.kills, "kills"),
        "kills_in_a_save": figure(report.in_a_save, "kills", f">= {wanted}", report.in_a_save >= wanted),
        "kills_before_latest": figure(report.before_latest, "kills"),
        "broken_promises": figure(len(report.broken), "", "0", not report.broken),
    }


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_times(folder: Path, num_blocks: int, mib: int) -> Figures:
    # As a training has them: some large matrices, many small vectors.
    num_large = max(1, mib // 4)
    arrays = {f"layer.{index}.weight": torch.randn(1024, 1024) for index in range(num_large)}
    arrays |= {f"layer.{index}.bias": torch.randn(1024) for index in range(num_large)}
    num_bytes = sum(tensor.nbytes for tensor in arrays.values())
    plain, commits = folder / "plain.pt", folder / "checkpoints"

    def save_plain() -> None:
        with plain.open("wb") as file:
            torch.save(arrays, file)
            file.flush()
            os.fsync(file.fileno())

    def commit() -> None:
        save_checkpoint(commits, 1, {}, lambda draft: write_arrays(draft / "arrays", arrays))

    spent: dict[str, list[float]] = {"commit": [], "plain": [], "again": [], "verify": [], "read": []}
    for _ in range(num_blocks):
        for name, work in (("plain", save_plain), ("commit", commit), ("again", save_plain)):
            spent[name].append(seconds(work))
            if name == "commit":
                path = commits / "step-000000000001"
                spent["verify"].append(seconds(lambda: find_loadable(commits)))
                spent["read"].append(seconds(lambda path=path: read_arrays(path / "arrays")))
            # What is left of one turn must not make the next one slower.
            shutil.rmtree(commits, ignore_errors=True)
            plain.unlink(missing_ok=True)
    return time_figures({name: statistics.median(each) for name, each in spent.items()}, num_bytes)


def time_figures(median_s: dict[str, float], num_bytes: int) -> Figures:
    def rate(name: str) -> dict[str, Any]:
        return figure(num_bytes / median_s[name] / 1e6, "MB/s")

    ratio = median_s["commit"] / statistics.mean([median_s["plain"], median_s["again"]])
    return {
        "commit_time": figure(median_s["commit"], "s"),
        "commit_rate": rate("commit"),
        "torch_save_fsync_time": figure(median_s["plain"], "s"),
        "torch_save_fsync_rate": rate("plain"),
        "commit_over_torch_save": figure(ratio, "x", f"<= {RATIO_GOAL:g}", ratio <= RATIO_GOAL),
        "torch_save_over_itself": figure(median_s["plain"] / median_s["again"], "x"),
        "verify_rate": rate("verify"),
        "read_rate": rate("read"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills around checkpoints, and what a checkpoint costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--kills", type=int, default=200, help="of a process that writes plain files")
    parser.add_argument("--torch-kills", type=int, default=50, help="of a process that writes tensors")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--mib", type=int, default=128, help="size of the checkpoint that is timed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_writers(write_tensors)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure_kills(Path(folder), options.kills, options.torch_kills)
        figures |= measure_times(Path(folder), options.blocks, options.mib)
    if options.json:
        print(json.dumps({"figures": figures}, indent=2))
        return
    for name, entry in figures.items():
        goal = f"goal {entry['goal']}: {'holds' if entry['holds'] else 'DOES NOT HOLD'}" if entry["goal"] else ""
        print(f"{name:24s} {entry['value']:>12,.2f} {entry['unit']:<6s} {goal}")


if __name__ == "__main__":
    main()
