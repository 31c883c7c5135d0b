"""Steps are disturbed and nobody owns it: a neighbour on the machine, a daemon, the kernel.

Formula: what the step gains where no operation of a rank takes longer than its own median, simulated (quantile replay).
That is noise only where neither the work, nor a lasting difference between ranks, nor a stall that has a name explains
it. A peak in the spectrum of the step's times says how often it comes: the power of a frequency of n that hold nothing
but chance exceeds x times the mean with probability exp(-x), so that a peak must exceed ln(n / 1 %) times (Fisher
1929), the mean taken from the median. Of a peak with its harmonics the lowest counts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gscalar.diagnosis.hypotheses.words import percent
from gscalar.diagnosis.hypotheses.work_imbalance import correlation
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Floats
from gscalar.prediction.edits import tails_cut
from gscalar.prediction.forecast import Proposal

LEAST_SHARE: Final = 0.05
FEWEST_STEPS: Final = 20
FALSE_ALARM: Final = 0.01  # probability of a period where there is none
OWNED: Final = 0.5  # correlation of the work with the compute, above which the work owns what varies

ISOLATE: Final = Proposal(
    name="isolate", knob="pin the workers' cores, and keep others off the machine", likely=tails_cut(),
    ceiling=tails_cut(), uncertainty=0.3,
)  # fmt: skip


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    if seen.steps.num_frames < FEWEST_STEPS:
        return unknown(Cause.NOISE, f"fewer than {FEWEST_STEPS} steps do not show how times scatter")
    if seen.timeline.is_pipeline:
        return unknown(Cause.NOISE, "operations of a pipeline have no owner that could be ruled out")
    assert seen.replay is not None
    if seen.work is not None:
        varied = correlation(seen.work, seen.compute_s.sum(axis=0))
        if np.isfinite(varied) and varied > OWNED:
            return rejected(Cause.NOISE, f"what varies follows the work (correlation {varied:.2f})")
    edit = ISOLATE.likely
    share = 1 - float(seen.replay.edited_s([edit])[0].mean() / seen.replay.replayed_s.mean())
    if share < LEAST_SHARE:
        return rejected(
            Cause.NOISE, f"without what exceeds each rank's usual times steps would take {percent(share)} less"
        )
    supporting = [f"each rank's usual times in every step would save {percent(share)}, simulated; nothing else owns it"]
    period = _period(seen.replay.replayed_s)
    if period is not None:
        supporting.append(f"it comes back every {period:.1f} steps")
    return Hypothesis(
        cause=Cause.NOISE, status=Status.SUPPORTED, evidence_for=tuple(supporting), removal=edit,
        evidence_against=() if seen.work is not None else ("the work of each rank is not known, and might vary",),
        doubts=int(seen.work is None),
        proposals=(ISOLATE,),
    )  # fmt: skip


def _period(frames_s: Floats) -> float | None:
    """Return after how many steps times repeat; None where no frequency stands out."""
    power = np.abs(np.fft.rfft(frames_s - frames_s.mean()))[1:] ** 2
    if not len(power):
        return None
    chance = float(np.median(power)) / np.log(2) * np.log(len(power) / FALSE_ALARM)
    peaks = np.nonzero(power > max(chance, power.max() / 2, 1e-30))[0]
    return len(frames_s) / (int(peaks[0]) + 1) if len(peaks) else None
