"""Tables of operations of simulated pipelines, so that the truth about them is known.

`draw_pipeline` draws how long each operation takes and each message needs; `simulate_pipeline` lets every rank work
through its program (one forward, one backward, interleaved where stages hold several chunks of the model), message by
message. What a fix is really worth comes from a second simulation of the same draw with that fix made
(`dataclasses.replace`): it is the oracle of every prediction, so nothing here comes from `gscalar.prediction`.

A rank gathers its parameters, computes in the order of its program, and then sums embeddings (first and last stage of
a replica), exchanges gradients (the ranks of a stage), clips (everybody) and updates. It asks for a message as
soon as the compute before of the same type is done, and sends without waiting; a message moves when both are there.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, Unpack

import numpy as np

from gscalar.importers.operations import operations_timeline
from gscalar.model.timeline import Floats, StepTimeline

COLUMNS: Final = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id", "gmc")
_FORWARD, _BACKWARD = "forward", "backward"


class PipelineOptions(TypedDict, total=False):
    """What a training in a pipeline is like."""

    dp: int  # 2: replicas
    pp: int  # 2: stages
    micro: int  # 4: micro-batches of a step
    steps: int  # 3
    vpp: int  # 1: chunks of the model on each stage
    forward_s: float  # 0.01: of one chunk; a backward takes twice as long
    jitter: float  # 0.01: standard deviation of each compute, as a share of it
    slow: dict[tuple[int, int], float]  # by replica and stage: how many times as long it takes
    stage_factors: tuple[float, ...] | None  # of the stages, where they hold more or less
    length_spread: float  # 0: standard deviation of the logarithm of a micro-batch's compute
    message_s: float  # 0.001
    collective_s: float  # 0.004: of the parameters and of the gradients; the others take a tenth
    delay_s: float  # 0: between what a compute waits for and its begin


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineDraw:
    """How long everything takes, in seconds. Chunks are counted over the whole pipeline, c on stage c modulo pp."""

    stages: int
    forward_s: Floats  # (dp, steps, num_chunks, micro)
    backward_s: Floats  # (dp, steps, num_chunks, micro)
    send_forward_s: Floats  # (dp, steps, num_chunks, micro): of the chunk's output
    send_backward_s: Floats  # (dp, steps, num_chunks, micro): of the gradient of its input
    gather_s: Floats  # (steps, pp)
    scatter_s: Floats  # (steps, pp)
    embedding_s: Floats  # (dp, steps)
    clip_s: Floats  # (steps,)
    optimizer_s: Floats  # (dp, steps, pp)
    delay_s: float


class Row(NamedTuple):
    """One row of the table, in the order of `COLUMNS`."""

    dp_rank: int
    stage: int
    rank: int
    step: int
    optype: str
    start_ts: float
    duration: float
    seq_id: int
    mb_id: int
    gmc: int


def pipeline_timeline(rng: np.random.Generator, **options: Unpack[PipelineOptions]) -> StepTimeline:
    """Return the timeline of a simulated pipeline, as the reader of tables of operations would."""
    return rows_timeline(simulate_pipeline(draw_pipeline(rng, **options)))


def rows_timeline(rows: list[Row]) -> StepTimeline:
    """Return the timeline of these rows."""
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    return operations_timeline(
        "simulated", {name: np.array(column, object if name == "optype" else None) for name, column in columns.items()}
    )


def write_operations(path: Path, rows: list[Row]) -> None:
    """Write rows as a CSV table, with every digit."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def draw_pipeline(rng: np.random.Generator, **options: Unpack[PipelineOptions]) -> PipelineDraw:
    """Return how long the operations take. What is drawn depends on nothing but their number."""
    dp, pp, steps, micro = (
        options.get("dp", 2),
        options.get("pp", 2),
        options.get("steps", 3),
        options.get("micro", 4),
    )
    chunks = pp * options.get("vpp", 1)
    stage = np.arange(chunks) % pp

    def around(mean_s: float, *shape: int) -> Floats:
        return mean_s * np.maximum(1 + options.get("jitter", 0.01) * rng.standard_normal(shape), 0.1)

    shape = (dp, steps, chunks, micro)
    forward_s = around(options.get("forward_s", 0.01), *shape)
    backward_s = around(2 * options.get("forward_s", 0.01), *shape)
    spread = options.get("length_spread", 0.0) * rng.standard_normal((dp, steps, 1, micro))
    factor = np.exp(spread) * np.asarray(options.get("stage_factors") or np.ones(pp))[stage][:, None]
    for (replica, slow_stage), slower in options.get("slow", {}).items():
        factor[replica, :, stage == slow_stage] *= slower
    message_s, collective_s = options.get("message_s", 0.001), options.get("collective_s", 0.004)
    return PipelineDraw(
        stages=pp,
        forward_s=forward_s * factor,
        backward_s=backward_s * factor,
        send_forward_s=around(message_s, *shape),
        send_backward_s=around(message_s, *shape),
        gather_s=around(collective_s, steps, pp),
        scatter_s=around(collective_s, steps, pp),
        embedding_s=around(collective_s / 10, dp, steps),
        clip_s=around(collective_s / 10, steps),
        optimizer_s=around(collective_s / 2, dp, steps, pp),
        delay_s=options.get("delay_s", 0.0),
    )


