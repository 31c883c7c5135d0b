"""The sentences of a report: what was found, and how numbers stand in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gscalar.diagnosis.hypotheses.words import percent, ranks_named
from gscalar.diagnosis.verdicts import Cause, Diagnosis, Finding

NOT_KNOWN: Final = "not known"
_LEAST_SHARE: Final = 1e-6  # what is less is rounding
# `{who}` names the ranks, `{stages}` the stages; both start a sentence.
_SAID: Final[Mapping[Cause, str]] = {
    Cause.SLOW_WORKER: "{who} compute{s} slower than the others at the same work",
    Cause.WORK_IMBALANCE: "The work is uneven: at equal speed, some ranks have more to do",
    Cause.STAGE_IMBALANCE: "The stages of the pipeline are uneven{at_stages}",
    Cause.SLOW_LINK: "A link is slower than its peers{at}",
    Cause.EXPOSED_COMMUNICATION: "Communication is not hidden behind compute",
    Cause.INPUT_BOUND: "The training waits for its input",
    Cause.SLOW_READER: "{who} wait{s} for input, and the others do not",
    Cause.LAUNCH_BOUND: "Devices wait for the host to launch their work",
    Cause.MEMORY_BANDWIDTH: "Memory bandwidth holds the compute back",
    Cause.CHECKPOINT_STALL: "The training stands still while checkpoints are made",
    Cause.GARBAGE_COLLECTION: "Garbage collection stops ranks at different moments",
    Cause.NOISE: "Steps vary in length, and no rank or cause owns it",
    Cause.NONE: "Nothing was found that costs 2 % of the time",
    Cause.UNKNOWN: "What holds this training back is not known",
}


def verdict_sentence(found: Diagnosis) -> str:
    """Return the principal cause in one sentence, with its cost and how sure it is."""
    principal = found.principal
    cost = _cost(principal, found.step_mean_s)
    return f"{cause_said(principal)}{f', which costs {cost}' if cost else ''}; confidence: {principal.confidence}."


def cause_said(finding: Finding) -> str:
    """Return a finding's cause as the begin of a sentence."""
    ranks, stages = finding.ranks, finding.stages
    who = ranks_named(ranks) if ranks else f"{_stages_named(stages)}" if stages else "a rank"
    at = f" ({ranks_named(ranks)})" if ranks else f" ({_stages_named(stages)})" if stages else ""
    several = len(ranks) > 1 or (not ranks and len(stages) > 1)
    return _SAID[finding.cause].format(
        who=who[0].upper() + who[1:],
        s="" if several else "s",
        at=at,
        at_stages=f": {_stages_named(stages)} take{'' if len(stages) > 1 else 's'} longest" if stages else "",
    )


def cost_said(finding: Finding, step_s: float | None) -> str:
    """Return what a finding costs, or that it is not known."""
    return _cost(finding, step_s) or NOT_KNOWN


def duration(seconds: float | None) -> str:
    """Return seconds in the unit in which people read them, or that they are not known."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_KNOWN
    for unit_s, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s")):
        if abs(seconds) >= unit_s:
            return f"{_three_digits(seconds / unit_s)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns" if seconds else "0 s"


def share(value: float | None) -> str:
    """Return a share as per cent, or that it is not known."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    return percent(value) if abs(value) >= _LEAST_SHARE else "0 %"


def counted(num: int, what: str) -> str:
    """Return a number of things, such as `1 rank` and `2,000 ranks`."""
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def times(value: float | None) -> str:
    """Return a ratio such as `1.97x`, or that it is not known."""
    return NOT_KNOWN if value is None or not math.isfinite(value) else f"{value:.2f}\u00d7"


def spelled(name: str) -> str:
    """Return a name of code as words."""
    return name.replace("_", " ")


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def _stages_named(stages: Sequence[int]) -> str:
    shown = ", ".join(str(stage) for stage in stages[:6])
    more = f" and {len(stages) - 6} more" if len(stages) > 6 else ""
    return f"stage{'s' if len(stages) != 1 else ''} {shown}{more}"


def _cost(finding: Finding, step_s: float | None) -> str:
    if finding.cost_share is None:
        return ""
    if step_s is None:
        return f"{percent(finding.cost_share)} of the time that was seen"
    return f"{percent(finding.cost_share)} of the step ({duration(finding.cost_share * step_s)} of {duration(step_s)})"
