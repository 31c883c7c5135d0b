"""The names of the spans that are drawn, numbered as they are needed, and cut so that they cannot fill a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gscalar.model.timeline import NONE
from gscalar.views.reporting.markup import clean

_MOST_CHARACTERS: Final = 150_000  # of all names together
_LONGEST: Final = 120
_SHORTEST: Final = 8


class Names:
    """Numbers of names, in the order in which they were asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._numbers: dict[int, int] = {}

    def number(self, name: int) -> int:
        """Return the number of a name of the timeline; NONE has none."""
        return NONE if name == NONE else self._numbers.setdefault(name, len(self._numbers))

    def told(self) -> list[str]:
        """Return the names by number, cut so that all of them fit."""
        longest = min(_LONGEST, max(_SHORTEST, _MOST_CHARACTERS // max(1, len(self._numbers))))
        return [clean(self._names[each], longest) for each in self._numbers]
