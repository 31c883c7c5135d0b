"""A spec as JSON's types, as it lies in job.json and in the record, and back.

Infinities and NaN in `config`, for which JSON has no number, are written as YAML's words `.inf`,
`-.inf` and `.nan`; a string that looks like one gets a `!` in front, so that nothing is mistaken.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from gscalar.model.parsing.building import build_spec
from gscalar.model.parsing.tree import Table, tree_of
from gscalar.model.spec import JobSpec

_WORDS: Final = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_MISTAKABLE: Final = re.compile(r"!*(?:-?\.inf|\.nan)")


def to_plain(spec: JobSpec) -> dict[str, Any]:
    """Return all values of a spec as dicts, lists, strings, finite numbers, booleans and None."""
    return {
        field.name: _written(spec.config) if field.name == "config" else _plain(getattr(spec, field.name))
        for field in dataclasses.fields(spec)
    }


def from_plain(plain: Mapping[str, Any], *, where: str = "job.json") -> JobSpec:
    """Return the spec that `to_plain` was given. `where` is named in errors.

    Raises:
        SpecError: a key or value that no spec has.
    """
    plain = dict(plain)
    if isinstance(plain.get("command"), list | tuple) and not plain["command"]:
        del plain["command"]  # a script that runs alone has none
    tree = tree_of(plain, where, "spec")
    assert isinstance(tree, Table)
    spec, _ = build_spec(tree, needs_command=False)
    return dataclasses.replace(spec, config=_restored(spec.config))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _written(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, str) and _MISTAKABLE.fullmatch(value):
        return "!" + value
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _restored(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if isinstance(value, str) and _MISTAKABLE.fullmatch(value):
        return value[1:] if value.startswith("!") else _WORDS[value]
    return value
