"""What reading a PyTorch profiler's trace costs, beside Holistic Trace Analysis 0.5.

    python benchmarks/diagnosis_import.py [--hta-python PATH] [--trace FILE] [--large] [--rounds N] [--json]

Both load one trace and split the device's time (busy, overlap, causes of idle time), each in a process of its own,
taking turns. Seconds are CPU time of the process and its children, without imports. Memory is `ru_maxrss`: the whole
process, and above what it was when everything was imported. HTA is no dependency: `--hta-python` names the Python of
an environment that has it (`pip install HolisticTraceAnalysis==0.5.0`); without it only our own figures are printed.

The trace is the published ResNet-50 of `../shared/data` where it is there, else one that is made here with as many
events. `--large` reads a trace of 1 GB, made in the temporary folder and deleted after.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACE = "kineto/resnet50_workers0.pt.trace.json.gz"
MEASURED = """
import json, resource, sys, time
def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
imported_mb, began_s, began_wall_s = peak_mb(), cpu_s(), time.perf_counter()
work(sys.argv[1])
taken = {"cpu_s": cpu_s() - began_s, "wall_s": time.perf_counter() - began_wall_s}
print(json.dumps(taken | {"peak_mb": peak_mb(), "above_imports_mb": peak_mb() - imported_mb}))
"""
OURS = """
from pathlib import Path
from gscalar.importers import joining, kineto, recognition
def work(path):
    assert recognition.open_traces([Path(path)]).devices[0].busy_s > 0
"""
HTA = """
import logging, warnings
logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
def work(path):
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/")
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
"""
GOALS = {"times faster": 5.0, "share of its memory": 0.5, "1 GB in seconds": 20.0, "1 GB peak MB": 300.0}
STEP_US = 200_000


def measured(python: str, work: str, trace: Path) -> dict[str, float]:
    """Return the figures of one process."""
    done = subprocess.run(
        [python, "-c", work + MEASURED, str(trace)], check=True, capture_output=True, text=True, env=dict(os.environ)
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def steps_of_events(num_steps: int) -> Iterator[str]:
    """Yield the events of a made-up training, a step at a time, as many and as long as those of a ResNet-50."""
    events = [_event("user_annotation", "ProfilerStep#@@", 0, STEP_US - 100, "main", {})]
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events.append(_event("user_annotation", loader, 200, 60_000, "main", {}))
    for at in range(3900):
        shapes = {"External id": at, "Input Dims": [[32, 64, 112, 112], [], [64], [64]], "Input type": ["float"] * 4}
        events.append(_event("cpu_op", f"aten::operator_{at % 60}", 1000 + 40 * at, 35, "main", shapes))
    for at in range(1450):
        start = 62_000 + 90 * at
        events.append(_event("cuda_runtime", "cudaLaunchKernel", start, 6, "main", {"cbid": 211, "correlation": at}))
        name = f"void cudnn::detail::kernel_{at % 90}<float, float, 512, 6, 7, 3, 3, 5, 1, false>(int, float const*)"
        place = {"device": 0, "context": 1, "stream": 7, "correlation": at, "grid": [50, 1, 1], "block": [256, 1, 1]}
        events.append(_event("kernel", name, start + 30, 55, "device", place))
        events.append(_event("ac2g", "ac2g", start, 0, "main", {"id": at}).replace('"ph": "X"', '"ph": "s"'))
    step = ",\n".join(events)
    for number in range(1, num_steps + 1):
        yield step.replace("@@", str(number))


def _event(category: str, name: str, start_us: int, duration_us: int, thread: str, args: dict[str, Any]) -> str:
    """Return an event's text; `@@` stands for the number of the step, from 1."""
    text = json.dumps(
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": thread,
            "tid": 1,
            "ts": "TS",
            "dur": duration_us,
            "args": args,
        }
    )
    for key in ("correlation", "External id"):
        if key in args:
            text = text.replace(f'"{key}": {args[key]}', f'"{key}": @@{args[key]:05d}')
    return "  " + text.replace('"TS"', f"@@{start_us:06d}").replace('"device", "tid"', '0, "tid"')


