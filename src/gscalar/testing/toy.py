"""A training framework small enough to read: linear regression by SGD with momentum, in NumPy.

It implements every protocol of `gscalar.runtime.framework`, between processes too (over TCP, all
ranks talking to rank 0), so that what the runtime does can be tested without the seconds that a real
framework needs to start.

    run = open_toy_run(project="toy", home=folder)
    model, optimizer, data = run.prepare(ToyModel(3), optimizer, ToyData(x, y, batch_size=4))
    for batch in run.batches(data, epochs=2):
        run.step(model.loss(batch))
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gscalar.base.errors import Retryable, TrainingError, UserError
from gscalar.model.spec import Plan
from gscalar.runtime.cursor import Cursor, Order, OrderFacts, eval_shard, order_digest
from gscalar.runtime.framework import Batch, Feed, Group, Snapshot, Tools, Trainee, Update
from gscalar.runtime.launch import Launch
from gscalar.runtime.session import Run, open_run

Array = NDArray[np.float64]
_KEY = b"toy"


# ---- what a user's script would have --------------------------------------------------------------


@dataclass(frozen=True)
class ToyLoss:
    """A loss with its gradient, as a framework's graph would give it."""

    value: float
    gradient: Array

    def __float__(self) -> float:
        return self.value


class ToyModel:
    """y = x . weights, with the mean squared error as its loss."""

    def __init__(self, num_features: int) -> None:
        self.weights: Array = np.zeros(num_features)
        self.gradient: Array = np.zeros(num_features)

    def loss(self, batch: tuple[Array, Array]) -> ToyLoss:
        """Return the mean loss over the samples of a batch: x (batch, feature), y (batch)."""
        x, y = batch
        errors = x @ self.weights - y
        return ToyLoss(float(np.mean(errors**2)), 2 * (x.T @ errors) / len(y))


class ToySGD:
    """SGD with momentum: v = m v + g, w = w - lr v."""

    def __init__(self, model: ToyModel, lr: float = 0.1, momentum: float = 0.9) -> None:
        self.model = model
        self.lr = lr
        self.momentum = momentum
        self.velocity: Array = np.zeros_like(model.weights)
        self.kept: list[Array] = []  # the gradient of every step, for tests

    def step(self) -> None:
        """Move the weights."""
        self.kept.append(self.model.gradient.copy())
        self.velocity = self.momentum * self.velocity + self.model.gradient
        self.model.weights = self.model.weights - self.lr * self.velocity


@dataclass(frozen=True)
class ToyData:
    """Samples in memory: x (size, feature) and y (size); `batch_size` is per worker."""

    x: Array
    y: Array
    batch_size: int = 4
    shuffle: bool = True
    counts_known: bool = True  # else batches do not say in advance how many samples a step has

    @classmethod
    def make(cls, size: int, num_features: int = 3, **settings: Any) -> ToyData:
        """Return noisy linear data that is the same in every process."""
        draw = np.random.default_rng(5)
        x = draw.normal(size=(size, num_features))
        y = x @ np.arange(1.0, num_features + 1) + 0.1 * draw.normal(size=size)
        return cls(x, y, **settings)


# ---- the protocols --------------------------------------------------------------------------------


