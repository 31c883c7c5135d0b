"""What the hardware did while some steps were done: each rank's mean of the sampled counters.

A supervisor samples its host and its workers; without one, the first worker of each host does. What is of a host
counts for all of its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from gscalar.model.timeline import Floats, Ints
from gscalar.observation.hardware import HOST
from gscalar.state.home import RunFolder
from gscalar.views.record_ends import RecordEnd, read_record_end

_SUPERVISOR_RECORD: Final = re.compile(r"supervisor-a(\d+)\.rec")
_BYTES: Final = 1 << 19
_SAMPLE_NS: Final = 10**9  # a sample tells of the second before it


def mean_counters(folder: RunFolder, attempt: int, ends: Mapping[int, RecordEnd], steps: Ints) -> dict[str, Floats]:
    """Return each counter's mean over the samples in the time of these steps, by rank, `(num_ranks,)`."""
    window = {}
    for rank, end in ends.items():
        first, last = end.steps[int(steps[0])], end.steps[int(steps[-1])]
        begin_ns = first.time_ns - int(np.nan_to_num(first.duration_s, posinf=0.0) * 1e9)
        window[rank] = begin_ns, last.time_ns + _SAMPLE_NS
    seen: dict[str, dict[int, list[float]]] = {}
    for writer in (_supervisor_end(folder, attempt), *ends.values()):
        for sample in writer.samples:
            about = ends if sample.rank == HOST else (sample.rank,)
            for rank in about:
                if rank not in ends or (sample.rank == HOST and ends[rank].host != writer.host):
                    continue
                if window[rank][0] <= sample.time_ns <= window[rank][1]:
                    for name, value in sample.values.items():
                        seen.setdefault(name, {}).setdefault(rank, []).append(value)
    return {
        name: np.array([np.mean(by_rank[rank]) if rank in by_rank else np.nan for rank in ends])
        for name, by_rank in sorted(seen.items())
    }


def _supervisor_end(folder: RunFolder, attempt: int) -> RecordEnd:
    """Return the end of the record of the supervisor that launched this attempt."""
    names = [path.name for path in folder.records.iterdir()]
    firsts = [int(match[1]) for match in map(_SUPERVISOR_RECORD.fullmatch, names) if match]
    mine = max((first for first in firsts if first <= attempt), default=None)
    return RecordEnd() if mine is None else read_record_end(folder.supervisor_record(mine), _BYTES)
