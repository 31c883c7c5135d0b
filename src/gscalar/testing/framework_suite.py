"""What every training framework must do for the runtime, as tests that run on every implementation.

Subclass `FrameworkSuite`, set `subject` to Python source that binds the names below, and pytest runs
all of it. It is source because ranks are processes of their own, which execute it too.

    framework                            a `gscalar.runtime.framework.Framework`
    make_objects(features) -> [model, optimizer]   alike in every process; SGD of rate 0.1 and momentum 0.9
    make_data(size, batch_size, shuffle) a data object; sample i has the id i
    loss_of(model, batch)                the mean loss over the batch
    ids_of(batch) -> list[int]           the ids of the batch's samples
    weights_of(model) -> list[float]
    draw() -> float                      one of the framework's random numbers
"""

from __future__ import annotations

import itertools
import json
import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.base.errors import ScalarError
from gscalar.model.spec import Plan
from gscalar.runtime.cursor import Cursor, Permutation
from gscalar.runtime.framework import Batch, Framework, Snapshot, Trainee
from gscalar.runtime.launch import Launch

FEATURES = 3
WORLD = 3
LIMIT_S = 120.0


class Subject:
    """The names that a suite's source binds."""

    def __init__(self, source: str) -> None:
        scope: dict[str, Any] = {}
        exec(source, scope)  # noqa: S102 - the source is the subclass's own
        self.framework: Framework = scope["framework"]
        self.make_objects = scope["make_objects"]
        self.make_data = scope["make_data"]
        self.loss_of = scope["loss_of"]
        self.ids_of = scope["ids_of"]
        self.weights_of = scope["weights_of"]
        self.draw = scope["draw"]

    def connect(self, launch: Launch) -> Any:
        """Return the launch's group."""
        return self.framework.connect(launch, LIMIT_S)

    def adopt(self, launch: Launch, **plan: Any) -> tuple[Trainee, Any]:
        """Return an adopted trainee and its model."""
        trainee, _ = self.framework.adopt(self.make_objects(FEATURES), Plan(**plan), launch)
        return trainee, trainee.objects[0]

    def batches(self, size: int, world: int, rank: int, **options: Any) -> Iterator[Batch]:
        """Return a rank's micro-batches of a data object with batches of 4."""
        data = self.make_data(size, 4, options.get("shuffle", True))
        fixed, number = options.get("global_batch"), options.get("number", 0)
        feed = self.framework.feed(data, place(rank, world), 7, sharded=False, number=number, global_batch=fixed)
        return feed.batches(options.get("cursor", Cursor()), None, options.get("accumulate", 1))


def place(rank: int = 0, world: int = 1, port: int = 1) -> Launch:
    """Return the launch of one rank."""
    return Launch(
        launcher="torchrun", identity="suite", rank=rank, world=world, local_rank=rank, local_world=world,
        master_addr="127.0.0.1", master_port=port,
    )  # fmt: skip


