"""Arrays as one flat buffer a data type, and back; and how a buffer is cut into pieces.

What is exchanged is long and contiguous, so that many small arrays cost no more than a large one. The results are
views of the buffers. A number that stands for data types and shapes is compared by the ranks before anything is
added: arrays that differ are an error, and not a wrong sum.

Fresh memory costs a page fault every 4 KB, as much as the sum itself. So the buffers of the call before are taken
again where nobody holds a view of them any more, as Python's count of references says.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Flat:
    """Buffers, one a data type in the order in which they are met, and where each array lies in them."""

    buffers: list[NDArray[Any]]
    places: list[tuple[int, int, tuple[int, ...]]]  # buffer, first element, shape
    tag: int  # CRC-32 of data types and shapes

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays as views of the buffers."""
        views = []
        for number, begin, shape in self.places:
            size = int(np.prod(shape, dtype=np.int64))
            views.append(self.buffers[number][begin : begin + size].reshape(shape))
        return views


class Buffers:
    """The buffers of the call before, for the next one."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []

    def take(self, wanted: Sequence[tuple[np.dtype[Any], int]]) -> list[NDArray[Any]]:
        """Return a buffer of each type and size, with anything in it, that nobody else holds."""
        taken = [self._take(dtype, size) for dtype, size in wanted]
        self._kept = list(taken)
        return taken

    def _take(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        for index in range(len(self._kept)):
            if _num_holders(self._kept, index) == _HELD_BY_THE_LIST:
                kept = self._kept[index]
                if kept.dtype == dtype and kept.size == size:
                    return self._kept.pop(index)
        return np.empty(size, dtype)


def _num_holders(held: list[NDArray[Any]], index: int) -> int:
    return sys.getrefcount(held[index])


# Versions of Python count what a call itself holds differently.
_HELD_BY_THE_LIST: Final = _num_holders([np.empty(0)], 0)


def flatten(arrays: Sequence[NDArray[Any]], buffers: Buffers) -> Flat:
    """Return copies of the arrays in flat buffers."""
    given = [np.asarray(array) for array in arrays]
    numbers: dict[np.dtype[Any], int] = {}
    parts: list[list[NDArray[Any]]] = []
    sizes: list[int] = []
    places = []
    for array in given:
        assert array.dtype.kind in "iuf", f"only numbers can be added, not {array.dtype}"
        number = numbers.setdefault(array.dtype, len(numbers))
        if number == len(parts):
            parts.append([])
            sizes.append(0)
        places.append((number, sizes[number], array.shape))
        parts[number].append(array)
        sizes[number] += array.size
    taken = buffers.take([(dtype, sizes[number]) for dtype, number in numbers.items()])
    for buffer, those in zip(taken, parts, strict=True):
        _join(those, buffer)
    return Flat(taken, places, zlib.crc32(repr([(array.dtype.str, array.shape) for array in given]).encode()))


def _join(parts: list[NDArray[Any]], buffer: NDArray[Any]) -> None:
    begin = 0
    for part in parts:
        # Through a view of its shape: an array that is not contiguous is copied once, not twice.
        buffer[begin : begin + part.size].reshape(part.shape)[...] = part
        begin += part.size


def part(size: int, num_parts: int, number: int) -> slice:
    """Return the slice of a part where `size` elements are cut into parts of nearly equal length; some may be empty."""
    return slice(number * size // num_parts, (number + 1) * size // num_parts)
