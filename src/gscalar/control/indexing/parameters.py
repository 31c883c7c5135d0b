"""What was asked for: the spec as flat parameters, its digest, and the tags."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gscalar.base.canonical import digest
from gscalar.model import events
from gscalar.state.catalog.rows import ParamRow

# These name or measure a run and do not change what it computes, so `digests.spec` leaves them out. `env` stays in:
# a variable such as OMP_NUM_THREADS can change the sums.
LABELS: Final = ("name", "project", "tags", "flops")


def flatten_spec(spec: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[ParamRow]:
    """Yield each value of the spec by its dotted key; a list is one value; labels are left out."""
    for key, value in _leaves("", {key: value for key, value in spec.items() if key not in LABELS}):
        yield ParamRow(key=key, value=text(value), number=number(value), origin=origin_of(key, origins))


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Return where the value of a dotted key came from: the key's own origin, or that of a mapping around it."""
    while key not in origins:
        key, dot, _ = key.rpartition(".")
        if not dot:
            return "default"
    return origins[key]


def text(value: Any) -> str:
    """Return a value as YAML writes it, so that a search is typed the same way."""
    return value if isinstance(value, str) else json.dumps(value)


def number(value: Any) -> float | None:
    """Return the value as a number to compare; None for what is none, NaN among it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return None if math.isnan(found) else found


def whole(value: Any) -> int | None:
    """Return the value where it is an integer of 64 bits."""
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def digests(spec: Mapping[str, Any], finished: events.Finished | None) -> dict[str, str]:
    """Return the digests of what was asked for (`spec`) and of what came out (`weights`, `data`)."""
    found = dict(finished.digests) if finished else {}
    found["spec"] = digest({key: value for key, value in spec.items() if key not in LABELS})
    return found


def tags(spec: Mapping[str, Any], edits: Iterable[events.Edited]) -> dict[str, str]:
    """Return the job's tags after all edits, by name."""
    given = spec.get("tags")
    found = {key: str(value) for key, value in given.items()} if isinstance(given, dict) else {}
    for edit in edits:
        for key, value in edit.tags.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
    return dict(sorted(found.items()))


def _leaves(prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _leaves(f"{prefix}{key}.", item)
        else:
            yield f"{prefix}{key}", item
