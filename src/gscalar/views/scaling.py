"""A run's scaling curve: its newest steps, the size of its gradients and its samples, and JSON with stable keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gscalar.base.errors import UserError
from gscalar.model.timeline import StepTimeline
from gscalar.observation.collectives import GRADIENTS
from gscalar.prediction.collectives import AlphaBeta
from gscalar.prediction.scaling import ScalingCurve, ScalingPoint, scaling_curve
from gscalar.prediction.training import MeasuredTraining, NotScalable
from gscalar.state.catalog.rows import RunSummary
from gscalar.state.home import Home
from gscalar.views.timelines import run_timeline

_GRADIENT_BYTES: Final = 4  # of a parameter: what is exchanged is float32 unless somebody compresses it
_SEED: Final = 20_250_712


def run_scaling(
    home: Home, run: RunSummary, workers: Sequence[int], *, strong: bool = False, link: AlphaBeta | None = None
) -> ScalingCurve:
    """Return what the newest steps of a run say of other numbers of workers; the same record gives the same curve.

    Raises:
        UserError: `nothing-to-replay`, where it has no steps that could tell.
    """
    timeline = run_timeline(home.run(run.id), clocks=run.measured.get("clocks") or {})
    parameters = run.facts.get("parameters")
    try:
        taken_s = timeline.step_s[np.isfinite(timeline.step_s)]
        if len(taken_s) and not taken_s.mean() > 0:
            raise NotScalable("its steps take no time")
        measured = MeasuredTraining.of(
            _exchanging_gradients(timeline),
            samples_per_step=run.samples / run.steps if run.samples and run.steps else math.nan,
            gradient_bytes=_GRADIENT_BYTES * parameters if parameters else math.nan,
        )
    except NotScalable as error:
        raise UserError(
            code="nothing-to-replay",
            what=f"The run says nothing of other numbers of workers: {error}.",
            value=run.id,
            next_step="Let it do some steps first; `gscalar show` says how far it came.",
        ) from None
    curve = scaling_curve(measured, workers, np.random.default_rng(_SEED), strong=strong, link=link)
    return replace(curve, notes=(*curve.notes, *_notes(timeline, curve, link)))


def _exchanging_gradients(timeline: StepTimeline) -> StepTimeline:
    """Return the timeline without small sums on the host, where these are all that was seen of an exchange."""
    found = timeline.collectives
    if found is None or GRADIENTS in found.group:
        return timeline
    return replace(timeline, collectives=None)


def _notes(timeline: StepTimeline, curve: ScalingCurve, given: AlphaBeta | None) -> list[str]:
    notes = list(timeline.notes)
    hosts = {each.host for each in timeline.ranks}
    farther = any(point.workers > curve.num_workers for point in curve.points)
    if given is None and curve.link is not None and len(hosts) == 1 and farther:
        notes.append("the link is that between workers of one machine: `--link` takes the one between machines")
    return notes


def scaling_json(curve: ScalingCurve, run: RunSummary) -> dict[str, Any]:
    """Return a curve with stable keys; what is not known is null."""
    link = curve.link
    return {
        "run": run.id,
        "name": run.name,
        "mode": "strong" if curve.strong else "weak",
        "measured": {
            "workers": curve.num_workers,
            "steps": curve.num_steps,
            "step_s": curve.measured_step_s,
            "missed_s": curve.missed_s,
        },
        "link": None
        if link is None
        else {
            "latency_s": link.alpha_s if link.tells_latency else None,
            "bytes_per_s": _known(link.beta_bytes_per_s),
            "spread": link.spread,
            "measured": link.group_size > 0,
            "algorithm": curve.algorithm.value,
        },
        "points": [_point_json(each) for each in curve.points],
        "notes": list(curve.notes),
    }


def _point_json(point: ScalingPoint) -> dict[str, Any]:
    return {
        "workers": point.workers,
        "step_s": {"predicted": point.step_s, "low": point.low_s, "high": _known(point.high_s)},
        "parts_s": {
            "compute": point.compute_s,
            "waiting": point.waiting_s,
            "communication": _known(point.communication_s),
            "rest": point.rest_s,
        },
        "samples_per_worker": _known(point.samples_per_worker),
        "samples_per_s": _known(point.samples_per_s),
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "limit": point.limit,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
