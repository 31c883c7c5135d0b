"""Values that know where they were written: what all sources of a spec are turned into.

A tree is immutable, so an aliased part of a document is shared and not copied.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gscalar.base.errors import SpecError
from gscalar.model.parsing.scalars import Scalar
from gscalar.model.spec import Origin

MAX_DEPTH: Final = 64
_PLAIN_NAME: Final = re.compile(r'[^.="\s]+')

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar; `text` is how it was written."""

    value: Scalar
    text: str
    where: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    where: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a table: where the key stands, and its value."""

    where: str
    node: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping of strings."""

    entries: dict[str, Entry]
    where: str
    origin: Origin


Node = Leaf | Items | Table


def overlay(lower: Table, upper: Table) -> Table:
    """Return both tables as one, in which the upper one's values win.

    Tables merge key by key and all else is replaced. A part with another `kind` is replaced whole, as
    the keys of one kind say nothing about another; in `config` a `kind` has no such meaning.
    """
    return _overlay(lower, upper, ())


def _overlay(lower: Table, upper: Table, path: Path) -> Table:
    below, above = _kind(lower), _kind(upper)
    if path[:1] != ("config",) and below is not None and above is not None and below != above:
        return upper
    entries = dict(lower.entries)
    for name, entry in upper.entries.items():
        old = entries.get(name)
        if old and isinstance(old.node, Table) and isinstance(entry.node, Table):
            entries[name] = Entry(entry.where, _overlay(old.node, entry.node, (*path, name)))
        else:
            entries[name] = entry
    return Table(entries, lower.where, lower.origin)


def _kind(table: Table) -> Scalar:
    entry = table.entries.get("kind")
    return entry.node.value if entry and isinstance(entry.node, Leaf) else None


def nest(path: Path, node: Node) -> Table:
    """Return a table in which only this path is set."""
    assert path
    for name in reversed(path):
        node = Table({name: Entry(node.where, node)}, node.where, node.origin)
    assert isinstance(node, Table)
    return node


def dotted(path: Path) -> str:
    """Return a path as `--set` takes it: `plan.accumulate`; a name that needs it is quoted."""
    return ".".join(part if _PLAIN_NAME.fullmatch(part) and part.isprintable() else json.dumps(part) for part in path)


def plain_value(node: Node) -> Any:
    """Return the Python value of a tree."""
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, Items):
        return [plain_value(item) for item in node.items]
    return {name: plain_value(entry.node) for name, entry in node.entries.items()}


def settings(node: Node, path: Path) -> Iterator[tuple[Path, Leaf | Items | Table]]:
    """Yield each value that stands by itself: scalars, lists and empty tables."""
    if isinstance(node, Table) and node.entries:
        for name, entry in node.entries.items():
            yield from settings(entry.node, (*path, name))
    else:
        yield path, node


def tree_of(value: object, where: str, origin: Origin, path: Path = ()) -> Node:
    """Return the tree of a Python value: JSON's types, dataclasses, paths, NumPy's and torch's scalars.

    Raises:
        SpecError: `wrong-type` for any other object, or one that contains itself.
    """
    if len(path) > MAX_DEPTH:
        raise _unfit(path, where, "is nested too deep", None, "Give flat values.")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _table_of(value, where, origin, path)
    if isinstance(value, list | tuple):
        items = (tree_of(item, where, origin, (*path, str(index))) for index, item in enumerate(value))
        return Items(tuple(items), where, origin)
    scalar = _scalar_of(value, path, where)
    return Leaf(scalar, _text_of(scalar), where, origin)


def _table_of(value: Mapping[Any, object], where: str, origin: Origin, path: Path) -> Table:
    entries = {}
    for name, item in value.items():
        if not isinstance(name, str):
            raise _unfit(path, where, "has a key that is no string", name, f"Write {str(name)!r}.")
        entries[str.__str__(name)] = Entry(where, tree_of(item, where, origin, (*path, name)))
    return Table(entries, where, origin)


def _scalar_of(value: object, path: Path, where: str) -> Scalar:
    # NumPy's scalars and tensors of one element say what they hold by `item`.
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    # Subclasses (enumerations, NumPy's float64) become the plain type, which is what a file gives back.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise _unfit(
        path,
        where,
        f"holds an object of type {type(value).__name__}, which cannot be kept in a spec",
        None,
        "Give strings, numbers, booleans, None, lists and mappings (for argparse: vars(args)).",
    )


def _text_of(scalar: Scalar) -> str:
    if scalar is None:
        return "null"
    if isinstance(scalar, bool):
        return "true" if scalar else "false"
    return scalar if isinstance(scalar, str) else repr(scalar)


def _unfit(path: Path, where: str, what: str, value: object, next_step: str) -> SpecError:
    what = f"`{dotted(path)}` {what}"
    return SpecError(code="wrong-type", what=what, value=value, where=where, next_step=next_step)
