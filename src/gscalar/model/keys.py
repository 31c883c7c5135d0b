"""How a field of a spec dataclass says what it means and which values it takes.

The parser, the JSON schema for editors and the reference page all read this one place.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

_META: Final = "gscalar"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRule:
    """What one key of the spec means, and the limits its value must keep.

    `pattern` is for a string, or for each string of a list or mapping; `name_pattern` is for the names of
    a mapping. Both must match the whole string, and `expects` and `names_expect` say in words what they take.
    """

    doc: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    pattern: str | None = None
    expects: str = ""
    name_pattern: str | None = None
    names_expect: str = ""


def key(default: Any = dataclasses.MISSING, *, factory: Any = dataclasses.MISSING, **rule: Any) -> Any:
    """Return a dataclass field that carries a `KeyRule`."""
    metadata = {_META: KeyRule(**rule)}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rule_of(field: dataclasses.Field[Any]) -> KeyRule:
    """Return the rule of a field made by `key`."""
    rule = field.metadata[_META]
    assert isinstance(rule, KeyRule)
    return rule
