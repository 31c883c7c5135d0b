"""Numbers as people read them: durations, bytes, rates."""

from __future__ import annotations

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(num_bytes: float) -> str:
    """Return bytes with a binary unit and three significant digits, such as `3.20 MiB`."""
    amount = float(num_bytes)
    for unit in _BYTE_UNITS:
        if abs(amount) < 1024 or unit == _BYTE_UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{_three(amount)} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def format_duration(duration_s: float) -> str:
    """Return a duration in its two largest units, such as `1 h 05 min`, `2 min 03 s`, `38.2 ms`."""
    if duration_s < 0:
        return "-" + format_duration(-duration_s)
    if duration_s < 1e-3:
        return f"{_three(duration_s * 1e6)} us"
    if duration_s < 1:
        return f"{_three(duration_s * 1e3)} ms"
    if duration_s < 59.95:
        return f"{_three(duration_s)} s"
    whole = round(duration_s)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def format_count(count: float) -> str:
    """Return a count or rate with a decimal suffix and three significant digits, such as `14.2 k`."""
    amount = float(count)
    for unit in ("", " k", " M", " G"):
        if abs(amount) < 1000:
            return f"{amount:.0f}{unit}" if unit == "" and amount == int(amount) else f"{_three(amount)}{unit}"
        amount /= 1000
    return f"{_three(amount)} T"


def _three(amount: float) -> str:
    size = abs(amount)
    return f"{amount:.2f}" if size < 9.995 else f"{amount:.1f}" if size < 99.95 else f"{amount:.0f}"