# ---- the programs of ranks


class _Compute(NamedTuple):
    kind: str
    chunk: int  # over the whole pipeline
    micro: int


def _program(stage: int, stages: int, vpp: int, micro: int) -> list[_Compute]:
    """Return what a stage computes, in order: forwards to fill the pipeline, then in turns, then what is left."""
    total = micro * vpp
    if vpp == 1:
        ahead = min(stages - 1 - stage, total)
    else:
        if micro % stages:
            raise ValueError(f"{micro} micro-batches do not interleave on {stages} stages")
        ahead = min(2 * (stages - 1 - stage) + (vpp - 1) * stages, total)

    def place(at: int, kind: str) -> _Compute:
        if vpp == 1:
            return _Compute(kind, stage, at)
        # So many micro-batches as there are stages go through a chunk before the next chunk has its turn.
        turn, within = divmod(at, stages * vpp)
        chunk, lane = divmod(within, stages)
        if kind == _BACKWARD:
            chunk = vpp - 1 - chunk
        return _Compute(kind, chunk * stages + stage, turn * stages + lane)

    program = [place(at, _FORWARD) for at in range(ahead)]
    for at in range(total - ahead):
        program += [place(ahead + at, _FORWARD), place(at, _BACKWARD)]
    return program + [place(at, _BACKWARD) for at in range(total - ahead, total)]


