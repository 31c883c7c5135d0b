"""Arrays of a checkpoint as one `.npz` file, read without pickle; and the digest of weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gscalar.base.errors import Damaged
from gscalar.frameworks.keras.backend import Array

_FILE = "arrays.npz"
_TYPES = "types.json"


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write the arrays into a new folder.

    Raises:
        OSError: as the system says.
    """
    path.mkdir()
    types = {name: np.asarray(array).dtype.name for name, array in arrays.items()}
    (path / _TYPES).write_text(json.dumps(types))
    with (path / _FILE).open("wb") as file:
        # NumPy's format knows no bfloat16 and no float8: their bytes are kept, and the names of their types.
        np.savez(file, **{name: _as_bytes(np.asarray(array)) for name, array in arrays.items()})  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays that `write_arrays` wrote.

    Raises:
        Damaged: `checkpoint-damaged`.
        OSError: as the system says.
    """
    try:
        types: dict[str, str] = json.loads((path / _TYPES).read_text())
        with np.load(path / _FILE, allow_pickle=False) as stored:
            return {name: stored[name].view(_dtype(kind)) for name, kind in types.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(code="checkpoint-damaged", what=f"The arrays cannot be read: {error}", where=str(path)) from error


def weights_digest(named: Iterable[tuple[str, Array]]) -> str:
    """Return the SHA-256 of weights in name order.

    For each, sorted by name: the JSON text `[name, dtype, shape]` and a newline, then its values, row by row, as they
    lie in memory (little-endian).
    """
    sha256 = hashlib.sha256()
    for name, array in sorted(named, key=lambda pair: pair[0]):
        sha256.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode() + b"\n")
        sha256.update(np.ascontiguousarray(array).tobytes())
    return sha256.hexdigest()


def _as_bytes(array: Array) -> Array:
    if array.dtype.kind != "V":
        return array
    bits: Array = array.view(f"u{array.dtype.itemsize}")
    return bits


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # comes with Keras

        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return kind
