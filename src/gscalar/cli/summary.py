"""What `gscalar run` says at the end: how it went, what came out, and the next three commands to try."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import click

from gscalar.base.units import format_bytes, format_count, format_duration
from gscalar.cli.costs import account_word, costliest, lost_parts, percent
from gscalar.control.indexer import refresh
from gscalar.control.supervisor import Outcome
from gscalar.model.roles import describe_gang
from gscalar.model.status import Exit, Status
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home
from gscalar.views.show import show_run

_WIDTH: Final = 12
_MOST_METRICS: Final = 12
_MOST_LOST: Final = 3
_GOOD: Final = 0.99
# Shown as throughput, or of interest only while training.
_NOT_FINAL: Final = ("train/step_s", "train/tokens_per_s", "train/samples_per_s", "train/lr", "train/grad_norm")


def print_summary(home: Home, outcome: Outcome) -> None:
    """Print the summary of a run to stderr. What the catalog cannot tell is left out."""
    try:
        with open_catalog(home) as catalog:
            refresh(home, catalog, outcome.run)
            shown = show_run(home, catalog, outcome.run)
    except Exception as error:  # noqa: BLE001 - the exit code is the training's, whatever the catalog has
        _say(f"gscalar: run {outcome.run} {outcome.status}; the catalog cannot be read: {error}")
        return
    _say("\n".join([*describe_run(shown), *next_commands(outcome)]))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # whoever read has gone; the exit code is the training's
        click.echo(text, err=True)


def describe_run(shown: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a run, from what `gscalar show` knows."""
    attempts = shown["attempts"]
    yield ""
    yield f"run {shown['id']} ({shown['name']}) {shown['status']}{_duration(shown)}"
    if attempts:
        gang = describe_gang(attempts[-1]["roles"])
        yield _row("workers", f"{gang}, {len(attempts)} attempt{'s' if len(attempts) != 1 else ''}")
    if shown["steps"]:
        tokens = f", {format_count(shown['tokens'])} tokens" if shown["tokens"] else ""
        yield _row("steps", f"{shown['steps']}{tokens}")
    throughput = _throughput(shown["throughput"])
    if throughput:
        yield _row("throughput", throughput)
    yield from _costs(shown)
    for place, (name, metric) in enumerate(_final_metrics(shown["metrics"])):
        yield _row("metrics" if place == 0 else "", f"{name} {_number(metric['last'])}{_best(metric)}")
    if shown["checkpoints"]:
        newest = max(shown["checkpoints"], key=lambda each: each["step"])
        text = f"{len(shown['checkpoints'])}, newest of step {newest['step']}, {format_bytes(newest['bytes'])}"
        yield _row("checkpoints", text)
    if shown["digests"].get("weights"):
        yield _row("weights", f"sha256 {shown['digests']['weights'][:16]}")
    for place, warning in enumerate(_warnings(shown)):
        yield _row("warnings" if place == 0 else "", warning)
    yield _row("record", shown["folder"])


def next_commands(outcome: Outcome) -> list[str]:
    """Return the next three commands to try, after how it ended."""
    run = outcome.run
    show, logs = f"gscalar show {run}", f"gscalar logs {run}"
    resume = f"gscalar run --resume {run}"
    if outcome.status == Status.FAILED and outcome.failure is not None:
        commands = [f"{logs} --rank {outcome.failure.rank}", show, resume]
    elif outcome.exit_code == Exit.DONE:
        commands = [show, logs, "gscalar runs"]
    else:
        commands = [resume, show, logs]
    return [_row("next" if place == 0 else "", command) for place, command in enumerate(commands)]


def _row(label: str, text: str) -> str:
    return f"  {label:<{_WIDTH}} {text}"


def _duration(shown: Mapping[str, Any]) -> str:
    if not shown["started"] or not shown["ended"]:
        return ""
    lasted = datetime.fromisoformat(shown["ended"]) - datetime.fromisoformat(shown["started"])
    return f" after {format_duration(lasted.total_seconds())}"


def _throughput(throughput: Mapping[str, float]) -> str:
    words = {"steps_per_s": "steps/s", "tokens_per_s": "tokens/s", "samples_per_s": "samples/s"}
    parts = [f"{format_count(throughput[key])} {word}" for key, word in words.items() if throughput.get(key)]
    if throughput.get("mfu") is not None:
        parts.append(f"MFU {percent(throughput['mfu'])}")
    return ", ".join(parts)


def _costs(shown: Mapping[str, Any]) -> Iterator[str]:
    """Yield what cost most: of a step, and of the run where that lost more than a little."""
    line = costliest(shown)
    if line:
        yield _row("time", line)
    goodput = shown["goodput"]
    if goodput and goodput["ratio"] < _GOOD:
        parts = [f"{account_word(name)} {format_duration(s)}" for name, s in lost_parts(goodput)[:_MOST_LOST]]
        yield _row("goodput", f"{percent(goodput['ratio'])}; lost to {', '.join(parts)}")


def _final_metrics(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the metrics worth a line: the user's first, validation before training."""
    found = [(name, metric) for name, metric in metrics.items() if name not in _NOT_FINAL]
    found.sort(key=lambda item: (item[0].startswith("train/"), item[0]))
    return found[:_MOST_METRICS]


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, int | float) else str(value)


def _best(metric: Mapping[str, Any]) -> str:
    if metric.get("count", 0) < 2:
        return ""
    return f"  (min {_number(metric['min'])}, max {_number(metric['max'])})"


def _warnings(shown: Mapping[str, Any]) -> Iterator[str]:
    if shown["nonfinite"]:
        found = shown["nonfinite"]
        name = f" ({found['parameter']})" if found.get("parameter") else ""
        yield (
            f"the {found['what']} was not finite {found['count']} times, "
            f"first in step {found['step']} on rank {found['rank']}{name}"
        )
    if shown["dropped"]:
        yield f"{shown['dropped']} events could not be recorded"
    damage = shown["damage"] or {}
    if damage.get("regions"):
        yield f"the record has {damage['regions']} damaged places"
    elif damage.get("nameless_points"):
        yield f"{damage['nameless_points']} log calls of the record have lost their names"
    for file in damage.get("unclosed", ()):
        yield f"{file} is cut off before its end"
    for place in damage.get("missing", ()):
        yield f"the record of attempt/rank {place} is missing"
    for file in shown["headerless"]:
        yield f"no event can be read of {file}"
    for attempt in shown["attempts"]:
        failure = attempt.get("failure")
        if failure:
            yield f"attempt {attempt['index']} failed: {failure['failure_class']}, {failure['kind']}"
    for note in shown["notes"]:
        if note["level"] == "warning":
            times = f" ({note['count']} times)" if note["count"] > 1 else ""
            yield f"{note['text']}{times}"