class _Step:
    """One step of all ranks: who has come how far, and what was sent to whom."""

    def __init__(self, draw: PipelineDraw, step: int) -> None:
        self.draw, self.step = draw, step
        self.replicas, _, self.chunks, self.micro = draw.forward_s.shape
        self.stages = draw.stages
        self.rows: list[Row] = []
        self.sent_s: dict[tuple[int, _Compute], float] = {}  # (replica, what needs it): when it was handed over
        places = [(replica, stage) for replica in range(self.replicas) for stage in range(self.stages)]
        self.now_s = dict.fromkeys(places, 0.0)
        self.free_s = {(place, kind): 0.0 for place in places for kind in (_FORWARD, _BACKWARD)}

    def run(self) -> list[Row]:
        draw, step = self.draw, self.step
        stages = range(self.stages)
        for stage in stages:
            self._meet("params-all-gather", self._of_stage(stage), float(draw.gather_s[step, stage]))
        self._compute_all()
        if self.stages > 1:
            for replica in range(self.replicas):
                ends = [(replica, 0), (replica, self.stages - 1)]
                self._meet("embedding-grads-all-reduce", ends, float(draw.embedding_s[replica, step]))
        for stage in stages:
            self._meet("grads-reduce-scatter", self._of_stage(stage), float(draw.scatter_s[step, stage]))
        self._meet("optimizer-clip-main-grad", list(self.now_s), float(draw.clip_s[step]))
        for replica, stage in self.now_s:
            self._meet("optimizer", [(replica, stage)], float(draw.optimizer_s[replica, step, stage]))
        return self.rows

    def _of_stage(self, stage: int) -> list[tuple[int, int]]:
        return [(replica, stage) for replica in range(self.replicas)]

    def _compute_all(self) -> None:
        """Let each rank go on as far as what it was sent allows, again and again, until all are done."""
        left = {
            place: _program(place[1], self.stages, self.chunks // self.stages, self.micro)[::-1] for place in self.now_s
        }
        while any(left.values()):
            moved = False
            for place, program in left.items():
                while program and self._compute(place, program[-1]):
                    program.pop()
                    moved = True
            if not moved:
                raise AssertionError("the programs of the ranks wait for one another")

    def _compute(self, place: tuple[int, int], what: _Compute) -> bool:
        """Do one compute, if its input has been sent; tell whether it was."""
        replica = place[0]
        start_s = self.now_s[place]
        if not self._is_first(what):
            handed_s = self.sent_s.get((replica, what))
            if handed_s is None:
                return False
            posted_s = self.free_s[place, what.kind]
            there_s = max(handed_s, posted_s) + self._message_s(replica, what)
            self._write(place, f"{what.kind}-recv", posted_s, there_s)
            source = _Compute(what.kind, what.chunk + (-1 if what.kind == _FORWARD else 1), what.micro)
            # The sender's row was not written yet: its end is known only now.
            self._write((replica, source.chunk % self.stages), f"{what.kind}-send", handed_s, there_s, source)
            start_s = max(start_s, there_s)
        start_s += self.draw.delay_s
        seconds = self.draw.forward_s if what.kind == _FORWARD else self.draw.backward_s
        end_s = start_s + float(seconds[replica, self.step, what.chunk, what.micro])
        self._write(place, f"{what.kind}-compute", start_s, end_s, what)
        self.now_s[place] = self.free_s[place, what.kind] = end_s
        onward = _Compute(what.kind, what.chunk + (1 if what.kind == _FORWARD else -1), what.micro)
        if 0 <= onward.chunk < self.chunks:
            self.sent_s[replica, onward] = end_s
        return True

    def _is_first(self, what: _Compute) -> bool:
        return what.chunk == (0 if what.kind == _FORWARD else self.chunks - 1)

    def _message_s(self, replica: int, what: _Compute) -> float:
        if what.kind == _FORWARD:
            return float(self.draw.send_forward_s[replica, self.step, what.chunk - 1, what.micro])
        return float(self.draw.send_backward_s[replica, self.step, what.chunk + 1, what.micro])

    def _meet(self, optype: str, places: list[tuple[int, int]], seconds: float) -> None:
        end_s = max(self.now_s[place] for place in places) + seconds
        for place in places:
            self._write(place, optype, self.now_s[place], end_s)
            self.now_s[place] = end_s

    def _write(
        self, place: tuple[int, int], optype: str, start_s: float, end_s: float, what: _Compute | None = None
    ) -> None:
        computes = what is not None and optype.endswith("-compute")
        self.rows.append(
            Row(
                dp_rank=place[0], stage=place[1], rank=place[1] * self.replicas + place[0], step=self.step,
                optype=optype, start_ts=start_s, duration=end_s - start_s, seq_id=-1,
                mb_id=what.micro if what is not None and computes else -1,
                gmc=what.chunk if what is not None and computes else -1,
            )
        )  # fmt: skip


def simulate_pipeline(draw: PipelineDraw) -> list[Row]:
    """Return the rows of the table that recorders would have written."""
    return [row for step in range(draw.forward_s.shape[1]) for row in _numbered(_Step(draw, step).run())]


def _numbered(rows: list[Row]) -> Iterator[Row]:
    """Number the rows of each rank and type in the order in which they were begun."""
    counts: dict[tuple[int, str], int] = {}
    for row in sorted(rows, key=lambda row: row.start_ts):
        key = (row.rank, row.optype)
        counts[key] = counts.get(key, -1) + 1
        yield row._replace(seq_id=counts[key])
