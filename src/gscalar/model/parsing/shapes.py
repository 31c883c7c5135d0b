"""What each field of a spec dataclass takes, read from its type and its `KeyRule`.

Types: int, float, bool, str, a Literal of strings, X | None, tuple[str, ...], dict[str, str],
dict[str, Any], a spec dataclass, and a union of spec dataclasses told apart by their Literal `kind`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from gscalar.model.keys import KeyRule, rule_of

Form = Literal[
    "integer",
    "number",
    "boolean",
    "string",
    "choice",
    "strings",
    "string map",
    "free map",
    "section",
    "variants",
]
_SCALARS: dict[object, Form] = {int: "integer", float: "number", bool: "boolean", str: "string"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a value; `options` of a choice, `classes` of a section or of variants."""

    form: Form
    nullable: bool = False
    options: tuple[str, ...] = ()
    classes: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section. `default` is a value of the field's type."""

    name: str
    shape: Shape
    rule: KeyRule
    default: Any


@functools.cache
def keys_of(section: type) -> dict[str, Key]:
    """Return the keys of a spec dataclass in order."""
    hints = typing.get_type_hints(section)
    return {
        field.name: Key(field.name, shape_of(hints[field.name]), rule_of(field), _default(field))
        for field in dataclasses.fields(section)
    }


def shape_of(hint: Any) -> Shape:
    """Return the shape of a type."""
    if hint in _SCALARS:
        return Shape(_SCALARS[hint])
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return Shape("section", classes=(hint,))
    outer, inner = typing.get_origin(hint), typing.get_args(hint)
    if outer in (typing.Union, types.UnionType):
        return _union_shape(inner)
    if outer is Literal:
        return Shape("choice", options=inner)
    if outer is tuple and inner == (str, ...):
        return Shape("strings")
    assert outer is dict, hint
    return Shape("string map" if inner[1] is str else "free map")


def _union_shape(members: tuple[Any, ...]) -> Shape:
    nullable = type(None) in members
    present = tuple(member for member in members if member is not type(None))
    if len(present) == 1:
        return dataclasses.replace(shape_of(present[0]), nullable=nullable)
    return Shape("variants", nullable, classes=present)


def variants_of(shape: Shape) -> dict[str, type]:
    """Return the classes of a union of spec dataclasses by their `kind`."""
    return {keys_of(each)["kind"].shape.options[0]: each for each in shape.classes}


def expectation(shape: Shape, rule: KeyRule) -> str:
    """Return what a key takes, in words: `a whole number of at least 1 or null`."""
    return _form_text(shape, rule) + (" or null" if shape.nullable else "")


def _form_text(shape: Shape, rule: KeyRule) -> str:
    match shape.form:
        case "integer":
            return "a whole number" + _limits_text(rule)
        case "number":
            return "a number" + _limits_text(rule)
        case "boolean":
            return "true or false"
        case "string":
            return f"a string ({rule.expects})" if rule.expects else "a string"
        case "choice":
            return _one_of(shape.options)
        case "strings":
            return "a list of strings or one shell-quoted line"
        case "string map":
            return "a mapping of names to strings"
        case "free map":
            return "a mapping"
        case "section":
            return "a mapping with " + ", ".join(f"`{name}`" for name in keys_of(shape.classes[0]))
        case "variants":
            return "a mapping whose `kind` is " + _one_of(tuple(variants_of(shape)))


def _one_of(options: tuple[str, ...]) -> str:
    quoted = [f"`{option}`" for option in options]
    return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"


def _limits_text(rule: KeyRule) -> str:
    if rule.at_least is not None and rule.at_most is not None:
        return f" from {rule.at_least} to {rule.at_most}"
    if rule.above is not None and rule.at_most is not None:
        return f" above {rule.above} and at most {rule.at_most}"
    if rule.above is not None:
        return f" above {rule.above}"
    if rule.at_least is not None:
        return f" of at least {rule.at_least}"
    return f" of at most {rule.at_most}" if rule.at_most is not None else ""


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING
    return field.default_factory()
