"""Diagnosis for people and programs: from a run or trace files to a verdict, and to JSON with stable keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from gscalar.base.errors import UserError
from gscalar.diagnosis.verdicts import Diagnosis, Finding
from gscalar.importers.recognition import open_traces
from gscalar.model.timeline import StepTimeline
from gscalar.prediction.forecast import Forecast
from gscalar.state.home import RunFolder
from gscalar.views.timelines import run_timeline


class FoundRun(NamedTuple):
    """A run that was found: its name and folder, and what the catalog knows of its clocks by rank."""

    name: str
    folder: RunFolder
    clocks: Mapping[str, Mapping[str, float]]


def open_timeline(targets: Sequence[str], find_run: Callable[[str], FoundRun]) -> StepTimeline:
    """Return the timeline of a run, or of trace files and directories of them.

    A target that is a path is one; else it is the id, prefix or name of a run, which `find_run` finds. Raises
    `UserError` trace-not-found, and what reading raises.
    """
    paths = [Path(target) for target in targets]
    absent = [path for path in paths if not _exists(path)]
    if not absent:
        return open_traces(paths)
    if len(targets) == 1 and not _looks_like_path(targets[0]):
        run = find_run(targets[0])
        return replace(run_timeline(run.folder, clocks=run.clocks), name=run.name)
    raise UserError(
        code="trace-not-found",
        what="There is no such file or folder. Several targets must all be traces.",
        value=str(absent[0]),
        next_step="Give one run (an id, a prefix, a name), or paths of traces.",
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def _looks_like_path(target: str) -> bool:
    return "/" in target or target.endswith((".json", ".gz", ".sqlite", ".parquet", ".csv", ".pb"))


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis with stable keys; what is not known is null."""
    step_s = None
    if found.step_median_s is not None:
        step_s = {"median": found.step_median_s, "mean": found.step_mean_s}
    return {
        "source": found.source,
        "name": found.name,
        "step_s": step_s,
        "steps": found.num_steps,
        "ranks": found.num_ranks,
        "world": found.world,
        "slowdown": found.slowdown,
        "measured_over_ideal": found.measured_over_ideal,
        "replay_error": found.replay_error,
        "principal": finding_json(found.principal),
        "findings": [finding_json(each) for each in found.findings],
        "fixes": [forecast_json(each) for each in found.fixes],
        "accounts": dict(found.accounts),
        "exposed_s": found.exposed_s,
        "overlap_ratio": found.overlap_ratio,
        "devices": [dict(each) for each in found.devices],
        "not_supported": list(found.not_supported),
        "unknown": [f"{what}: {why}" for what, why in found.unknown.items()],
        "unmatched": list(found.unmatched),
        "notes": list(found.notes),
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding with stable keys."""
    return {
        "cause": finding.cause.value,
        "ranks": list(finding.ranks),
        "stages": list(finding.stages),
        "cost_share": finding.cost_share,
        "confidence": finding.confidence,
        "for": list(finding.evidence_for),
        "against": list(finding.evidence_against),
    }


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """Return what a fix is worth with stable keys; what could not be predicted is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(forecast).items()
    }