class FeedSuite:
    """The contract of a `Feed`, part of that of a framework."""

    subject: str

    @pytest.fixture
    def bound(self) -> Subject:
        """Return the subject."""
        return Subject(self.subject)

    @pytest.mark.parametrize("world", [1, 2, 3])
    @pytest.mark.parametrize(("size", "accumulate"), [(24, 1), (25, 1), (13, 2), (3, 1)])
    def test_an_epoch_meets_every_sample_once_over_all_ranks(
        self, bound: Subject, world: int, size: int, accumulate: int
    ) -> None:
        ranks = [_epoch(bound.batches(size, world, rank, accumulate=accumulate)) for rank in range(world)]
        met = [
            index for batches in ranks for batch in batches for index in bound.ids_of(batch.value)[: batch.num_samples]
        ]
        assert sorted(met) == list(range(size))
        assert len({len(batches) for batches in ranks}) == 1
        assert all(bound.ids_of(batch.value) for batches in ranks for batch in batches), "padding is a batch too"
        rounds = list(zip(*ranks, strict=True))
        for start in range(0, len(rounds), accumulate):
            step = rounds[start : start + accumulate]
            total = sum(batch.num_samples for shares in step for batch in shares)
            assert {batch.group_samples for shares in step for batch in shares} <= {total, None}

    def test_the_order_of_the_samples_does_not_depend_on_the_world(self, bound: Subject) -> None:
        orders = []
        for world in (1, 3):
            ranks = [_epoch(bound.batches(26, world, rank)) for rank in range(world)]
            shares = [share for shares in zip(*ranks, strict=True) for share in shares]
            orders.append([i for share in shares for i in bound.ids_of(share.value)[: share.num_samples]])
        assert orders[0] == orders[1]
        assert orders[0] != sorted(orders[0])

    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_a_change_of_world_keeps_the_global_batches_and_the_size_of_a_step(
        self, bound: Subject, accumulate: int
    ) -> None:
        options: dict[str, Any] = {"global_batch": 8, "accumulate": accumulate}
        want, _ = _steps(bound, 2, Cursor(), 12, options)
        got, cursor = _steps(bound, 2, Cursor(), 1, options)
        for world, count in ((1, 2), (3, 1), (10, 1), (2, 1), (1, 6)):
            more, cursor = _steps(bound, world, cursor, count, options)
            got += more
        assert got == want
        epoch = [index for step in got[: math.ceil(math.ceil(26 / 8) / accumulate)] for index in step]
        assert sorted(epoch) == list(range(26))

    def test_the_positions_that_a_batch_tells_are_those_of_its_samples(self, bound: Subject) -> None:
        feed = bound.framework.feed(bound.make_data(26, 4, True), place(0, 3), 7, sharded=False, global_batch=8)
        order = feed.order
        assert (order.size, order.seed, order.global_batch, order.batch_size, order.world) == (26, 7, 8, 4, 3)
        assert (order.shuffle, order.listed) == (True, False)
        for rank in range(3):
            for batch in _epoch(bound.batches(26, 3, rank, global_batch=8, number=5)):
                ids = [
                    int(index)
                    for share in batch.shares
                    for index in Permutation(26, 7, share.epoch).at(np.arange(share.begin, share.end))
                ]
                assert ids == bound.ids_of(batch.value)[: batch.num_samples]
                assert {share.data for share in batch.shares} <= {5}

    def test_epochs_differ_where_the_data_shuffles(self, bound: Subject) -> None:
        for shuffle in (True, False):
            batches = bound.batches(20, 1, 0, shuffle=shuffle)
            epochs = [[i for batch in _epoch(batches) for i in bound.ids_of(batch.value)] for _ in range(2)]
            assert (epochs[0] != epochs[1]) is shuffle

    @pytest.mark.parametrize("world", [1, 2])
    def test_every_place_can_be_resumed(self, bound: Subject, world: int) -> None:
        rank = world - 1
        whole = list(itertools.islice(bound.batches(18, world, rank, accumulate=2), 12))
        for done in range(len(whole) - 1):
            cursor = Cursor.from_plain(json.loads(json.dumps(whole[done].after.to_plain())))
            again = next(bound.batches(18, world, rank, accumulate=2, cursor=cursor))
            want = whole[done + 1]
            assert bound.ids_of(again.value) == bound.ids_of(want.value)
            assert (again.num_samples, again.after, again.ends_epoch) == (want.num_samples, want.after, want.ends_epoch)

    @pytest.mark.parametrize("world", [1, 2, 3])
    def test_an_evaluation_meets_every_sample_once_and_pads_nothing(self, bound: Subject, world: int) -> None:
        for size in (1, 4, 9, 24):
            data = bound.make_data(size, 4, True)
            met: list[int] = []
            for rank in range(world):
                feed = bound.framework.feed(data, place(rank, world), 7, sharded=False) if size >= world else None
                for batch in feed.evaluation() if feed is not None else ():
                    met += bound.ids_of(batch)
            assert sorted(met) == (list(range(size)) if size >= world else [])

    def test_the_digest_names_the_order_whatever_the_world(self, bound: Subject) -> None:
        def digest(world: int, seed: int, cursor: Cursor) -> str:
            return bound.framework.feed(bound.make_data(20, 4, True), place(0, world), seed, sharded=False).digest(
                cursor
            )

        base = digest(1, 7, Cursor(1, 8, 9))
        assert digest(2, 7, Cursor(1, 8, 4)) == base
        assert digest(1, 7, Cursor(1, 12, 10)) != base
        assert digest(1, 8, Cursor(1, 8, 9)) != base

    def test_data_smaller_than_the_world_is_refused(self, bound: Subject) -> None:
        with pytest.raises(ScalarError) as caught:
            next(bound.batches(2, 3, 0))
        assert caught.value.code == "data-too-small"


