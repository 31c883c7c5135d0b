"""How numbers stand in evidence."""

from __future__ import annotations

from collections.abc import Sequence


def ms(seconds: float) -> str:
    """Return a duration as people read it."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-4 or not seconds:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def percent(share: float) -> str:
    """Return a share as per cent."""
    return f"{100 * share:.3g} %"


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ranks as words, the first few of many."""
    shown = ", ".join(str(rank) for rank in ranks[:6])
    more = f" and {len(ranks) - 6} more" if len(ranks) > 6 else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"
