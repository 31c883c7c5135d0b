"""The script's hyperparameters, with the job's values in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
        return dataclasses.replace(config, **{name: value for name, value in values.items() if name in names})
    return Config(values)