class FrameworkSuite(FeedSuite):
    """The contract of `gscalar.runtime.framework`."""

    @pytest.fixture
    def trained(self, bound: Subject) -> tuple[Trainee, Any, list[Any]]:
        """Return a trainee in a world of one, its model, and three batches."""
        bound.connect(place())
        trainee, model = bound.adopt(place())
        batches = [batch.value for batch in itertools.islice(bound.batches(20, 1, 0), 3)]
        return trainee, model, batches

    # ---- Framework and Tools

    def test_objects_come_back_in_the_order_given_and_are_the_users_own(self, bound: Subject) -> None:
        bound.connect(place())
        model, optimizer = bound.make_objects(FEATURES)
        trainee, facts = bound.framework.adopt([optimizer, model], Plan(), place())
        assert trainee.objects[0] is optimizer
        assert trainee.objects[1] is model
        assert facts["parameters"] >= FEATURES

    def test_an_object_that_cannot_be_trained_is_refused(self, bound: Subject) -> None:
        bound.connect(place())
        with pytest.raises(ScalarError) as caught:
            bound.framework.adopt([*bound.make_objects(FEATURES), object()], Plan(), place())
        assert caught.value.code == "unsupported-object"

    def test_data_is_told_from_what_is_trained(self, bound: Subject) -> None:
        is_data = bound.framework.tools().is_data
        assert is_data(bound.make_data(4, 2, True))
        assert not any(is_data(item) for item in bound.make_objects(FEATURES))

    def test_random_numbers_follow_from_the_seed_and_go_on_from_a_saved_state(self, bound: Subject) -> None:
        tools = bound.framework.tools()
        tools.seed(3, False)
        first = [bound.draw() for _ in range(3)]
        saved = tools.random_state()
        following = [bound.draw() for _ in range(3)]
        tools.seed(3, False)
        assert [bound.draw() for _ in range(3)] == first
        tools.seed(2**63 - 1, False)
        assert bound.draw() != first[0]
        tools.set_random_state(saved)
        assert [bound.draw() for _ in range(3)] == following

    def test_a_number_a_loss_and_a_value_that_is_neither(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]
    ) -> None:
        _, model, batches = trained
        scalar = bound.framework.tools().scalar
        assert scalar(1.5)() == 1.5
        assert scalar(bound.loss_of(model, batches[0]))() > 0
        with pytest.raises((TypeError, ValueError)):
            scalar("high")()

    def test_the_digest_follows_the_weights(self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]) -> None:
        trainee, model, batches = trained
        digest = bound.framework.tools().weights_digest
        before = digest(trainee)
        assert digest(bound.adopt(place())[0]) == before
        trainee.backward(bound.loss_of(model, batches[0]), 1.0)
        _move(trainee)
        assert digest(trainee) != before

    # ---- Trainee

    def test_the_loss_counts_by_its_weight_and_the_gradient_by_its_scale(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]
    ) -> None:
        _, _, batches = trained
        got = []
        for weights, scale in (((1.0,), 1.0), ((2.0,), 0.5), ((0.25, 0.75), 1.0), ((4.0, 0.0), 0.25)):
            trainee, model = bound.adopt(place())
            for weight in weights:
                trainee.backward(bound.loss_of(model, batches[0]), weight)
            _move(trainee, scale=scale)
            got.append(bound.weights_of(model))
        assert got[1:] == [pytest.approx(got[0], rel=1e-6)] * 3

    def test_an_update_zeroes_the_gradient(self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]) -> None:
        trainee, model, batches = trained
        before = bound.weights_of(model)
        trainee.backward(bound.loss_of(model, batches[0]), 1.0)
        _move(trainee)
        first = bound.weights_of(model)
        # A loss without weight has no gradient: what moves is the momentum alone.
        trainee.backward(bound.loss_of(model, batches[0]), 0.0)
        _move(trainee)
        moved = [after - start for after, start in zip(first, before, strict=True)]
        assert bound.weights_of(model) == pytest.approx(
            [start + 0.9 * step for start, step in zip(first, moved, strict=True)], rel=1e-5, abs=1e-7
        )

    def test_clipping_bounds_the_move_and_tells_the_norm_before_it(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]
    ) -> None:
        trainee, model, batches = trained
        before = bound.weights_of(model)
        trainee.backward(bound.loss_of(model, batches[0]), 8.0)
        update = trainee.update(scale=0.5, clip_norm=0.125, lr_factor=None)
        move = math.dist(before, bound.weights_of(model))
        assert update.grad_norm is not None
        assert update.grad_norm > 0.125
        assert move == pytest.approx(0.1 * 0.125, rel=1e-4)
        trainee.backward(bound.loss_of(model, batches[0]), 1.0)
        assert _move(trainee) is None

    def test_a_norm_below_the_limit_is_left_alone(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]
    ) -> None:
        _, _, batches = trained
        got = []
        for clip_norm in (None, 1e6):
            trainee, model = bound.adopt(place())
            trainee.backward(bound.loss_of(model, batches[0]), 1.0)
            trainee.update(scale=1.0, clip_norm=clip_norm, lr_factor=None)
            got.append(bound.weights_of(model))
        assert got[0] == got[1]

    def test_the_rate_is_the_scripts_own_times_the_factor(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]
    ) -> None:
        trainee, model, batches = trained
        for lr_factor, want in ((0.5, 0.05), (0.25, 0.025), (None, 0.025)):
            trainee.backward(bound.loss_of(model, batches[0]), 1.0)
            update = trainee.update(scale=1.0, clip_norm=None, lr_factor=lr_factor)
            assert update.lr == pytest.approx(want)

    def test_a_restored_trainee_goes_on_bit_by_bit(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]], tmp_path: Path
    ) -> None:
        trainee, model, batches = trained
        tools = bound.framework.tools()
        trainee.backward(bound.loss_of(model, batches[0]), 1.0)
        trainee.update(scale=1.0, clip_norm=None, lr_factor=0.5)
        snapshot = trainee.snapshot()
        for batch in batches[1:]:  # what is trained later is not in the snapshot
            trainee.backward(bound.loss_of(model, batch), 1.0)
            trainee.update(scale=1.0, clip_norm=None, lr_factor=None)
        tools.write_arrays(tmp_path / "arrays", snapshot.arrays)
        values = json.loads(json.dumps(snapshot.values))
        again, model = bound.adopt(place())
        again.restore(Snapshot(arrays=tools.read_arrays(tmp_path / "arrays"), values=values))
        for batch in batches[1:]:
            again.backward(bound.loss_of(model, batch), 1.0)
            again.update(scale=1.0, clip_norm=None, lr_factor=None)
        assert tools.weights_digest(again) == tools.weights_digest(trainee)

    def test_a_checkpoint_of_another_model_is_refused(
        self, bound: Subject, trained: tuple[Trainee, Any, list[Any]]
    ) -> None:
        other, _ = bound.framework.adopt(bound.make_objects(FEATURES + 1), Plan(), place())
        with pytest.raises(ScalarError) as caught:
            trained[0].restore(other.snapshot())
        assert caught.value.code == "state-mismatch"

    # ---- Group, and a trainee of several ranks

    def test_ranks_agree(self, bound: Subject) -> None:
        facts = self.run_ranks(WORLD)
        ranks = range(WORLD)
        for rank, told in enumerate(facts):
            assert told["sums"] == [[sum(ranks) + 0.5 * WORLD, WORLD * (2.0**40 + 1)], [float(WORLD)]]
            assert told["broadcasts"] == ["from rank 0", "", "x" * 100_000]
            assert told["gathers"] == ([["r" * (1000 * r) for r in ranks], [""] * WORLD] if rank == 0 else [[], []])
        assert len({json.dumps(told["weights"]) for told in facts}) == 1
        assert facts[0]["weights"] == pytest.approx(facts[0]["alone"], rel=1e-5)
        assert [told["evaluated"] for told in facts] == list(ranks)

    def run_ranks(self, world: int) -> list[dict[str, Any]]:
        """Return what `play_rank` tells on each rank."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        code = "import sys; from gscalar.testing.framework_suite import play_rank; play_rank(*sys.argv[1:])"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, self.subject, str(rank), str(world), str(port)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            told = [process.communicate(timeout=LIMIT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * world, "\n".join(err for _, err in told)
        return [json.loads(out) for out, _ in told]


def play_rank(source: str, rank_text: str, world_text: str, port_text: str) -> None:
    """Be one rank of `test_ranks_agree`, and print what it saw as JSON."""
    bound, rank, world = Subject(source), int(rank_text), int(world_text)
    launch = place(rank, world, int(port_text))
    group = bound.connect(launch)
    # Two sums are under way at a time; float64 all through.
    first, second = group.start_sum([rank + 0.5, 2.0**40 + 1]), group.start_sum([1.0])
    told: dict[str, Any] = {"sums": [first(), second()]}
    payloads = [f"from rank {rank}", "" if rank == 0 else "no", ("x" if rank == 0 else "y") * 100_000]
    told["broadcasts"] = [group.broadcast(payload.encode()).decode() for payload in payloads]
    sizes = ["r" * (1000 * rank), ""]
    told["gathers"] = [[blob.decode() for blob in group.gather(payload.encode())] for payload in sizes]
    trainee, model = bound.adopt(launch)
    for step in range(2):
        for micro, border in ((0, False), (1, True)):  # one micro-step of each step exchanges nothing
            trainee.expect(border=border)
            trainee.backward(bound.loss_of(model, _batch(bound, rank, 2 * step + micro)), 0.5)
        _move(trainee)
    told["weights"] = bound.weights_of(model)
    # Uneven numbers of evaluation forwards: nothing in them may wait for another rank.
    trainee.evaluate(True)
    told["evaluated"] = sum(
        1 for number in range(rank) if bound.loss_of(model, _batch(bound, rank, number)) is not None
    )
    trainee.evaluate(False)
    group.start_sum([0.0])()
    group.close()
    told["alone"] = bound.weights_of(_trained_alone(bound, world))
    sys.stdout.write(json.dumps(told))


def _trained_alone(bound: Subject, world: int) -> Any:
    """Return the model of a world of one that has done what all ranks did."""
    bound.connect(place())
    trainee, model = bound.adopt(place())
    for step in range(2):
        for rank, micro in itertools.product(range(world), range(2)):
            trainee.backward(bound.loss_of(model, _batch(bound, rank, 2 * step + micro)), 0.5 / world)
        _move(trainee)
    return model


def _batch(bound: Subject, rank: int, number: int) -> Any:
    return next(itertools.islice(bound.batches(100, WORLD, rank), number, None)).value


def _epoch(batches: Iterator[Batch]) -> list[Batch]:
    epoch = []
    for batch in batches:
        epoch.append(batch)
        if batch.ends_epoch:
            break
    return epoch


def _steps(
    bound: Subject, world: int, cursor: Cursor, count: int, options: dict[str, Any]
) -> tuple[list[list[int]], Cursor]:
    """Return the samples of the next optimizer steps over all ranks, and the place after them."""
    ranks = [bound.batches(26, world, rank, cursor=cursor, **options) for rank in range(world)]
    steps: list[list[int]] = []
    while len(steps) < count:
        samples: list[int] = []
        for number in itertools.count(1):
            shares = [next(batches) for batches in ranks]
            sizes = {share.step_size for share in shares}
            assert len(sizes) == 1, "all ranks end a step together"
            samples += [index for share in shares for index in bound.ids_of(share.value)[: share.num_samples]]
            cursor = shares[0].after
            if shares[0].ends_epoch or number == (sizes.pop() or options["accumulate"]):
                break
        # In which piece of a step a sample is met depends on the world.
        steps.append(sorted(samples))
    return steps, cursor


def _move(trainee: Trainee, scale: float = 1.0) -> float | None:
    return trainee.update(scale=scale, clip_norm=None, lr_factor=None).grad_norm