def write_trace(path: Path, num_steps: int) -> None:
    """Write a made-up trace; steps are a second apart."""
    with gzip.open(path, "wt", 1) if path.suffix == ".gz" else path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [],\n"traceEvents": [\n')
        for at, text in enumerate(steps_of_events(num_steps)):
            file.write((",\n" if at else "") + text)
        file.write('\n],\n"traceName": "made up"}\n')


def figure(value: float, unit: str, goal: float | None = None, *, at_least: bool = False) -> dict[str, Any]:
    """Return a figure, and whether it reaches the goal."""
    holds = None if goal is None else value >= goal if at_least else value <= goal
    return {"value": value, "unit": unit, "goal": goal, "holds": holds}


def compare(trace: Path, hta: str | None, num_rounds: int) -> dict[str, dict[str, Any]]:
    """Return medians over rounds in which both take turns."""
    rounds = [
        (measured(sys.executable, OURS, trace), measured(hta, HTA, trace) if hta else None) for _ in range(num_rounds)
    ]

    def median(who: int, name: str) -> float:
        return statistics.median(each[who][name] for each in rounds)  # type: ignore[index]  # 1 only where it is there

    figures = {
        "gscalar: seconds": figure(median(0, "cpu_s"), "s"),
        "gscalar: peak memory": figure(median(0, "peak_mb"), "MB"),
        "gscalar: memory above imports": figure(median(0, "above_imports_mb"), "MB"),
    }
    if hta:
        figures |= {
            "HTA: seconds": figure(median(1, "cpu_s"), "s"),
            "HTA: peak memory": figure(median(1, "peak_mb"), "MB"),
            "HTA: memory above imports": figure(median(1, "above_imports_mb"), "MB"),
            "times faster": figure(
                statistics.median(theirs["cpu_s"] / ours["cpu_s"] for ours, theirs in rounds if theirs), "x",
                GOALS["times faster"], at_least=True,
            ),
            "share of its memory": figure(
                median(0, "peak_mb") / median(1, "peak_mb"), "", GOALS["share of its memory"]
            ),
            "share of its memory above imports": figure(
                median(0, "above_imports_mb") / median(1, "above_imports_mb"), "", GOALS["share of its memory"]
            ),
        }  # fmt: skip
    return figures


def large(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what a trace of 1 GB takes."""
    path = folder / "large.json"
    size = sum(len(text) for text in steps_of_events(1))
    write_trace(path, round(1e9 / size))
    taken = measured(sys.executable, OURS, path)
    path.unlink()
    return {
        "1 GB in seconds": figure(taken["cpu_s"], "s", GOALS["1 GB in seconds"]),
        "1 GB peak MB": figure(taken["peak_mb"], "MB", GOALS["1 GB peak MB"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta-python", help="Python of an environment that has HTA 0.5")
    parser.add_argument("--trace", type=Path, help="the trace to read")
    parser.add_argument("--large", action="store_true", help="read a trace of 1 GB too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    published = Path(os.environ.get("GSCALAR_SHARED") or ROOT.parent / "shared/data") / TRACE
    with tempfile.TemporaryDirectory() as folder:
        trace = arguments.trace or published
        if not trace.exists():
            trace = Path(folder) / "made_up.json.gz"
            write_trace(trace, 8)
        figures = compare(trace.resolve(), arguments.hta_python, arguments.rounds)
        if arguments.large:
            figures |= large(Path(folder))
    if arguments.json:
        print(json.dumps({"trace": trace.name, "figures": figures}))
        return
    print(f"{trace.name}, median of {arguments.rounds} rounds" + ("" if arguments.hta_python else "; HTA was not run"))
    for name, each in figures.items():
        goal = (
            f"   (goal: {each['goal']:g} {each['unit']}, {'met' if each['holds'] else 'missed'})"
            if each["goal"]
            else ""
        )
        print(f"{name:<36} {each['value']:8.2f} {each['unit']}{goal}")


if __name__ == "__main__":
    main()
