"""What a collective costs: latency and bandwidth of a link, and how often an algorithm pays each of them.

    time = rounds(kind, n, algorithm) * alpha + copies(kind, n) * bytes / beta

of n ranks. `alpha` is the seconds of one hop, `beta` the bytes a second that a rank can send while it receives. In a
ring an all-reduce takes 2 (n - 1) hops and sends its bytes 2 (n - 1) / n times; gathers and scatters are half of one.
A tree pays its latency only 2 log2 n times (NCCL uses double trees, which keep the bandwidth). `copies` are the
factors of nccl-tests' bus bandwidth: bus bandwidth = copies * bytes / time (Patarasuk and Yuan 2009; Thakur et al.
2005).

Bytes are those of the whole result: of an all-gather what each rank has afterwards, of a reduce-scatter what each has
before. Limits: no contention and no hierarchy of links: with several ranks a host, alpha and beta are those of
the slowest hop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from gscalar.model.spans import CollectiveKind
from gscalar.model.timeline import Floats

_KINDS: Final = {kind.name.lower(): kind for kind in CollectiveKind}
_ROUNDS: Final = 60
_LEAST_SHARE: Final = 1e-3  # a residual below this share of the time weighs no more
_SAME_SIZE: Final = 1.5  # sizes within this factor do not tell latency from bandwidth
_TO_DEVIATION: Final = 1.4826  # of the median absolute deviation, for normal errors


class Algorithm(StrEnum):
    """How ranks pass their parts on."""

    RING = "ring"
    TREE = "tree"
    FASTEST = "fastest"  # whichever of the two is, as NCCL chooses


def kind_named(name: str) -> CollectiveKind:
    """Return the kind that a timeline's word (all_reduce) means; what is not told apart costs as an all-reduce."""
    return _KINDS.get(name, CollectiveKind.ALL_REDUCE)


def copies(kind: CollectiveKind, group_size: int) -> float:
    """Return how many times the bytes of a collective pass each rank's link."""
    if group_size < 2:
        return 0.0
    share = (group_size - 1) / group_size
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return 2 * share
        case CollectiveKind.BROADCAST | CollectiveKind.SEND | CollectiveKind.RECEIVE:
            return 1.0
        case _:
            return share


def rounds(kind: CollectiveKind, group_size: int, algorithm: Algorithm = Algorithm.RING) -> float:
    """Return how many hops follow one another."""
    if group_size < 2:
        return 0.0
    match kind:
        case CollectiveKind.SEND | CollectiveKind.RECEIVE:
            return 1.0
        case CollectiveKind.ALL_TO_ALL | CollectiveKind.GATHER:
            return float(group_size - 1)
    there_and_back = 2 if kind == CollectiveKind.ALL_REDUCE else 1
    in_tree = math.ceil(math.log2(group_size))
    hops = {Algorithm.RING: group_size - 1, Algorithm.TREE: in_tree, Algorithm.FASTEST: min(group_size - 1, in_tree)}
    return float(there_and_back * hops[algorithm])


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaBeta:
    """A link. `spread` is the relative standard deviation of measured collectives from it, 0 where none were."""

    alpha_s: float
    beta_bytes_per_s: float  # may be infinite
    spread: float = 0.0
    group_size: int = 0  # ranks among which it was measured, 0: it was not
    tells_latency: bool = True  # False: one size was seen, and all its time is taken for bandwidth

    def time_s(
        self, kind: CollectiveKind, num_bytes: float, group_size: int, algorithm: Algorithm = Algorithm.RING
    ) -> float:
        """Return the seconds of a collective, from the moment at which the last rank has its part."""
        hops = rounds(kind, group_size, algorithm) * self.alpha_s
        return hops + copies(kind, group_size) * num_bytes / self.beta_bytes_per_s

    @classmethod
    def fit(
        cls,
        sizes_bytes: npt.ArrayLike,
        times_s: npt.ArrayLike,
        group_size: int,
        kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
        algorithm: Algorithm = Algorithm.RING,
    ) -> AlphaBeta:
        """Return the link with the least absolute deviation from measured times, relative to what it predicts.

        Some measurements may be far off without moving it: it goes through medians. What is not a positive number
        is left out. Sizes that hardly differ tell one figure and not two: all is bandwidth then.

        Raises:
            ValueError: fewer than two ranks, or nothing measured.
        """
        sizes, times = np.asarray(sizes_bytes, np.float64), np.asarray(times_s, np.float64)
        known = np.isfinite(sizes) & np.isfinite(times) & (sizes > 0) & (times > 0)
        sizes, times = sizes[known], times[known]
        if group_size < 2 or not len(sizes):
            raise ValueError(f"no link can be fitted to {len(sizes)} collectives of {group_size} ranks")
        columns = np.stack([np.ones_like(sizes), sizes], axis=1)
        columns *= (rounds(kind, group_size, algorithm), copies(kind, group_size))
        tells_latency = bool(sizes.max() > _SAME_SIZE * sizes.min())
        if not tells_latency:
            columns[:, 0] = 0.0
        alpha_s, s_per_byte = _least_absolute(columns, times)
        off = np.abs(columns @ (alpha_s, s_per_byte) / times - 1)
        return cls(
            alpha_s=alpha_s,
            beta_bytes_per_s=1 / s_per_byte if s_per_byte > 0 else math.inf,
            spread=_TO_DEVIATION * float(np.median(off)),
            group_size=group_size,
            tells_latency=tells_latency,
        )


def _least_absolute(columns: Floats, times: Floats) -> tuple[float, float]:
    """Return two factors, neither below 0, by least squares that are weighed anew until they are least deviations."""
    weights = 1 / times**2
    found = (0.0, 0.0)
    for _ in range(_ROUNDS):
        found = _nonnegative(columns, times, weights)
        predicted = np.maximum(columns @ found, 1e-12)
        weights = 1 / (predicted * np.maximum(np.abs(times - predicted), _LEAST_SHARE * predicted))
    return found


def _nonnegative(columns: Floats, times: Floats, weights: Floats) -> tuple[float, float]:
    """Return the weighted least squares of two factors that are not negative: of both, or of the better one alone."""
    (aa, ab), (_, bb) = (columns.T * weights) @ columns
    at, bt = (columns.T * weights) @ times
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        both = ((bb * at - ab * bt) / determinant, (aa * bt - ab * at) / determinant)
        if min(both) >= 0:
            return float(both[0]), float(both[1])
    # What one factor alone takes off the squares.
    gains = (at * at / aa if aa > 0 else 0.0, bt * bt / bb if bb > 0 else 0.0)
    return (float(at / aa), 0.0) if gains[0] > gains[1] else (0.0, float(bt / bb))
