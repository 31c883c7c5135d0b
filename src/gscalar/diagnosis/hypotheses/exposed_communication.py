"""Moving bytes holds the step up: transfers that nothing is computed beside, though all ranks come in time.

Formula: what the step gains where transfers take no time, simulated; waiting for a late rank is no transfer and does
not count. One rank alone cannot tell the two apart: its exposed time is then an upper bound, and is said to be one.
"""

from __future__ import annotations

from typing import Final

from gscalar.diagnosis.hypotheses.words import ms, percent
from gscalar.diagnosis.seen import Seen
from gscalar.diagnosis.verdicts import Cause, Hypothesis, Status, rejected, unknown
from gscalar.model.timeline import Signal
from gscalar.prediction.edits import without_transfers

LEAST_SHARE: Final = 0.05


def examine(seen: Seen) -> Hypothesis:
    """Hold the hypothesis against what was seen."""
    if seen.replay is None:
        return _of_devices(seen)
    if Signal.COMMUNICATION in seen.timeline.unknown:
        return unknown(Cause.EXPOSED_COMMUNICATION, seen.timeline.unknown[Signal.COMMUNICATION])
    free_s = float(seen.replay.edited_s([without_transfers])[0].mean())
    share = 1 - free_s / float(seen.replay.replayed_s.mean())
    if share < LEAST_SHARE:
        return rejected(Cause.EXPOSED_COMMUNICATION, f"without any transfer a step would be {percent(share)} shorter")
    supporting = [
        f"without any transfer a step would be {percent(share)} shorter (transfers take {ms(seen.transfer_s)} in it)"
    ]
    against = []
    if not seen.knows_arrivals and seen.timeline.world > 1:
        why = seen.timeline.unknown.get(Signal.ARRIVALS, "who arrived when is not known")
        against.append(f"{why}: this is an upper bound")
    elif seen.wait_s is not None:
        waited = float(seen.wait_s.mean())
        text = f"ranks wait {ms(waited)} a step for the last one"
        (against if waited > share * seen.step_s / 2 else supporting).append(text)
    return Hypothesis(
        cause=Cause.EXPOSED_COMMUNICATION, status=Status.SUPPORTED, evidence_for=tuple(supporting),
        evidence_against=tuple(against), doubts=2 * int(not seen.knows_arrivals), removal=without_transfers,
    )  # fmt: skip


def _of_devices(seen: Seen) -> Hypothesis:
    devices = seen.timeline.devices
    if not devices:
        return unknown(Cause.EXPOSED_COMMUNICATION, "no device activity is seen")
    span_s = sum(each.span_s for each in devices)
    if not any(each.communication_s for each in devices):
        return unknown(Cause.EXPOSED_COMMUNICATION, "no communication is seen on a device")
    share = sum(each.exposed_s for each in devices) / span_s
    if share < LEAST_SHARE:
        return rejected(Cause.EXPOSED_COMMUNICATION, f"communication is exposed for {percent(share)} of the time seen")
    return Hypothesis(
        cause=Cause.EXPOSED_COMMUNICATION, status=Status.SUPPORTED,
        evidence_for=(f"communication runs with no compute beside it for {percent(share)} of the time seen",),
        evidence_against=("without all ranks waiting cannot be told from transfer: this is an upper bound",),
        doubts=2, share=share,
    )  # fmt: skip
