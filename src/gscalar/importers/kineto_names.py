"""What the names in a trace of PyTorch's profiler mean: steps, loaders, collectives, copies, stalls.

The lists are short on purpose: a name that is not in them is no evidence. A step is one that the profiler's own
`step()` named; a loader is one that torch named; a collective's kind is what torch says beside the kernel, else what
the kernel's name says, else nothing.
"""

from __future__ import annotations

import re
from typing import Final

from gscalar.importers.operation_names import communicates
from gscalar.model.timeline import Activity

STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})$")
_LOADER: Final = re.compile(
    r"enumerate\(DataLoader\)#.*__next__|_(?:Single|Multi)Process(?:ing)?DataLoaderIter\.__next__|.*\btrain_dataloader_next$"
)
_IN_PROCESS: Final = "_SingleProcessDataLoaderIter"
_OPTIMIZER: Final = re.compile(r"Optimizer\.step#")
_GC: Final = re.compile(r"(?:python[ _])?gc$|gc\.collect\b|(?:python[ _])?garbage[ _]collect", re.IGNORECASE)
# Recomputing activations is called checkpointing too: only what saves or loads one, or is called just that, counts.
_CHECKPOINT: Final = re.compile(
    r"\W*(?:checkpoint(?:ing)?|torch\.save)\W*$|.*\b(?:save|write|load)[ _]?(?:a[ _]|the[ _])?checkpoint\b"
    r"|.*\bcheckpoint[ _.:]?(?:save|write|load)\b|.*\bsave_state_dict\b",
    re.IGNORECASE,
)
# Backends that exchange on the host: their annotation is the exchange. Those of devices only launch one.
_ON_HOST: Final = re.compile(r"(gloo|mpi|ucc):(.+)$")
_ON_DEVICE: Final = re.compile(r"(?:nccl|rccl|xccl|hccl):(.+)$")

_KINDS: Final = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
}
POINT_TO_POINT: Final = frozenset({"send", "recv"})
_BYTES: Final = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def annotated_kind(text: str) -> str | None:
    """Return the kind of collective that torch's own word for it means; None where it is none that is known."""
    return _KINDS.get(re.sub(r"[^a-z]", "", text.lower()))


def host_activity(name: str) -> Activity | None:
    """Return what a span of the host does; None where it is of no use."""
    if _LOADER.match(name):
        return Activity.DATA_WAIT
    if _ON_HOST.match(name):
        return Activity.COMMUNICATION
    if _OPTIMIZER.match(name):
        return Activity.OPTIMIZER
    if _GC.match(name):
        return Activity.GC
    return Activity.CHECKPOINT if _CHECKPOINT.match(name) else None


def kernel_activity(name: str) -> Activity:
    """Return what a kernel of this name does."""
    return Activity.COMMUNICATION if communicates(name) else Activity.COMPUTE


def copy_activity(name: str) -> Activity:
    """Return whether a copy goes from the host to the device."""
    plain = name.lower()
    return Activity.H2D if "htod" in plain or "hosttodevice" in plain or "h2d" in plain else Activity.COPY


def collective_of_annotation(name: str) -> str | None:
    """Return torch's word for a collective from `nccl:all_reduce` or `gloo:all_reduce`; None of another name."""
    on_device = _ON_DEVICE.match(name)
    if on_device:
        return on_device[1]
    on_host = _ON_HOST.match(name)
    return on_host[2] if on_host else None


def loads_in_process(name: str) -> bool:
    """Tell whether a loader's name says that the training's own process loads; else others do, or it is not known."""
    return _IN_PROCESS in name


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of an element of a type, as torch's profiler names types."""
    plain = dtype.lower()
    return 1 if plain.startswith("float8") else _BYTES.get(plain)
