"""What a step takes once other processes load its batches.

More loader processes take the making of a batch out of the step, and put something in: a batch that another process
has made lies in shared memory, so the training's process gets it from a queue, reads it where no cache holds it, and
gives its pages back. Steps without their wait are therefore too fast a forecast (on a ResNet-50 with known outcome
1.51x, where 1.39x was measured). With w the work for a batch, n loaders and r the rest of the step,

    step    = r + residue + wait
    residue = queue_s + pass_s_per_byte * batch_bytes + copy_growth * copy_s
    wait    = max(0, (w + queue_s + pass_s_per_byte * batch_bytes) / n - r - residue)

on average; step by step the wait is that of a queue of 2 n batches. A loader that sends a batch goes over as much new
memory as the process that gets it. The constants are measured by `benchmarks/loader.py`. Loaders share memory and
cores with the training; what they slow down in it beside the batch is not in the residue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.model.timeline import NONE, Floats

_PREFETCH: Final = 2  # batches that each loader makes ahead: the default of torch's DataLoader
_PASSES: Final = 2  # over the steps; the first fills the queue
# Where the size of a batch is not known, it is judged by another figure, whose standard deviation is the second number.
_COPY_BYTES_PER_S: Final = (10e9, 0.7)  # to a device over PCI Express: 6 from pageable memory, 12 to 50 from pinned
_WORK_PER_PASS: Final = (20.0, 1.0)  # a loader decodes a sample many times slower than it would read it
_BOUND: Final = 0.05  # from this share of the step on, a wait means that the loaders are what the step waits for


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConstants:
    """What a batch from another process costs the training's process, and how sure that is."""

    pass_s_per_byte: float  # mapping, and giving back, the memory that a batch lies in
    queue_s: float  # getting one batch
    copy_growth: float  # what copying a batch to its place gains because no cache holds it, as a share of the copy
    spread: float  # standard deviation of the residue where it was measured, as a share of it
    elsewhere: float = 0.4  # beside it for another machine: passes of one core differ by a factor of 2 either way


# `benchmarks/loader.py` on December 1, 2026, batches of 2.4 to 19 MB, one and two loaders: two otherwise idle cores of
# an AMD EPYC (Zen 4) in a virtual machine, torch 2.13 on CPU.
MEASURED: Final = LoaderConstants(pass_s_per_byte=2.0e-10, queue_s=1.1e-3, copy_growth=0.9, spread=0.05)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSteps:
    """Steps as they would be with other loaders; arrays have the shape of the steps given."""

    step_s: Floats
    wait_s: Floats  # what stands where the exposed wait was: the wait that is left, and the residue
    residue_s: Floats  # part of `wait_s` that loaders do not take away
    residue_sd_s: float  # standard deviation of the residue, of all steps together
    notes: tuple[str, ...] = ()  # what was judged rather than known


def predict_loader(
    step_s: Floats,
    exposed_wait_s: Floats,
    work_s: Floats,
    copy_s: Floats,
    batch_bytes: float,
    num_workers_now: int,
    num_workers_then: int,
    constants: LoaderConstants = MEASURED,
) -> LoadedSteps:
    """Return what steps take with so many loader processes: `(num_ranks, num_steps)` each, seconds.

    `exposed_wait_s` is the wait for a batch without what the device did meanwhile, `work_s` what making one batch takes
    one loader, `copy_s` the copy of the batch to its device (0 where there is none). Only the first two must be known;
    NaN in the others, and `NONE` loaders now, are replaced by what they are judged to be, which `notes` say.
    Each rank has its own loaders, and what one rank's loaders take from another's is not counted.
    """
    if num_workers_then < 1:
        raise ValueError(f"a prediction is of at least one loader process, not {num_workers_then}")
    notes: list[str] = []
    rest_s: Floats = np.maximum(step_s - exposed_wait_s, 0.0)
    if num_workers_now > 0:  # paid already: what it takes to get a batch is in the wait, the others are in the rest
        deviation = math.hypot(constants.spread, constants.elsewhere)
        passed_s, residue_s = np.zeros_like(rest_s), np.minimum(exposed_wait_s, constants.queue_s)
    else:
        passed_s, deviation = _passed(work_s, exposed_wait_s, copy_s, batch_bytes, constants, notes)
        residue_s = passed_s + constants.copy_growth * _known(copy_s, 0.0)
    if num_workers_now == NONE:
        notes.append("how many loader processes there are is not known; none is assumed")
    made_s = passed_s + _work(step_s, exposed_wait_s, work_s, max(num_workers_now, 0), notes)
    left_s = _waits(rest_s + residue_s, made_s, num_workers_then)
    return LoadedSteps(
        step_s=rest_s + residue_s + left_s,
        wait_s=left_s + residue_s,
        residue_s=residue_s,
        residue_sd_s=_mean(residue_s) * deviation,
        notes=tuple(notes),
    )


