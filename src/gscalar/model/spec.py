"""The job spec: what is launched, with which hyperparameters, under which plan.

A spec is dumb: frozen dataclasses whose fields say what they mean. Reading YAML, overriding with
`--set` and naming the place of a mistake are in `gscalar.model.parsing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from gscalar.model.keys import key

SPEC_VERSION: Final = 1
TAG_NAME: Final = r"[\w][\w./:@-]{0,249}"
# What the launcher sets for each worker; a spec that set them would break the gang.
_ENV_NAME: Final = (
    r"(?!(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$|GSCALAR_)[^\x00=]{1,250}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What one worker is given."""

    cpus_per_worker: int | None = key(
        None, doc="CPU cores a worker may use; by default the machine's cores over the workers.", at_least=1
    )
    gpus_per_worker: int = key(0, doc="GPUs a worker may use.", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """When checkpoints are written (the end of a `run.batches` loop writes one, if any) and how many are kept."""

    every_s: float | None = key(600.0, doc="Seconds between checkpoints; null for never by time.", above=0)
    every_steps: int | None = key(None, doc="Optimizer steps between checkpoints.", at_least=1)
    keep: int = key(2, doc="How many of the newest checkpoints stay.", at_least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce:
    """Synchronous data parallel: gradients are averaged over all workers at every step."""

    kind: Literal["allreduce"] = key("allreduce", doc="Every worker holds the whole model.")
    unused_parameters: bool = key(
        False, doc="Some parameters get no gradient in some steps (costs a pass over the graph a step)."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterServers:
    """Asynchronous data parallel of TensorFlow: workers read and write variables that servers hold.

    A gang then has a chief, `workers` workers and `servers` parameter servers (`gscalar.model.roles`).
    """

    kind: Literal["parameter_servers"] = key("parameter_servers", doc="Workers do not meet at every step.")
    servers: int = key(1, doc="Processes that hold the variables, beside the workers and a chief.", at_least=1)


Sync = AllReduce | ParameterServers


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantSchedule:
    """The base rate after an optional linear warm-up."""

    kind: Literal["constant"] = key("constant", doc="The base rate, after the warm-up.")
    warmup_steps: int = key(0, doc="Steps of linear warm-up.", at_least=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearSchedule:
    """Warm-up, then a straight line to the floor."""

    kind: Literal["linear"] = key("linear", doc="A straight line from the base rate to the floor.")
    total_steps: int | None = key(None, doc="Where the floor is reached; by default the training's length.", at_least=1)
    warmup_steps: int = key(0, doc="Steps of linear warm-up.", at_least=0)
    floor: float = key(0.0, doc="The last rate as a share of the base rate.", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Warm-up, then half a cosine to the floor."""

    kind: Literal["cosine"] = key("cosine", doc="Half a cosine from the base rate to the floor.")
    total_steps: int | None = key(None, doc="Where the floor is reached; by default the training's length.", at_least=1)
    warmup_steps: int = key(0, doc="Steps of linear warm-up.", at_least=0)
    floor: float = key(0.0, doc="The last rate as a share of the base rate.", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmupStableDecaySchedule:
    """Warm-up, a plateau, and a decay over the last steps (WSD)."""

    kind: Literal["wsd"] = key("wsd", doc="Warm-up, plateau, decay.")
    total_steps: int | None = key(None, doc="Where the floor is reached; by default the training's length.", at_least=1)
    warmup_steps: int = key(0, doc="Steps of linear warm-up.", at_least=0)
    decay_steps: int | None = key(None, doc="Steps of the decay; by default a tenth of all.", at_least=1)
    decay: Literal["linear", "cosine", "sqrt"] = key("linear", doc="The shape of the decay.")
    floor: float = key(0.0, doc="The last rate as a share of the base rate.", at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class InverseSqrtSchedule:
    """Warm-up, then one over the square root of the step."""

    kind: Literal["inverse_sqrt"] = key("inverse_sqrt", doc="One over the square root of the step.")
    warmup_steps: int = key(1000, doc="Steps of linear warm-up, and the scale of the decay.", at_least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class OneCycleSchedule:
    """Up to the base rate and down to nearly nothing, both by half a cosine."""

    kind: Literal["one_cycle"] = key("one_cycle", doc="Up to the base rate, then down, by half cosines.")
    total_steps: int | None = key(None, doc="The length of the cycle; by default the training's length.", at_least=1)
    rise: float = key(0.3, doc="The share of the cycle that rises.", above=0, at_most=1)
    start: float = key(0.04, doc="The first rate as a share of the base rate.", at_least=0, at_most=1)
    floor: float = key(4e-6, doc="The last rate as a share of the base rate.", at_least=0, at_most=1)


Schedule = (
    ConstantSchedule
    | LinearSchedule
    | CosineSchedule
    | WarmupStableDecaySchedule
    | InverseSqrtSchedule
    | OneCycleSchedule
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The training knobs that need no change in the script."""

    accumulate: int = key(1, doc="Micro-steps whose gradients make one optimizer step.", at_least=1)
    precision: Literal["fp32", "bf16"] = key("fp32", doc="fp32, or bf16 autocast in forward.")
    clip_norm: float | None = key(None, doc="Clip gradients to this global norm.", above=0)
    schedule: Schedule | None = key(None, doc="The learning rate as a function of the optimizer step.")
    sync: Sync = key(factory=AllReduce, doc="How workers agree on the weights.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerShape:
    """The shape of a decoder-only transformer, from which its FLOPs follow: 6 N + 12 L d s per token."""

    layers: int | None = key(None, doc="Blocks, L; needed.", at_least=1)
    d_model: int | None = key(None, doc="Width of the residual stream, d; needed.", at_least=1)
    seq: int | None = key(None, doc="Tokens of a sequence, s; needed.", at_least=1)
    vocab: int = key(0, doc="Words of the embedding, where `params` is not given.", at_least=0)
    params: float | None = key(None, doc="Parameters, N; by default 12 L d^2 + vocab d.", above=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """What the model must compute, for its utilization (MFU) in `gscalar show`. It changes nothing in the training."""

    per_sample: float | None = key(None, doc="FLOPs of forward and backward per sample.", above=0)
    per_token: float | None = key(None, doc="The same per token, where the script counts tokens.", above=0)
    transformer: TransformerShape | None = key(None, doc="Or the shape of a transformer.")
    peak_flops_per_s: float | None = key(
        None, doc="What one worker's device can do at the precision used, by its data sheet.", above=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """A whole job. Every key has a default but `command`."""

    version: int = key(SPEC_VERSION, doc="The version of this format.", at_least=1, at_most=SPEC_VERSION)
    name: str | None = key(
        None,
        doc="The run's name; by default the folder's or script's.",
        pattern=r"[^\x00-\x1f]{1,250}",
        expects="1 to 250 characters, none of them a control character",
    )
    project: str = key(
        "default",
        doc="The name space that the run belongs to.",
        pattern=r"[^\x00-\x1f/]{1,250}",
        expects="1 to 250 characters, none of them a slash or a control character",
    )
    command: tuple[str, ...] = key(
        (),
        doc="The program and its arguments, as a list or one shell-quoted line.",
        pattern=r"[^\x00]*",
        expects="strings without NUL characters",
    )
    config: dict[str, Any] = key(factory=dict, doc="Hyperparameters for the script.")
    workers: int = key(1, doc="Worker processes.", at_least=1, at_most=4096)
    resources: Resources = key(factory=Resources, doc="What one worker is given.")
    seed: int = key(0, doc="Every random number of the run follows from it.", at_least=0, at_most=2**63 - 1)
    deterministic: bool = key(False, doc="Use only deterministic algorithms.")
    retries: int = key(3, doc="Restarts after failures before the run is failed.", at_least=0)
    hang_after_s: float = key(300.0, doc="Seconds without a heartbeat after which a worker is hung.", above=0)
    on_nonfinite: Literal["warn", "stop"] = key("warn", doc="What a NaN or infinite loss does.")
    elastic: Literal["off"] = key("off", doc="Whether the number of workers may change while running.")
    checkpoint: CheckpointPolicy = key(factory=CheckpointPolicy, doc="When checkpoints are written.")
    plan: Plan = key(factory=Plan, doc="The training knobs.")
    flops: Flops = key(factory=Flops, doc="What the model must compute, for its utilization (MFU).")
    tags: dict[str, str] = key(
        factory=dict,
        doc="Words to find the run by.",
        pattern=r"[^\x00]{0,8000}",
        expects="at most 8000 characters, none of them NUL",
        name_pattern=TAG_NAME,
        names_expect="at most 250 letters, digits and _ . / : @ -, of which a letter or digit is first",
    )
    env: dict[str, str] = key(
        factory=dict,
        doc="Environment variables for the workers.",
        pattern=r"[^\x00]*",
        expects="strings without NUL characters",
        name_pattern=_ENV_NAME,
        names_expect="names without `=`, and none that the launcher sets (RANK, MASTER_ADDR, GSCALAR_...)",
    )


def contradiction(part: object) -> tuple[str, str] | None:
    """Return a key of this part and why it cannot work with the others, or None."""
    if isinstance(part, Flops):
        given = [name for name in ("per_sample", "per_token", "transformer") if getattr(part, name) is not None]
        return (given[1], f"`{given[0]}` says it already") if len(given) > 1 else None
    if isinstance(part, TransformerShape):
        missing = [name for name in ("layers", "d_model", "seq") if getattr(part, name) is None]
        return (missing[0], "a transformer needs `layers`, `d_model` and `seq`") if missing else None
    total = getattr(part, "total_steps", None)
    warmup: int = getattr(part, "warmup_steps", 0)
    decay: int = getattr(part, "decay_steps", None) or 0
    if total is None or warmup + decay <= total:
        return None
    if decay and warmup <= total:
        return (
            "decay_steps",
            f"the warm-up of {warmup} and the decay of {decay} steps pass total_steps, {total}",
        )
    return "warmup_steps", f"{warmup} steps of warm-up pass total_steps, {total}"


Origin = Literal["flag", "environment", "spec", "script", "launcher", "default"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedSpec:
    """A spec whose every value is decided, and where each value that is no default came from.

    `origins` maps a dotted key, such as `plan.accumulate` or `config.lr`, to its origin; a key
    that is absent has its default.
    """

    spec: JobSpec
    origins: dict[str, Origin]
