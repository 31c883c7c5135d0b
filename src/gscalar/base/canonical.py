"""Canonical JSON: one byte string for one value, so that digests of specs can be compared.

Keys are sorted, no spaces, UTF-8, floats in Python's shortest round-trip form. NaN and infinities
are written as the strings "NaN", "Infinity", "-Infinity", since JSON has no number for them.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any


def canonical_json(value: object) -> bytes:
    """Return the canonical UTF-8 bytes of a value made of dicts, lists, strings, numbers, None."""
    text = json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(value: object) -> str:
    """Return the SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def json_text(value: object, *, indent: int | None = 2) -> str:
    """Return strict JSON text for people and programs, with non-finite numbers as strings."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
