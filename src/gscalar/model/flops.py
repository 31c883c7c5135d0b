"""Model FLOPs: what a training step must compute, whatever the software makes of it.

    MFU = FLOPs per token * tokens per second / (workers * peak FLOPs per second of a device)

For a decoder-only transformer with N parameters, L layers and width d at sequence length s, forward and backward take

    6 N + 12 L d s   FLOPs per token

6 N for the matrix products with the weights and 12 L d s for attention, without recomputation, which is no model
FLOP. Sources: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1; Chowdhery et al. 2022,
"PaLM", appendix B. Where N is not given it is 12 L d^2 + V d: the blocks, and one embedding of V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def transformer_params(layers: int, d_model: int, vocab: int) -> float:
    """Return the parameters of a transformer of this shape, without biases and norms."""
    return 12.0 * layers * d_model**2 + float(vocab) * d_model


def transformer_flops_per_token(params: float, layers: int, d_model: int, seq: int) -> float:
    """Return the FLOPs of forward and backward per token."""
    return 6.0 * params + 12.0 * layers * d_model * seq


def mfu(flops: Any, throughput: Mapping[str, float], world: int) -> float | None:
    """Return the model FLOPs utilization; None where the spec's `flops` or the throughput do not say enough.

    `flops` is the section as a plain mapping, as records carry it.
    """
    if not isinstance(flops, Mapping) or not flops.get("peak_flops_per_s"):
        return None
    achieved = flops_per_s(flops, throughput)
    return None if achieved is None else achieved / (max(1, world) * flops["peak_flops_per_s"])


def flops_per_s(flops: Mapping[str, Any], throughput: Mapping[str, float]) -> float | None:
    """Return the model FLOPs that all workers together do in a second."""
    samples_per_s, tokens_per_s = throughput.get("samples_per_s"), throughput.get("tokens_per_s")
    if flops.get("per_sample"):
        return None if samples_per_s is None else float(flops["per_sample"] * samples_per_s)
    if flops.get("per_token"):
        return None if tokens_per_s is None else float(flops["per_token"] * tokens_per_s)
    shape = flops.get("transformer")
    if not isinstance(shape, Mapping) or not all(shape.get(key) for key in ("layers", "d_model", "seq")):
        return None
    layers, d_model, seq = shape["layers"], shape["d_model"], shape["seq"]
    params = shape.get("params") or transformer_params(layers, d_model, shape.get("vocab") or 0)
    if tokens_per_s is None and samples_per_s is not None:
        tokens_per_s = samples_per_s * seq  # nobody counts tokens, and a sample is a sequence
    if tokens_per_s is None:
        return None
    return transformer_flops_per_token(params, layers, d_model, seq) * tokens_per_s
