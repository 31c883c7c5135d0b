"""What a plain YAML scalar means: the core schema of YAML 1.2 (chapter 10.3 of its specification).

PyYAML's own table is YAML 1.1's, in which `off` and `no` are booleans, `3e-4` is text, `010` is 8 and
`1:30` is 90. Here `3e-4` is a number, `off` a word, `010` is 10 and `0o10` is 8.
"""

from __future__ import annotations

import re
from typing import Final

Scalar = None | bool | int | float | str

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_MAX_DIGITS: Final = 1000  # Python refuses to read more than 4300, and nobody means such a word as a number
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def resolve_plain(text: str) -> Scalar:
    """Return the value of a scalar that is written without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
