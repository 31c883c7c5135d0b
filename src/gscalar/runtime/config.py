"""The script's hyperparameters, with the job's values in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any


class Config(dict[str, Any]):
    """A dict whose keys are attributes too: `config["lr"]` and `config.lr`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config has no {name!r}; it has {', '.join(sorted(self)) or 'nothing'}") from None


def config_defaults(config: Any) -> dict[str, Any]:
    """Return the script's own values as a plain dict (`config` is None, a mapping or a dataclass)."""
    if config is None:
        return {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "__dict__"):  # argparse.Namespace and its like
        return dict(vars(config))
    raise TypeError(f"config must be a mapping, a dataclass or a namespace, not {type(config).__name__}")


def bind_config(config: Any, values: Mapping[str, Any]) -> Any:
    """Return the values in the shape the script gave: its dataclass, or a `Config`."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        names = {field.name for field in dataclasses.fields(config) if field.init}
        bound = {name: _bound(getattr(config, name), value) for name, value in values.items() if name in names}
        return dataclasses.replace(config, **bound)
    return Config(values)


def _bound(own: Any, value: Any) -> Any:
    """Return a plain value in the type that the script's own value has, where plain values have no such type."""
    if isinstance(value, Mapping):
        return bind_config(own, value) if dataclasses.is_dataclass(own) else value
    if isinstance(value, list) and type(own) is tuple:
        return tuple(value)
    return type(own)(value) if isinstance(value, str) and isinstance(own, PurePath | Enum) else value
