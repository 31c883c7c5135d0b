"""What the runtime asks of a training framework: four small protocols.

`Framework` opens the others. `Group` is the ranks of one launch, talking on the host. `Trainee` is
what is trained: the adopted models, optimizers and schedule objects. `Feed` turns the user's data
object into batches. `gscalar.testing.framework_suite` holds what every implementation must do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gscalar.model.shares import Share
from gscalar.model.spec import Plan
from gscalar.observation.collectives import CollectiveLedger
from gscalar.runtime.cursor import Cursor, OrderFacts
from gscalar.runtime.launch import Launch


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of this rank.

    `num_samples` is what it adds to the gradient's weight (0 for padding); `group_samples` is the
    number of samples of all ranks in the whole accumulated step, or None where it is not known in
    advance. `after` is the cursor once the batch is consumed, `ends_epoch` is true for the last
    micro-batch of an epoch, `data_state` is what the data set itself needs to go on (or None).
    `shares` are the positions of the global order that it holds, none for padding. `step_size` is the
    number of micro-batches in its optimizer step, the same on every rank: more than `plan.accumulate`
    where a rank's part of a global micro-batch is walked in pieces. An epoch's end ends a step earlier.
    `transfer_s` is how long the copy to the device held the host up, `num_ready` how many batches lay
    ready in the prefetch queue when this one was asked for (-1 where there is no queue to look into).
    """

    value: Any
    num_samples: int
    group_samples: int | None
    after: Cursor
    ends_epoch: bool
    data_state: Any = None
    transfer_s: float = 0.0
    num_ready: int = -1
    shares: tuple[Share, ...] = ()
    step_size: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer step did: the learning rate used, and the gradient norm where it clips."""

    lr: float
    grad_norm: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy on the host of what is trained: named arrays of the framework, and plain JSON values."""

    arrays: dict[str, Any]
    values: dict[str, Any]


class Group(Protocol):
    """The ranks of one launch. Every rank makes the same calls in the same order."""

    def start_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin the sum over all ranks (float64) and return a function that waits for it."""

    def broadcast(self, payload: bytes) -> bytes:
        """Return rank 0's payload."""

    def gather(self, payload: bytes) -> list[bytes]:
        """Return all payloads in rank order on rank 0, and an empty list elsewhere."""

    def close(self) -> None:
        """Leave the group; the other ranks need not be there."""


class Trainee(Protocol):
    """The adopted objects of one run."""

    objects: tuple[Any, ...]

    def expect(self, *, border: bool) -> None:
        """Say before a forward whether its backward ends the step (and so exchanges gradients)."""

    def evaluate(self, evaluating: bool) -> None:
        """Say whether forwards belong to an evaluation, where no rank waits for another."""

    def backward(self, loss: Any, weight: float, when_computed: Callable[[], None] | None = None) -> None:
        """Add the gradient of `weight * loss`, averaged over ranks at the border.

        `when_computed` is called once: when this rank has computed its gradients and waits for others, or earlier
        where that moment cannot be seen.
        """

    def update(self, *, scale: float, clip_norm: float | None, lr_factor: float | None) -> Update:
        """Scale and clip the gradient, move every optimizer and schedule object, and zero the gradient."""

    def snapshot(self) -> Snapshot:
        """Return copies that later training does not change."""

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back.

        Raises:
            TrainingError: `state-mismatch`.
        """


class Feed(Protocol):
    """One data object of the user, sharded over ranks."""

    @property
    def order(self) -> OrderFacts:
        """What the global order follows from."""

    def batches_left(self, cursor: Cursor) -> int | None:
        """Return the global micro-batches that the cursor's epoch still has; None where that is not known."""

    def batches(self, cursor: Cursor, data_state: Any, accumulate: int) -> Generator[Batch, None, None]:
        """Yield this rank's micro-batches from the cursor on, epoch after epoch without end."""

    def evaluation(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass in which every sample is met once over all ranks."""

    def digest(self, cursor: Cursor) -> str:
        """Return the SHA-256 that names the global sample order up to the cursor."""


class Framework(Protocol):
    """One training framework."""

    name: str

    def connect(self, launch: Launch, timeout_s: float) -> Group:
        """Return the group of this launch; a world of one has one too.

        Raises:
            Retryable: `rendezvous-failed`.
        """

    def adopt(self, objects: Sequence[Any], plan: Plan, launch: Launch) -> tuple[Trainee, Mapping[str, Any]]:
        """Return what is trained, with the objects for the user, and facts for people."""

    def feed(
        self, data: Any, launch: Launch, seed: int, *, sharded: bool, number: int = 0, global_batch: int | None = None
    ) -> Feed:
        """Return the feed of a data object; `sharded` where it yields only this rank's share.

        `number` stands for it in the record. `global_batch` is what all ranks took together where the
        run began; None begins it here.

        Raises:
            TrainingError: `data-too-small`, `world-changed`.
        """

    def tools(self) -> Tools:
        """Return the framework's small functions."""


@dataclass(frozen=True, slots=True)
class Tools:
    """A framework's small functions, as plain values."""

    is_data: Callable[[Any], bool]
    seed: Callable[[int, bool], None]  # (seed, deterministic)
    random_state: Callable[[], bytes]
    set_random_state: Callable[[bytes], None]
    scalar: Callable[[Any], Callable[[], float]]  # begin the copy to the host, return how to finish it
    is_peer_loss: Callable[[BaseException], bool]
    first_nonfinite: Callable[[Trainee], str]
    gradients_finite: Callable[[Trainee], bool]  # cheap: every step asks, where `on_nonfinite` is `stop`
    weights_digest: Callable[[Trainee], str]
    write_arrays: Callable[[Path, dict[str, Any]], None]
    read_arrays: Callable[[Path], dict[str, Any]]
    device: Callable[[Launch], Any]
    watch_compilation: Callable[[Callable[[], None]], None]  # a sign of life for each graph that is compiled
    # Tell the ledger of every gradient collective from now on; nothing where the framework cannot see them.
    watch_collectives: Callable[[Trainee, CollectiveLedger], None]
