"""Single questions: the step with some fixes, on more workers, over another link, with another batch, all together.

What is asked is simulated jointly, in one replay: gains are not added. More workers are drawn from the ranks and steps
that were measured, so that the latest of them is later the more there are; what befell all ranks of a step alike (a
checkpoint, a busy host) befalls all of them together. A ring moves 2 (n - 1) / n of the bytes and passes n - 1 ranks
twice; a link of a given bandwidth moves the bytes that were recorded, and keeps the latency. The n of what was measured
are all ranks of the training, seen or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gscalar.base.errors import UserError
from gscalar.diagnosis.fixes import latency_s, proposal_named
from gscalar.diagnosis.hypotheses import examine_all
from gscalar.diagnosis.hypotheses.words import ms
from gscalar.diagnosis.seen import Seen
from gscalar.model.timeline import Activity, StepTimeline
from gscalar.prediction.collectives import AlphaBeta, kind_named
from gscalar.prediction.edits import COMPUTES, joined, transfers, with_durations
from gscalar.prediction.forecast import Forecast, Proposal
from gscalar.prediction.measured import MeasuredSteps
from gscalar.prediction.slowest import parted

_SEED: Final = 1_234
_MOST_CELLS: Final = 2_000_000  # replicas x frames x nodes of a replay
_MOST_WORKERS: Final = 100_000
_LARGEST_BATCH: Final = 10**12


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked: fixes by name, and what else would be different."""

    fixes: tuple[str, ...] = ()
    workers: int | None = None
    link_bytes_per_s: float | None = None
    batch: int | None = None  # samples of one worker's step


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A forecast of what was asked, and what has to be known to read it."""

    forecast: Forecast
    replayed_step_s: float  # the measured step, mean, as it is replayed
    remarks: tuple[str, ...]


def answer(timeline: StepTimeline, question: Question) -> Answer:
    """Return what the step would be.

    Raises `UserError` fix-unknown, nothing-to-replay (no steps, or what is asked needs what was not measured).
    """
    seen = Seen.of(timeline)
    if seen.replay is None:
        raise _cannot(seen, seen.why_no_replay)
    hypotheses = examine_all(seen) if question.fixes else []
    proposals = [proposal_named(seen, name, hypotheses) for name in dict.fromkeys(question.fixes)]
    remarks: list[str] = []
    if question.batch is not None:
        proposals.append(_with_batch(seen, question.batch, remarks))
    if question.link_bytes_per_s is not None:
        proposals.append(_over_link(seen, question.link_bytes_per_s, remarks))
    if question.workers is not None:
        proposals.append(_with_workers(seen, question.workers, remarks))
    asked = Proposal(
        name="+".join(each.name for each in proposals), knob=" ".join(dict.fromkeys(each.knob for each in proposals)),
        likely=joined([each.likely for each in proposals]), ceiling=joined([each.ceiling for each in proposals]),
        uncertainty=float(np.hypot.reduce([each.uncertainty for each in proposals])),
        extra_s=float(np.hypot.reduce([each.extra_s for each in proposals])),
    )  # fmt: skip
    (forecast,) = seen.replay.forecast([asked], clock_error_s=seen.clock_error_s)
    return Answer(forecast=forecast, replayed_step_s=float(seen.replay.replayed_s.mean()), remarks=tuple(remarks))


def _cannot(seen: Seen, why: str) -> UserError:
    return UserError(
        code="nothing-to-replay",
        what=f"This cannot be predicted from what was measured: {why}.",
        value=seen.timeline.name,
        next_step="gscalar diagnose says what the source covers.",
    )


def _with_workers(seen: Seen, num: int, remarks: list[str]) -> Proposal:
    if seen.timeline.is_pipeline:
        raise _cannot(seen, "more workers of a pipeline change what its stages hold")
    if not 1 <= num <= _MOST_WORKERS:
        raise UserError(
            code="impossible-value", what="The number of workers is out of range.", value=num,
            next_step=f"Between 1 and {_MOST_WORKERS}.",
        )  # fmt: skip
    now, num_seen = seen.world, seen.timeline.num_ranks
    moves = bool(transfers(seen.steps).any())
    if not moves and num > 1:
        remarks.append("no exchange of gradients was measured, and none is predicted")
    if now > num_seen:
        remarks.append(f"{num_seen} of {now} ranks were seen, and stand for the others")
    if num_seen == 1 and num > 1:
        remarks.append("one rank was seen: all that varies is taken to be its own, so the waiting is an upper bound")
    remarks.append("each worker keeps its batch, so the global batch changes with their number")
    latency = latency_s(seen)

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        frames = max(2, min(steps.num_frames, _MOST_CELLS // (num * len(steps.template))))
        draw = np.random.default_rng(_SEED)
        replica = draw.integers(0, steps.num_replicas, (num, frames))
        frame = draw.integers(0, steps.num_frames, (num, frames))
        parts = [parted(each) for each in steps.durations]
        common, own = (np.stack(each) for each in zip(*parts, strict=True))
        durations = np.maximum(own[:, replica, frame] + common[:, None, frame[0]], 0.0)
        moving = transfers(steps)
        if moving.any():
            # What a meeting transfers is one number for all of it.
            seconds = steps.durations[moving][:, 0][:, frame[0]]
            scale = (num - 1) / num / ((now - 1) / now) if now > 1 else 1.0
            fixed = np.minimum(latency, seconds)
            seconds = (seconds - fixed) * scale + fixed * max(num - 1, 0) / max(now - 1, 1)
            durations[moving] = seconds[:, None]
        return replace(steps, durations=durations, frame_s=np.resize(steps.frame_s, frames), work=None)

    return Proposal(name=f"workers={num}", knob=f"workers={num}", likely=edit, ceiling=edit, uncertainty=0.2)


def _over_link(seen: Seen, bytes_per_s: float, remarks: list[str]) -> Proposal:
    if bytes_per_s <= 0:
        raise UserError(
            code="impossible-value", what="A link moves more than nothing.", value=bytes_per_s,
            next_step="Give it as 10Gbit, or 1.2GB.",
        )  # fmt: skip
    found, num = seen.timeline.collectives, seen.world
    if found is None or not np.isfinite(found.num_bytes).all() or num < 2:
        raise _cannot(seen, "the bytes that are exchanged are not known")
    link = AlphaBeta(alpha_s=0.0, beta_bytes_per_s=bytes_per_s)
    total_s = sum(
        link.time_s(kind_named(kind), num_bytes, num)
        for kind, num_bytes in zip(found.kind, found.num_bytes.tolist(), strict=True)
    )
    megabytes = found.num_bytes.sum() / 1e6
    remarks.append(f"{megabytes:.3g} MB are exchanged in a step: {ms(total_s)} by a ring at this bandwidth")
    latency = latency_s(seen)

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        chosen = transfers(steps)
        fixed_s = np.minimum(steps.durations[chosen], latency)
        moving_s = steps.durations[chosen] - fixed_s
        measured_s = float(moving_s.sum(axis=0).mean())
        scale = total_s / measured_s if measured_s > 0 else 0.0
        evenly_s = 0.0 if measured_s > 0 else total_s / max(1, int(chosen.sum()))
        return with_durations(steps, chosen, fixed_s + moving_s * scale + evenly_s)

    return Proposal(name="link", knob="the link", likely=edit, ceiling=edit, uncertainty=0.2)


def _with_batch(seen: Seen, batch: int, remarks: list[str]) -> Proposal:
    now = seen.timeline.counters.get("samples")
    if now is None or not np.isfinite(now).all() or not now.mean() > 0:
        raise _cannot(seen, "the number of samples of a step is not known")
    if not 1 <= batch <= _LARGEST_BATCH:
        raise UserError(
            code="impossible-value", what="The number of samples in a batch is out of range.", value=batch,
            next_step=f"Between 1 and {_LARGEST_BATCH}.",
        )  # fmt: skip
    factor = batch / float(now.mean())
    remarks.append(f"a step of {batch} samples a worker, where it was {now.mean():g}: {factor:.3g} times the samples")
    remarks.append(
        "compute, copies and reading are taken to grow with the samples; what a step costs beside them stays"
    )
    grows = (*COMPUTES, Activity.DATA_WAIT, Activity.H2D)

    def edit(steps: MeasuredSteps) -> MeasuredSteps:
        chosen = steps.nodes(*grows)
        return with_durations(steps, chosen, steps.durations[chosen] * factor)

    return Proposal(name=f"batch={batch}", knob=f"a batch of {batch}", likely=edit, ceiling=edit, uncertainty=0.2)