def _passed(
    work_s: Floats,
    exposed_wait_s: Floats,
    copy_s: Floats,
    batch_bytes: float,
    constants: LoaderConstants,
    notes: list[str],
) -> tuple[Floats, float]:
    """Return what getting a batch costs, step by step, and its standard deviation as a share of it."""
    deviation = math.hypot(constants.spread, constants.elsewhere)
    copied_s = _known(copy_s, 0.0)
    if math.isfinite(batch_bytes):
        passed_s: Floats = np.full_like(exposed_wait_s, batch_bytes * constants.pass_s_per_byte)
    elif float(copied_s.sum()) > 0:
        bytes_per_s, judged = _COPY_BYTES_PER_S
        passed_s = copied_s * bytes_per_s * constants.pass_s_per_byte
        deviation = math.hypot(deviation, judged)
        notes.append("the size of a batch is not known; it is judged by its copy to the device at 10 GB/s")
    else:
        per_pass, judged = _WORK_PER_PASS
        passed_s = _known(np.where(np.isfinite(work_s), work_s, exposed_wait_s), 0.0) / per_pass
        deviation = math.hypot(deviation, judged)
        notes.append("the size of a batch is not known; going over it is taken as a twentieth of making it")
    return constants.queue_s + passed_s, deviation


def _work(step_s: Floats, exposed_wait_s: Floats, work_s: Floats, num_workers_now: int, notes: list[str]) -> Floats:
    """Return what making one batch takes one loader, as far as it is known or shows itself in the wait."""
    known = np.isfinite(work_s)
    if known.all():
        return work_s
    if num_workers_now == 0:
        notes.append("the work for a batch is not known; the wait for it is taken, which may be less")
        judged = exposed_wait_s
    elif _mean(exposed_wait_s) > _BOUND * _mean(step_s):
        notes.append("the work for a batch is not known; loaders that are waited for make one each in a step")
        judged = step_s * num_workers_now
    else:
        notes.append("the work for a batch is not known, and the loaders now keep up with the step")
        judged = np.zeros_like(step_s)
    return np.where(known, work_s, judged)


def _waits(rest_s: Floats, work_s: Floats, num_workers: int) -> Floats:
    """Return the wait before each step, of the shape of `rest_s`.

    Batches are made by the loaders in turn, each of which has two ahead, and taken in order: torch's DataLoader.
    The loaders begin one after another, since those that began together would hand over in bursts for ever. Steps
    are gone through twice, and the second time counts: the queue has found its level.
    """
    rests, works = np.atleast_2d(_known(rest_s, math.nan)), np.atleast_2d(_known(work_s, math.nan))
    num_ranks, num_steps = rests.shape
    waits, taken_s, made_s = np.zeros((3, _PASSES * num_steps, num_ranks))
    ready_s = np.zeros(num_ranks)
    for at in range(_PASSES * num_steps):
        work = works[:, at % num_steps]
        asked_s = taken_s[at - _PREFETCH * num_workers] if at >= _PREFETCH * num_workers else -math.inf
        before_s = made_s[at - num_workers] if at >= num_workers else (at + 1 - num_workers) / num_workers * work
        made_s[at] = np.maximum(before_s, asked_s) + work
        taken_s[at] = np.maximum(ready_s, made_s[at])
        waits[at] = taken_s[at] - ready_s
        ready_s = taken_s[at] + rests[:, at % num_steps]
    last: Floats = waits[-num_steps:].T.reshape(rest_s.shape)
    return np.where(np.isfinite(rest_s), last, np.nan)


def _known(values: Floats, absent: float) -> Floats:
    """Return the values with `absent`, or where that is NaN their mean, for those that are not known."""
    known: npt.NDArray[np.bool_] = np.isfinite(values)
    filler = _mean(values) if math.isnan(absent) else absent
    return np.where(known, values, filler)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else 0.0
