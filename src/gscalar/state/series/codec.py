"""Arrays of 8-byte numbers as bytes: byte planes, of which those that pay are deflated.

Of a noisy float64 only sign, exponent and the first bits of the mantissa repeat; of the differences of times or
steps, only the high bytes. So the bytes are sorted into eight planes, all first bytes, all second bytes, and
so on (the shuffle of Blosc and HDF5), and only planes whose entropy says that they shrink go to zlib. Random
planes are copied, which is why decoding is fast.

    array  = mask (u8: bit p set where plane p is deflated) | length (u32) | zlib(planes of the mask) | other planes

Everything is little-endian. Axes are coded as differences; these wrap at 64 bits, and so does their sum.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gscalar.state.series.types import Floats, Ints

_HEAD: Final = struct.Struct("<BI")
# A plane with more bits of entropy a byte is copied.
_PAYS_BITS: Final = 7.2
_PLANE_OFFSETS: Final = np.arange(8, dtype=np.int64)[:, None] * 256


def encode_floats(values: Floats) -> bytes:
    """Return the values as bytes, bit for bit."""
    return _encode(values.astype("<f8", copy=False))


def decode_floats(blob: bytes, num: int) -> Floats:
    """Return the values that `encode_floats` has made bytes of."""
    return _decode(blob, num, 0).view("<f8").astype(np.float64, copy=False)


def encode_axis(steps: Ints, times_ns: Ints) -> bytes:
    """Return the steps and times of a chunk as bytes."""
    first = _encode(_differences(steps))
    return struct.pack("<I", len(first)) + first + _encode(_differences(times_ns))


def decode_axis(blob: bytes, num: int) -> tuple[Ints, Ints]:
    """Return the steps and times that `encode_axis` has made bytes of."""
    (length,) = struct.unpack_from("<I", blob)
    steps = np.cumsum(_decode(blob, num, 4).view("<i8"), dtype=np.int64)
    return steps, np.cumsum(_decode(blob, num, 4 + length).view("<i8"), dtype=np.int64)


def _differences(numbers: Ints) -> npt.NDArray[Any]:
    found = numbers.astype("<i8")
    found[1:] = numbers[1:] - numbers[:-1]
    return found


def _encode(numbers: npt.NDArray[Any]) -> bytes:
    planes = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, 8).T)
    chosen = _entropy_bits(planes) < _PAYS_BITS
    if chosen.any():
        plain = planes[chosen].tobytes()
        deflated = zlib.compress(plain, 1)
        if len(deflated) < len(plain):
            mask = int(np.packbits(chosen, bitorder="little")[0])
            return _HEAD.pack(mask, len(deflated)) + deflated + planes[~chosen].tobytes()
    return _HEAD.pack(0, 0) + planes.tobytes()


def _decode(blob: bytes, num: int, start: int) -> npt.NDArray[np.uint8]:
    mask, length = _HEAD.unpack_from(blob, start)
    start += _HEAD.size
    deflated = np.unpackbits(np.array([mask], np.uint8), bitorder="little").astype(bool)
    planes = np.empty((8, num), np.uint8)
    if mask:
        plain = zlib.decompress(blob[start : start + length])
        planes[deflated] = np.frombuffer(plain, np.uint8).reshape(-1, num)
    rest = 8 - int(deflated.sum())
    raw = np.frombuffer(blob, np.uint8, count=rest * num, offset=start + length)
    planes[~deflated] = raw.reshape(rest, num)
    return np.ascontiguousarray(planes.T).reshape(-1)


def _entropy_bits(planes: npt.NDArray[np.uint8]) -> Floats:
    """Return how many bits a byte of each plane carries, as far as its histogram shows."""
    num = planes.shape[1]
    counts = np.bincount((planes + _PLANE_OFFSETS).reshape(-1), minlength=2048).reshape(8, 256)
    bits: Floats = np.log2(num) - (counts * np.log2(np.maximum(counts, 1))).sum(axis=1) / num
    return bits
