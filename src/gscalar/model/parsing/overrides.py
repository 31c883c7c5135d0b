"""`key=value` words, as in `--set plan.accumulate=4` and in GSCALAR_SET.

The key is a dotted path; a name that holds a dot, `=` or a blank stands in double quotes. The value is
YAML, so `{kind: cosine, warmup_steps: 10}` sets a whole part.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from typing import Final

from gscalar.base.errors import SpecError
from gscalar.model.parsing.document import read_value
from gscalar.model.parsing.shapes import keys_of
from gscalar.model.parsing.tree import Path, Table, nest, overlay
from gscalar.model.spec import JobSpec, Origin

ENVIRONMENT_VARIABLE: Final = "GSCALAR_SET"
_MAX_PARTS: Final = 32
_PART: Final = r'(?:"(?:[^"\\]|\\.)*"|[^.="\s]+)'
_WORD: Final = re.compile(rf"\s*({_PART}(?:\.{_PART})*)\s*=(.*)", re.DOTALL)


def read_overrides(words: Iterable[str], label: str, origin: Origin) -> Table:
    """Return the tree of `key=value` words; of two for one key the later counts.

    Raises:
        SpecError: `bad-override`.
    """
    tree = Table({}, label, origin)
    for word in words:
        where = f"{label} {word if len(word) <= 200 else word[:197] + '...'}"
        path, text = _split(word, where)
        tree = overlay(tree, nest(path, read_value(text, where, origin)))
    return tree


def split_words(line: str) -> list[str]:
    """Return the words of GSCALAR_SET, which are quoted as for a shell.

    Raises:
        SpecError: `bad-override`.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise SpecError(
            code="bad-override",
            what=f"The words cannot be told apart: {error}.",
            value=line,
            where=ENVIRONMENT_VARIABLE,
            next_step="Quote as in a shell: GSCALAR_SET=\"plan.accumulate=4 'config.note=two words'\".",
        ) from None


def _split(word: str, where: str) -> tuple[Path, str]:
    found = _WORD.fullmatch(word)
    path = tuple(_unquoted(part) for part in re.findall(_PART, found[1])) if found else ()
    if found is None or len(path) > _MAX_PARTS or None in path:
        raise SpecError(
            code="bad-override",
            what="This is not of the form key=value.",
            value=word,
            where=where.split(" ", 1)[0],
            next_step="Write a key, `=` and a value, such as plan.accumulate=4.",
        )
    names = tuple(part for part in path if part is not None)
    key = keys_of(JobSpec).get(names[0])
    if key and key.shape.form == "string map" and len(names) > 2:
        names = (names[0], ".".join(names[1:]))  # names of tags may hold dots, and nothing is nested there
    return names, found[2]


def _unquoted(part: str) -> str | None:
    if not part.startswith('"'):
        return part
    try:
        name = json.loads(part)
    except ValueError:
        return None
    return name if isinstance(name, str) else None
