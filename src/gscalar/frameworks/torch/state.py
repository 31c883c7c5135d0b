"""Models and optimizers as named arrays and plain values, and back.

Optimizer state is keyed by the name of the parameter it belongs to, never by an index: a resumed
script may build its groups in another order, and another world size may shard them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gscalar.base.errors import TrainingError
from gscalar.runtime.framework import Snapshot


def snapshot_model(model: nn.Module, prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Add host copies of the model's tensors to `arrays`; return what is no tensor."""
    rest: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            arrays[f"{prefix}/{name}"] = _copy(value)
        elif value is not None:
            rest[name] = to_plain(value, f"model, {name}")
    return rest


def restore_model(model: nn.Module, prefix: str, snapshot: Snapshot) -> None:
    """Put the model's tensors back.

    Raises:
        TrainingError: `state-mismatch`, naming the first tensors that do not fit.
    """
    head = f"{prefix}/"
    state = {name[len(head) :]: value for name, value in snapshot.arrays.items() if name.startswith(head)}
    state.update(from_plain(snapshot.values["models"][int(prefix.removeprefix("model"))]))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise mismatch("model", str(error)) from error


def parameter_names(models: Sequence[nn.Module], optimizer: Optimizer) -> list[str]:
    """Return the name of each of the optimizer's parameters, in the order of its state's indices."""
    names: dict[int, str] = {}
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            names.setdefault(id(parameter), f"model{index}/{name}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [names.get(id(parameter), f"loose{index}") for index, parameter in enumerate(parameters)]


def snapshot_optimizer(
    optimizer: Optimizer, models: Sequence[nn.Module], prefix: str, arrays: dict[str, Any]
) -> dict[str, Any]:
    """Add host copies of the optimizer's tensors to `arrays`; return its groups and plain values."""
    names = parameter_names(models, optimizer)
    state = optimizer.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        rest: dict[str, Any] = {}
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                arrays[f"{prefix}/{names[index]}/{key}"] = _copy(value)
            else:
                rest[key] = value
        plain[names[index]] = rest
    groups = []
    for group in state["param_groups"]:
        entry = {key: to_plain(value, f"optimizer group, {key}") for key, value in group.items() if key != "params"}
        entry["params"] = [names[index] for index in group["params"]]
        groups.append(entry)
    return {"state": plain, "groups": groups}


def restore_optimizer(optimizer: Optimizer, models: Sequence[nn.Module], index: int, snapshot: Snapshot) -> None:
    """Put the optimizer's state back, by parameter name.

    Raises:
        TrainingError: `state-mismatch`.
    """
    saved = snapshot.values["optimizers"][index]
    names = parameter_names(models, optimizer)
    known = {name for group in saved["groups"] for name in group["params"]}
    if set(names) != known:
        raise mismatch("optimizer", f"parameters differ: {', '.join(sorted(set(names) ^ known)[:5])}")
    state: dict[int, dict[str, Any]] = {}
    head = f"optimizer{index}/"
    for position, name in enumerate(names):
        entries = dict(saved["state"].get(name, {}))
        start = f"{head}{name}/"
        for key, value in snapshot.arrays.items():
            if key.startswith(start) and "/" not in key[len(start) :]:
                entries[key[len(start) :]] = value
        if entries:
            state[position] = entries
    by_members = {frozenset(group["params"]): group for group in saved["groups"]}
    groups = []
    for mine in optimizer.state_dict()["param_groups"]:
        entry = by_members.get(frozenset(names[position] for position in mine["params"]))
        if entry is None:
            raise mismatch("optimizer", "the parameters are grouped in another way")
        groups.append({**{key: from_plain(value) for key, value in entry.items()}, "params": mine["params"]})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _copy(value: torch.Tensor) -> torch.Tensor:
    # One copy in either case: `.cpu()` copies from a device, and `clone` what is on the host already.
    value = value.detach()
    return value.clone() if value.device.type == "cpu" else value.cpu()


def to_plain(value: Any, where: str) -> Any:
    """Return small state as JSON values: tensors, arrays, bytes and tuples keep what they are.

    Raises:
        TrainingError: `bad-state`, with the place of what cannot be stored.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return {"$tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, dict):
        return {key: to_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return {"$array": value.tolist(), "dtype": str(value.dtype)}
    raise TrainingError(
        code="bad-state",
        what=f"A {type(value).__name__} cannot be stored in a checkpoint.",
        where=where,
        next_step="Return numbers, text, lists, dicts, tensors and arrays from state_dict.",
    )


def from_plain(value: Any) -> Any:
    """Return what `to_plain` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return torch.tensor(value["$tensor"], dtype=getattr(torch, value["dtype"]))
    if "$array" in value:
        return importlib.import_module("numpy").array(value["$array"], dtype=value["dtype"])
    if "$bytes" in value:
        return bytes.fromhex(value["$bytes"])
    if "$tuple" in value:
        return tuple(from_plain(item) for item in value["$tuple"])
    return {key: from_plain(item) for key, item in value.items()}


def mismatch(what: str, detail: str) -> TrainingError:
    """Return the error for a checkpoint of other objects than the script has."""
    return TrainingError(
        code="state-mismatch",
        what=f"The checkpoint does not fit this script's {what}: {detail}",
        next_step="Resume with the script that wrote it, or start a new run.",
    )
