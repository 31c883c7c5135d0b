"""Which way a metric is better, as far as its name tells, and whether it measures the machine and not the training.

    down   losses, errors, perplexities, bits a byte
    up     accuracies and other scores that are known to rise
    None   everything else; nothing is guessed

The words of the name's last part decide: `val/top1_accuracy` has the words top1 and accuracy. A word such as scale or
weight says that the number only belongs to a loss. Names whose words speak for both ways have no direction.
"""

from __future__ import annotations

import re
from typing import Final

_DOWN: Final = frozenset(
    [
        "loss", "losses", "error", "errors", "err", "nll", "mse", "rmse", "mae", "mape", "wer", "cer", "ter", "fid",
        "ppl", "perplexity", "bpb", "bpc", "brier", "ece", "regret", "divergence", "misclassification",
        "crossentropy", "xent",
    ]
)  # fmt: skip
_UP: Final = frozenset(
    [
        "accuracy", "acc", "auc", "auroc", "auprc", "f1", "precision", "recall", "bleu", "rouge", "chrf", "reward",
        "return", "returns", "iou", "miou", "dice", "psnr", "ssim", "r2", "map", "ndcg", "mrr", "mcc", "mfu",
        "throughput", "top1", "top5",
    ]
)  # fmt: skip
_NEITHER: Final = frozenset(
    [
        "scale", "scaling", "weight", "weights", "coef", "coefficient", "lr", "count", "num", "std", "var",
        "variance", "steps",
    ]
)  # fmt: skip
_BITS: Final = re.compile(r"(bits|nats)_per_[a-z]+$")
_RATE: Final = re.compile(r"_per_(s|sec|second)$")
_DURATION: Final = re.compile(r"(_|^)(s|ms|us|ns|sec|secs|seconds|time|duration|latency)$")
_MACHINE: Final = frozenset(["memory", "mem", "bytes", "cpu", "gpu", "mfu", "throughput", "watts", "hardware"])


def find_direction(name: str) -> str | None:
    """Return `down` or `up` where lower or higher values of a metric are better; None where the name does not tell."""
    last = _last_part(name)
    if _RATE.search(last):
        return "up"
    if _BITS.search(last) or _DURATION.search(last):
        return "down"
    words = set(_words(last))
    if words & _NEITHER:
        return None
    down, up = bool(words & _DOWN), bool(words & _UP)
    return None if down == up else "down" if down else "up"


def is_of_machine(name: str) -> bool:
    """Tell whether the values depend on the machine and the hour: two equal trainings differ in them."""
    last = _last_part(name)
    # In whole words, whole path: `gpu0/utilization` is of the machine, `expert_utilization` is not.
    words = {word.rstrip("0123456789") for word in _words(name.lower())}
    return bool(_RATE.search(last) or _DURATION.search(last) or words & _MACHINE)


def _last_part(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2]).lower().replace("-", "_").replace(".", "_")


def _words(part: str) -> list[str]:
    return [each for each in re.split(r"[^a-z0-9]+", part) if each]
