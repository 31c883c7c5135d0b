"""Arrays of a checkpoint, in the format of torch.distributed.checkpoint (DCP), from one process.

The folder is a plain DCP checkpoint: torch's own `dcp.load` and `dcp_to_torch_save` read it. DCP's
planner, writer and reader are driven here step by step instead of through `dcp.save(no_dist=True)`,
which warns at every call, and a warning cannot be silenced in a background thread without silencing
it in all threads.

- Files are not fsynced here: the commit of `gscalar.state.checkpoints` does it, while it hashes.
- DCP's own `thread_count` stays 1: with more, DCP 2.13 loses the exception of a thread and writes a
  checkpoint that lacks what the thread had to write. Large states are split into plans instead, and
  the threads that write them are ours.
- `.metadata` is a pickle. It is read only after its checksum matched, and even then an unpickler
  makes nothing but DCP's own metadata classes.

Every dtype that DCP can plan (all but quantized and sub-byte integers) keeps its bits, NaN payloads
included; shapes are kept, strides are not: what comes back is contiguous, on the CPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from gscalar.base.errors import Damaged, UserError

# What a DCP 2.6 to 2.13 `.metadata` of tensors names, dtypes aside.
_METADATA_NAMES: Final = {
    "torch": {"Size"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
}
# Bytes of a parameter that are on their way to the hash at one time.
_BLOCK_BYTES: Final = 64 << 20
# Arrays of this size in all are spread over so many files.
_SPLIT_BYTES: Final = 16 << 20
_NUM_FILES: Final = 4


def write_arrays(path: Path, arrays: dict[str, Tensor]) -> None:
    """Write the tensors into a new folder as a DCP checkpoint; the same tensors give the same bytes.

    Raises:
        UserError: `bad-state` for a tensor that has no plain bytes (sparse, quantized, meta).
        OSError: as the system says.
    """
    plain = {name: _plain(name, tensor) for name, tensor in arrays.items()}
    writer, planner = _Writer(path, sync_files=False, per_thread_copy_ahead=0), DefaultSavePlanner()
    writer.set_up_storage_writer(True)
    planner.set_up_planner(plain, writer.storage_meta(), True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    # DCP takes the shares for those of several ranks, and plans one file for each.
    merged, metadata = planner.create_global_plan(_shares(local, plain))
    plans = [planner.finish_plan(plan) for plan in writer.prepare_global_plan(merged)]
    try:
        with ThreadPoolExecutor(len(plans), "checkpoint-write") as pool:
            written = list(pool.map(lambda plan: writer.write_data(plan, planner).wait(), plans))
        writer.finish(metadata, written)
    except RuntimeError as error:
        cause = _system_error(error)
        if cause is None:
            raise
        raise cause from None
    assert sum(map(len, written)) == len(arrays), (written, len(arrays))


def read_arrays(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder that `write_arrays` made, by name; contiguous, on the CPU.

    Call it only on bytes that were verified: torch's own reader checks little.

    Raises:
        Damaged: `checkpoint-damaged` where the metadata is not that of tensors in this folder.
        OSError: as the system says.
    """
    reader, planner = _Reader(path), DefaultLoadPlanner()
    metadata = reader.read_metadata()
    arrays: dict[str, Any] = {
        name: torch.empty(stored.size, dtype=stored.properties.dtype)
        for name, stored in metadata.state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    reader.set_up_storage_reader(metadata, True)
    planner.set_up_planner(arrays, metadata, True)
    local = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([local]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return arrays


def weights_digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of parameters in name order, so that two trainings can be told equal.

    For each parameter, sorted by name: the JSON text `[name, dtype, shape]` and a newline, then its
    values, row by row, as they lie in memory (little-endian).
    """
    sha256 = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        head = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        sha256.update(json.dumps(head).encode() + b"\n")
        # One block at a time comes from a device or from a tensor with strides.
        flat = _plain(name, tensor).reshape(-1)
        for block in flat.split(max(1, _BLOCK_BYTES // flat.element_size())):
            if block.numel():
                sha256.update(memoryview(block.cpu().contiguous().view(torch.uint8).numpy()))
    return sha256.hexdigest()


class _Writer(FileSystemWriter):
    """Leaves out what differs from one save to the next: the draft's path and a random id."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()


class _Reader(FileSystemReader):
    """Reads the metadata with an unpickler that can make nothing else, and stays in its folder."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        place = Path(self.path) / ".metadata"
        try:
            with place.open("rb") as file:
                metadata: Metadata = _MetadataUnpickler(file).load()
            for stored in metadata.storage_data.values():
                if Path(stored.relative_path).name != stored.relative_path:
                    raise pickle.UnpicklingError(f"it names a file elsewhere: {stored.relative_path!r}")
        # A pickle of other bytes can raise nearly anything that is no system error.
        except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, LookupError, EOFError) as error:
            raise Damaged(
                code="checkpoint-damaged",
                what=f"The metadata of the arrays cannot be read: {error}.",
                where=str(place),
                next_step="Use the checkpoint before it.",
            ) from error
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = name in _METADATA_NAMES.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no metadata")


def _shares(plan: SavePlan, arrays: dict[str, Tensor]) -> list[SavePlan]:
    """Return the plan in parts of about equal size, so that threads write and hash them side by side."""
    if sum(tensor.nbytes for tensor in arrays.values()) < _SPLIT_BYTES:
        return [plan]
    shares: list[list[WriteItem]] = [[] for _ in range(_NUM_FILES)]
    filled = [0] * _NUM_FILES
    for item in sorted(plan.items, key=lambda item: -arrays[item.index.fqn].nbytes):
        emptiest = filled.index(min(filled))
        shares[emptiest].append(item)
        filled[emptiest] += arrays[item.index.fqn].nbytes
    return [dataclasses.replace(plan, items=items) for items in shares]


def _plain(name: str, tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise UserError(
            code="bad-state",
            what=f"A {tensor.layout} tensor of {tensor.dtype} on {tensor.device} has no plain bytes to store.",
            where=name,
            next_step="Keep a dense copy of it in the state, or leave it out.",
        )
    # A conjugate or negative view says how to read its bytes; what is stored must not need that.
    return tensor.detach().resolve_conj().resolve_neg()


def _system_error(error: BaseException) -> OSError | None:
    """Return the system's error behind torch's: its zip writer turns a full disk into a RuntimeError."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    return behind
