"""What an operation of a device does, by its name, where a trace says nothing else about it.

Names of kernels (NCCL, RCCL and libraries that send from kernels) and of XLA's operations. A name that tells of
communication and not of its kind is listed for people; a kind is never guessed.
"""

from __future__ import annotations

import re
from typing import Final

_KERNELS: Final = re.compile(r"nccl|rccl|deep_?ep\b|deep_ep::|nvshmem|msccl", re.IGNORECASE)
_XLA: Final = re.compile(
    r"%?(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast"
    r"|send|recv)(-start|-done)?(?![\w-])"
)
_XLA_KIND: Final = {"ragged-all-to-all": "all_to_all", "collective-permute": "permute"}
_KERNEL_KINDS: Final = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("alltoall", "all_to_all"),
    ("reduce", "reduce"),
)


def communicates(name: str) -> bool:
    """Tell whether an operation of this name exchanges data with other devices."""
    return _KERNELS.search(name) is not None or _XLA.match(name) is not None


def collective_kind(name: str) -> str | None:
    """Return the kind of collective that the name of an operation that communicates tells, None where it tells none."""
    of_xla = _XLA.match(name)
    if of_xla:
        word = of_xla[1]
        return _XLA_KIND.get(word, word.replace("-", "_"))
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KERNEL_KINDS if part in plain), None)
