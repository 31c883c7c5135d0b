"""HTML and SVG elements whose text cannot become markup.

`element` escapes every child and attribute that is not itself an element, so that a forgotten call cannot let a name
from a trace through. Control characters and those that turn the direction of text around are replaced, for they can
make a line read as another one. There are no style attributes: the page's policy would refuse them.
"""

from __future__ import annotations

import html
import json
from typing import Final

_TURNING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)
_UNSEEN: Final = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *_TURNING, *range(0xD800, 0xE000)), "\ufffd")
_KEPT: Final = _UNSEEN | {0x09: " ", 0x0A: " ", 0x0D: " "}
_JSON_UNSAFE: Final = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
_VOID: Final = frozenset({"meta", "br", "hr"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None
Attribute = str | float | bool | None


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element. `None` leaves a child or an attribute out, `True` gives an attribute without a value.

    `_` of an attribute's name stands for `-`, and one at its end for nothing (`class_`).
    """
    head = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Return children one after the other, escaped where they are not markup."""
    return Markup("".join(each if isinstance(each, Markup) else escape(each) for each in children if each is not None))


def escape(text: str) -> Markup:
    """Return text as markup that shows it."""
    return Markup(html.escape(clean(text)))


def clean(text: str, most: int = 4_000) -> str:
    """Return text in one line that shows nothing it does not have, cut where it is longer than `most`."""
    shown = text if len(text) <= most else text[: most - 1] + "\u2026"
    return shown.translate(_KEPT)


def as_json(value: object) -> Markup:
    """Return a value as JSON that may stand in a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_JSON_UNSAFE))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    if value is True:
        return f" {name}"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(shown)}"'
