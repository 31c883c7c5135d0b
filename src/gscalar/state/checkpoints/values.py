"""The part of the state that is no array: plain values in `state.json`, which come back as they went in.

One value has one byte string: keys sorted, no spaces, ASCII. JSON has no word for some values, so
they are written as an object with one key that starts with `$`:

    {"$float": "nan"}         NaN, inf, -inf
    {"$int": "-0x1f"}         integers of more than 1,000 bits (decimal text of them is slow, or refused)
    {"$tuple": [1, 2]}        tuples
    {"$items": [[1, "a"]]}    dicts whose keys are not all strings, or one of whose keys starts with `$`

Everything else (bytes, sets, arrays, objects) is refused with the path to it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from gscalar.base.errors import Damaged, UserError

VALUES: Final = "state.json"
_LARGE_BITS: Final = 1000


def write_values(draft: Path, values: dict[str, Any]) -> None:
    """Write `values` into the draft's `state.json`; the commit makes it durable.

    Subclasses of the plain types come back as the plain type.

    Raises:
        UserError: `bad-state`, with the path to the value that cannot be stored.
        OSError: as the system says.
    """
    try:
        encoded = _encode(values, "state")
    except RecursionError:
        raise _bad_state("state", "is nested too deeply, or holds itself") from None
    text = json.dumps(encoded, sort_keys=True, separators=(",", ":"), allow_nan=False)
    (draft / VALUES).write_text(text + "\n")


def read_values(checkpoint: Path) -> dict[str, Any]:
    """Return the values of a checkpoint, equal to what was written: types, keys and every bit of a float.

    Raises:
        Damaged: `checkpoint-damaged`, when the file is missing or holds something else.
    """
    path = checkpoint / VALUES
    try:
        values = _decode(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_values(path, str(error)) from error
    if not isinstance(values, dict):
        raise _not_values(path, f"it holds a {type(values).__name__}")
    return values


def _encode(value: object, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _encode_text(value, where)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _LARGE_BITS else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, dict):
        return _encode_dict(value, where)
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise _bad_state(where, f"is of type {type(value).__name__}, which JSON cannot hold")


def _encode_text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad_state(where, "is text with half a surrogate pair") from None
    return str.__str__(value)


def _encode_dict(value: dict[Any, Any], where: str) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {_encode_text(key, where): _encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    for key in value:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise _bad_state(where, "has a key that is no text and no integer", key)
    items = [[_encode(key, where), _encode(item, f"{where}[{key!r}]")] for key, item in value.items()]
    # One order for one dict, whatever was put in first.
    return {"$items": sorted(items, key=lambda pair: json.dumps(pair[0]))}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag == "$float":
            return float(inner)
        if tag == "$int":
            return int(inner, 16)
        if tag == "$tuple":
            return tuple(_decode(item) for item in inner)
        if tag == "$items":
            return {_decode(key): _decode(item) for key, item in inner}
    return {key: _decode(item) for key, item in value.items()}


def _bad_state(where: str, what: str, value: object = None) -> UserError:
    return UserError(
        code="bad-state",
        what=f"The value {what}.",
        value=value,
        where=where,
        next_step="Keep numbers, text, lists, tuples and dicts in run.state; arrays go in as tensors.",
    )


def _not_values(path: Path, reason: str) -> Damaged:
    return Damaged(
        code="checkpoint-damaged",
        what=f"{path.name} does not hold values: {reason}.",
        where=str(path),
        next_step="Use the checkpoint before it.",
    )
