"""What `diagnose` and `whatif` print for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from gscalar.base.units import format_duration
from gscalar.cli.costs import percent
from gscalar.cli.tables import make_console, print_table
from gscalar.diagnosis.verdicts import Cause, Diagnosis, Finding
from gscalar.prediction.forecast import Forecast
from gscalar.views.reporting.markup import clean

_WORDS: Final = {
    Cause.SLOW_WORKER: "a slow worker",
    Cause.WORK_IMBALANCE: "work imbalance",
    Cause.STAGE_IMBALANCE: "stage imbalance",
    Cause.SLOW_LINK: "a slow link",
    Cause.EXPOSED_COMMUNICATION: "exposed communication",
    Cause.INPUT_BOUND: "input bound",
    Cause.SLOW_READER: "a slow reader",
    Cause.LAUNCH_BOUND: "launch bound",
    Cause.MEMORY_BANDWIDTH: "memory bandwidth",
    Cause.CHECKPOINT_STALL: "checkpoints that stall the training",
    Cause.GARBAGE_COLLECTION: "garbage collection",
    Cause.NOISE: "noise",
    Cause.NONE: "nothing is wrong",
    Cause.UNKNOWN: "not known",
}
_MOST_NAMES: Final = 8
_LONGEST_NAME: Final = 120
_FIXES: Final = {
    "overlap": "A overlap transfers",
    "balance": "B balance the work",
    "overlap+balance": "A and B",
    "replace_worker": "replace the slow worker",
    "repartition": "move layers between stages",
    "faster_link": "a faster link",
    "compress": "compress what is exchanged",
    "loader": "more loaders",
    "reader": "re-stripe the data",
    "larger_batch": "a larger batch",
    "fuse": "fewer, larger operations",
    "checkpoint": "cheaper checkpoints",
    "gc": "planned garbage collection",
    "isolate": "an isolated machine",
}


def print_diagnosis(found: Diagnosis) -> None:
    """Print a diagnosis."""
    console = make_console()
    console.print(Text(_headline(found)), soft_wrap=True)
    _print_finding("Principal", found.principal, found)
    for finding in found.findings[1:]:
        _print_finding("Also", finding, found)
    if found.fixes and any(math.isfinite(each.gain) for each in found.fixes):
        console.print()
        print_fixes(found.fixes)
    if found.not_supported:
        words = ", ".join(name.replace("_", " ") for name in found.not_supported)
        console.print(Text(f"\nNot supported by the evidence: {words}"), soft_wrap=True)
    if found.unknown:
        console.print(Text("Not known:" if found.not_supported else "\nNot known:"))
        for why, names in _by_reason(found).items():
            console.print(Text(f"  {', '.join(names)} ({why})"), soft_wrap=True)
    if found.unmatched:
        more = len(found.unmatched) - _MOST_NAMES
        named = ", ".join(clean(name, _LONGEST_NAME) for name in found.unmatched[:_MOST_NAMES])
        console.print(Text(f"Of unknown kind: {named}{f' and {more} more' if more > 0 else ''}"), soft_wrap=True)
    for note in found.notes:
        console.print(Text(f"Note: {clean(note)}"), soft_wrap=True)


def _headline(found: Diagnosis) -> str:
    ranks = f"{found.num_ranks} of {found.world} ranks" if found.world > found.num_ranks else f"{found.num_ranks} ranks"
    if found.num_ranks == 1 and found.world <= 1:
        ranks = "1 rank"
    parts = [clean(found.name), ranks]
    if found.step_median_s is None:
        parts.append("no steps, one window of time")
    else:
        steps = "1 step" if found.num_steps == 1 else f"{found.num_steps} steps"
        parts.append(f"{steps} of {format_duration(found.step_median_s)} (median)")
    if found.slowdown is not None and found.num_ranks > 1:
        parts.append(f"{found.slowdown:.3g}x of the ideal")
    if found.replay_error is not None and found.num_ranks > 1:
        parts.append(f"replayed within {percent(abs(found.replay_error))}")
    return ", ".join(parts)


def _print_finding(title: str, finding: Finding, found: Diagnosis) -> None:
    console = make_console()
    console.print()
    where = ""
    if finding.ranks and len(finding.ranks) < found.num_ranks:
        where = f" (rank{'s' if len(finding.ranks) > 1 else ''} {', '.join(map(str, finding.ranks[:8]))})"
    elif finding.stages:
        where = f" (stage{'s' if len(finding.stages) > 1 else ''} {', '.join(map(str, finding.stages))})"
    heading = Text.assemble((f"{title}: ", "bold"), (f"{_WORDS[finding.cause]}{where}", "bold"), ".")
    console.print(heading.append(f"  confidence {finding.confidence}"), soft_wrap=True)
    for word, lines in (("for", finding.evidence_for), ("against", finding.evidence_against)):
        for line in lines:
            console.print(Text(f"  {word + ':':9s}{clean(line)}"), soft_wrap=True)
    if finding.cost_share is not None:
        of_step = "of every step" if found.step_median_s is not None else "of the time seen"
        console.print(Text(f"  cost:    {percent(finding.cost_share)} {of_step}"))


def print_fixes(fixes: Sequence[Forecast]) -> None:
    """Print what fixes are worth, the largest gain first."""
    columns = ("FIX", "PREDICTED STEP", "90 % INTERVAL", "GAIN", "CEILING", "KNOB")
    ranked = sorted(fixes, key=lambda each: -(each.gain if math.isfinite(each.gain) else 0.0))
    rows = [
        [
            _FIXES.get(each.name, each.name),
            _seconds(each.predicted_step_s),
            f"{_seconds(each.low_s)} to {_seconds(each.high_s)}" if math.isfinite(each.low_s) else "-",
            _times(each.gain),
            _times(each.ceiling),
            each.knob,
        ]
        for each in ranked
    ]
    print_table(columns, rows, right=("PREDICTED STEP", "GAIN", "CEILING"))


def _seconds(value: float) -> str:
    return format_duration(value) if math.isfinite(value) else "-"


def _times(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else "-"


def _by_reason(found: Diagnosis) -> dict[str, list[str]]:
    """Return what is not known by the reason, so that each reason is said once."""
    reasons: dict[str, list[str]] = {}
    for what, why in found.unknown.items():
        name = what.replace("_", " ")
        if name not in reasons.setdefault(why, []):
            reasons[why].append(name)
    return reasons
