"""What benchmarks of paired blocks share: a ratio taken within each round, and how sure its median is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

NUM_RESAMPLES = 2000


def median_ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return the median over rounds of the ratio, and its 95 % interval by a bootstrap."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    rng = random.Random(0)
    resampled = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES))
    return statistics.median(ratios), resampled[NUM_RESAMPLES // 40], resampled[-NUM_RESAMPLES // 40 - 1]
