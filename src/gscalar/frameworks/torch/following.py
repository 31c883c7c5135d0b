"""What following a trainer on PyTorch takes, whichever trainer it is: its run, its batches, its loss, its settings.

The loss of a step is asked of nobody: a hook on the model's output keeps each micro-step's loss, and a hook on that
tensor learns by which factor it went into the backward (the trainer may divide by the accumulated micro-steps, and a
gradient scaler multiplies). Their products add up to the loss that the trainer itself reports. Both are tensors
on the device, and nothing is waited for. A trainer that makes its loss from other outputs never sends a gradient
through that tensor; then there is no loss to tell.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gscalar.frameworks.torch.adapter import TorchFramework
from gscalar.frameworks.torch.data import leading_size
from gscalar.runtime.following import Follower
from gscalar.runtime.session import Run, current_run, follow, open_run

_TOKENS: Final = "input_ids"


class Followed:
    """The model that another trainer trains, as the framework's tools look at it."""

    def __init__(self, model: nn.Module) -> None:
        self.objects = (model,)
        self.models = (model,)


def run_to_follow(run: Run | None) -> Run:
    """Return the run given, else the one that is open in this process, else a new one with the job's defaults.

    Raises:
        UserError: `run-completed`.
    """
    open_here = run or current_run()
    return open_here or open_run({}, None, None, lambda objects: TorchFramework(), TorchFramework, seeds=False)


def follower_of(run: Run | None, name: str) -> Follower:
    """Return what follows the training of a trainer of this name.

    Raises:
        UserError: `run-completed`, `prepare-twice`.
    """
    return follow(run_to_follow(run), name)


def model_facts(model: nn.Module, optimizers: Iterable[Any], framework: str) -> dict[str, Any]:
    """Return what people want to know of what is trained."""
    parameters = list(model.parameters())
    return {
        "framework": framework,
        "device": str(parameters[0].device) if parameters else "cpu",
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "models": [type(model).__name__],
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
    }


def plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of some settings a record can hold: numbers, text, truth, and lists of them."""
    return {str(name): value for name, value in values.items() if _is_plain(value)}


def batch_size(batch: Any) -> tuple[int, int]:
    """Return the samples and the tokens of a batch; tokens count with padding, and only where it has `input_ids`."""
    tokens = batch.get(_TOKENS) if isinstance(batch, Mapping) else None
    items = dict(batch) if isinstance(batch, Mapping) else batch
    return leading_size(items), tokens.numel() if isinstance(tokens, torch.Tensor) else 0


def take_files(source: Path, target: Path, *, move: bool) -> None:
    """Put the files of a folder into another one: moved, or linked so that the bytes are there once.

    Raises:
        OSError: as the system says.
    """
    for item in sorted(source.iterdir()):
        place = target / item.name
        if move:
            shutil.move(item, place)
        elif item.is_dir():
            place.mkdir()
            take_files(item, place, move=False)
        else:
            _link(item, place)
    if move:
        source.rmdir()


def unshare_files(folder: Path) -> None:
    """Give each file of a folder bytes of its own, so that writing it anew leaves its other names alone."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink > 1:
            copy = path.with_name(f"{path.name}.own")
            shutil.copy2(path, copy)
            copy.replace(path)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


class ForwardWatch:
    """Sees the batches and the loss of a model's training forwards, from hooks on the model itself."""

    def __init__(self, model: nn.Module, scale: Callable[[], float] = lambda: 1.0) -> None:
        self._scale = scale
        self._parts: list[torch.Tensor] = []
        self._samples = self._tokens = 0
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def take(self) -> tuple[torch.Tensor | None, int, int]:
        """Return the loss, samples and tokens since the last call; no loss where none was seen going backward."""
        loss = torch.stack(self._parts).sum() if self._parts else None
        taken = loss, self._samples, self._tokens
        self._parts, self._samples, self._tokens = [], 0, 0
        return taken

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.training and torch.is_grad_enabled():
            samples, tokens = batch_size(kwargs or list(args))
            self._samples += samples
            self._tokens += tokens

    def _after(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not model.training:
            return
        loss = output.get("loss") if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else output
        if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1:
            value = loss.detach().reshape(())
            loss.register_hook(lambda gradient: self._seen(value, gradient))

    def _seen(self, value: torch.Tensor, gradient: torch.Tensor) -> None:
        self._parts.append(value * gradient.detach().reshape(()) / self._scale())


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    return isinstance(value, bool | int | float | str)