class ToyGroup:
    """All ranks, over TCP. Every collective goes through rank 0, which adds in rank order."""

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        self._rank, self._world = launch.rank, launch.world
        self._peers: list[Connection[Any, Any]] = []
        if launch.world == 1:
            return
        assert launch.master_addr is not None
        assert launch.master_port is not None
        address = (launch.master_addr, launch.master_port)
        if launch.rank == 0:
            with Listener(address, backlog=launch.world, authkey=_KEY) as listener:
                ranked = {(peer := listener.accept()).recv(): peer for _ in range(1, launch.world)}
            self._peers = [ranked[rank] for rank in range(1, launch.world)]
        else:
            self._peers = [_reach(address, launch, timeout_s)]
            self._peers[0].send(launch.rank)

    def exchange(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Return what rank 0 combines of the values of all ranks in rank order."""
        if self._rank > 0:
            self._peers[0].send(value)
            return self._peers[0].recv()
        combined = combine([value, *(peer.recv() for peer in self._peers)])
        for peer in self._peers:
            peer.send(combined)
        return combined

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Sum over all ranks, at once."""
        totals: list[float] = self.exchange(
            list(values), lambda rows: [sum(column) for column in zip(*rows, strict=True)]
        )
        return lambda: totals

    def broadcast(self, payload: bytes) -> bytes:
        """Return rank 0's payload."""
        return bytes(self.exchange(payload, lambda payloads: payloads[0]))

    def gather(self, payload: bytes) -> list[bytes]:
        """Return all payloads on rank 0."""
        payloads: list[bytes] = self.exchange(payload, lambda payloads: payloads)
        return payloads if self._rank == 0 else []

    def close(self) -> None:
        """Leave."""
        for peer in self._peers:
            peer.close()
        self._peers = []


def _reach(address: tuple[str, int], launch: Launch, timeout_s: float) -> Connection[Any, Any]:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return Client(address, authkey=_KEY)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise Retryable(
                    code="rendezvous-failed",
                    what=f"Rank {launch.rank} of {launch.world} did not reach rank 0: {error}",
                    value=f"{address[0]}:{address[1]}",
                    next_step="See whether all workers started.",
                ) from error
            time.sleep(0.02)


class ToyTrainee:
    """One model with its optimizer."""

    def __init__(self, objects: Sequence[Any], group: ToyGroup, world: int) -> None:
        self.objects = tuple(objects)
        (self.model,) = (item for item in objects if isinstance(item, ToyModel))
        (self.optimizer,) = (item for item in objects if isinstance(item, ToySGD))
        self._group = group
        self._world = world
        self._base_lr = self.optimizer.lr
        self._border = True

    def expect(self, *, border: bool) -> None:
        """Say whether the next backward ends the step."""
        self._border = border

    def evaluate(self, evaluating: bool) -> None:
        """Nothing waits for other ranks in a forward here."""

    def backward(self, loss: ToyLoss, weight: float, when_computed: Callable[[], None] | None = None) -> None:
        """Add the gradient, and average it over ranks at the border."""
        if when_computed is not None:
            when_computed()
        self.model.gradient = self.model.gradient + weight * loss.gradient
        if self._border:
            total = self._group.exchange(self.model.gradient, lambda rows: np.sum(rows, axis=0))
            self.model.gradient = total / self._world

    def update(self, *, scale: float, clip_norm: float | None, lr_factor: float | None) -> Update:
        """Scale, clip, move and zero."""
        gradient = self.model.gradient * scale
        norm = None
        if clip_norm is not None:
            norm = float(np.linalg.norm(gradient))
            gradient = gradient * min(1.0, clip_norm / (norm + 1e-6))
        self.model.gradient = gradient
        if lr_factor is not None:
            self.optimizer.lr = self._base_lr * lr_factor
        self.optimizer.step()
        self.model.gradient = np.zeros_like(gradient)
        return Update(lr=self.optimizer.lr, grad_norm=norm)

    def snapshot(self) -> Snapshot:
        """Return copies."""
        arrays = {"weights": self.model.weights.copy(), "velocity": self.optimizer.velocity.copy()}
        return Snapshot(arrays=arrays, values={"lr": self.optimizer.lr})

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back."""
        if snapshot.arrays["weights"].shape != self.model.weights.shape:
            raise TrainingError(
                code="state-mismatch",
                what=f"The checkpoint has weights of shape {snapshot.arrays['weights'].shape}, "
                f"the model {self.model.weights.shape}.",
                next_step="Resume with the script that wrote it.",
            )
        self.model.weights = snapshot.arrays["weights"].copy()
        self.optimizer.velocity = snapshot.arrays["velocity"].copy()
        self.optimizer.lr = snapshot.values["lr"]


class ToyFeed:
    """Samples in the run's global order."""

    def __init__(self, data: ToyData, launch: Launch, seed: int, number: int, global_batch: int | None) -> None:
        self._data = data
        self._launch = launch
        self._number = number
        self._order = Order(
            size=len(data.y), batch_size=data.batch_size, world=launch.world, rank=launch.rank, seed=seed,
            shuffle=data.shuffle, fixed_batch=global_batch,
        )  # fmt: skip

    @property
    def order(self) -> OrderFacts:
        """What the order follows from."""
        return self._order.facts

    def batches_left(self, cursor: Cursor) -> int | None:
        """Return the global micro-batches that the epoch still has."""
        return self._order.batches_left(cursor)

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's micro-batches without end."""
        for step in self._order.steps(cursor, accumulate):
            total = sum(item.num_global for item in step) if self._data.counts_known else None
            for item in step:
                yield Batch(
                    self._take(item.indices), item.num_samples, total, item.after, item.ends_epoch,
                    shares=item.shares(self._number), step_size=len(step),
                )  # fmt: skip

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass."""
        for indices in eval_shard(len(self._data.y), self._data.batch_size, self._launch.world, self._launch.rank):
            yield self._take(indices)

    def digest(self, cursor: Cursor) -> str:
        """Return the digest of the order up to the cursor."""
        return order_digest(self._order, cursor)

    def _take(self, indices: Sequence[int]) -> tuple[Array, Array]:
        chosen = list(indices)
        return self._data.x[chosen], self._data.y[chosen]


class ToyFramework:
    """The framework itself."""

    name = "toy"

    def __init__(self) -> None:
        self._group: ToyGroup | None = None

    def connect(self, launch: Launch, timeout_s: float) -> Group:
        """Return the group of this launch."""
        self._group = ToyGroup(launch, timeout_s)
        return self._group

    def adopt(self, objects: Sequence[Any], plan: Plan, launch: Launch) -> tuple[Trainee, Mapping[str, Any]]:
        """Return what is trained."""
        for item in objects:
            if not isinstance(item, ToyModel | ToySGD):
                kind = type(item).__name__
                raise UserError(code="unsupported-object", what="That is no toy.", value=kind, next_step="Give toys.")
        assert self._group is not None, "connect comes first"
        trainee = ToyTrainee(objects, self._group, launch.world)
        return trainee, {"framework": "toy", "parameters": trainee.model.weights.size}

    def feed(
        self, data: Any, launch: Launch, seed: int, *, sharded: bool, number: int = 0, global_batch: int | None = None
    ) -> Feed:
        """Return the feed of a `ToyData`."""
        return ToyFeed(data, launch, seed, number, global_batch)

    def tools(self) -> Tools:
        """Return the small functions."""
        return Tools(
            is_data=lambda item: isinstance(item, ToyData),
            seed=lambda seed, deterministic: random.seed(seed),
            random_state=lambda: json.dumps(random.getstate()).encode(),
            set_random_state=_set_random_state,
            scalar=_scalar,
            is_peer_loss=lambda error: isinstance(error, EOFError | ConnectionError),
            first_nonfinite=_first_nonfinite,
            weights_digest=lambda trainee: hashlib.sha256(trainee.model.weights.tobytes()).hexdigest(),  # type: ignore[attr-defined]
            write_arrays=_write_arrays,
            read_arrays=_read_arrays,
            device=lambda launch: None,
            gradients_finite=lambda trainee: bool(np.isfinite(trainee.model.gradient).all()),  # type: ignore[attr-defined]
            watch_compilation=lambda beat: None,
            watch_collectives=lambda trainee, ledger: None,
        )


def open_toy_run(config: Any = None, home: Path | None = None, **arguments: Any) -> Run:
    """Return this process's run, as `gscalar.init` does for a framework that it knows."""
    return open_run(arguments, config, home, lambda objects: ToyFramework(), lambda: None)


def _set_random_state(blob: bytes) -> None:
    version, words, gauss = json.loads(blob)
    random.setstate((version, tuple(words), gauss))


def _first_nonfinite(trainee: Any) -> str:
    model = trainee.model
    named = {"weights": model.weights, "weights.grad": model.gradient}
    return next((name for name, value in named.items() if not np.isfinite(value).all()), "")


def _scalar(value: Any) -> Callable[[], float]:
    number = float(value)
    return lambda: number


def _write_arrays(folder: Path, arrays: dict[str, Any]) -> None:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def _read_arrays(folder: Path) -> dict[str, Any]:
    return {path.stem: np.load(path) for path in folder.iterdir()}
