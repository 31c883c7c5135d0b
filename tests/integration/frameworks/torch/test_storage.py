"""Tensors come back from a checkpoint to the bit, quietly, and a pickle of anything else is refused."""

from __future__ import annotations

import errno
import hashlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gscalar.base.errors import Damaged, UserError

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
storage = pytest.importorskip("gscalar.frameworks.torch.storage")

pytestmark = pytest.mark.torch

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *INTEGERS, "complex64", "complex128", "bool"]


def bits(tensor: Any) -> bytes:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def round_trip(path: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    storage.write_arrays(path, arrays)
    return storage.read_arrays(path)


def random_bits(dtype: str, num: int) -> Any:
    """Return a tensor of any bit patterns: NaNs of every payload, denormals, both zeros."""
    generator = torch.Generator().manual_seed(7)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, (num,), generator=generator, dtype=torch.uint8).bool()
    size = torch.empty(0, dtype=kind).element_size()
    return torch.randint(0, 256, (num * size,), generator=generator, dtype=torch.uint8).view(kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_every_type_comes_back(dtype: str, tmp_path: Path) -> None:
    arrays = {"matrix": random_bits(dtype, 600).reshape(20, 30), "scalar": random_bits(dtype, 1)[0]}
    arrays["empty"] = arrays["matrix"][:0]
    got = round_trip(tmp_path / "arrays", arrays)
    for name, want in arrays.items():
        assert got[name].dtype == want.dtype
        assert got[name].shape == want.shape
        assert bits(got[name]) == bits(want), name


def test_shapes_and_views_come_back_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    waves = torch.randn(3, dtype=torch.complex64)
    arrays = {
        "transposed": base.transpose(0, 2),
        "every second": base[..., ::2],
        "expanded": torch.tensor([1.0]).expand(5, 3),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": waves.conj(),
        "negative": waves.conj().imag,
        "parameter": torch.nn.Parameter(base.clone()),
        "no elements": torch.empty(3, 0, 2),
        "a slice of something large": torch.zeros(1_000_000)[10:12],
    }
    got = round_trip(tmp_path / "arrays", arrays)
    assert got.keys() == arrays.keys()
    for name, want in arrays.items():
        assert torch.equal(got[name], want), name
        assert type(got[name]) is torch.Tensor
        assert got[name].is_contiguous()
        assert not got[name].requires_grad
    assert sum(path.stat().st_size for path in (tmp_path / "arrays").iterdir()) < 100_000


def test_names_may_hold_anything(tmp_path: Path) -> None:
    names = ["a.b.c", "a/b", "../up", "", " ", "größe", "層\n", "a", "a.b", "\U0001f600", "0"]
    arrays = {name: torch.tensor(index) for index, name in enumerate(names)}
    got = round_trip(tmp_path / "arrays", arrays)
    assert {name: int(value) for name, value in got.items()} == {name: i for i, name in enumerate(names)}
    assert sorted(path.name for path in (tmp_path / "arrays").iterdir()) == [".metadata", "__0_0.distcp"]


def test_no_arrays_are_fine(tmp_path: Path) -> None:
    assert round_trip(tmp_path / "arrays", {}) == {}


def test_shared_memory_is_written_for_each_name(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    got = round_trip(tmp_path / "arrays", {"embedding": weight, "head": weight, "row": weight[1]})
    assert torch.equal(got["head"], weight)
    assert torch.equal(got["row"], weight[1])


@pytest.mark.parametrize("num_arrays", [1, 4, 30])
def test_a_large_state_is_spread_over_files(num_arrays: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_SPLIT_BYTES", 1)
    arrays = {f"layer.{index}": torch.randn(index + 10) for index in range(num_arrays)}
    got = round_trip(tmp_path / "arrays", arrays)
    assert got.keys() == arrays.keys()
    assert all(torch.equal(got[name], want) for name, want in arrays.items())
    assert len(list((tmp_path / "arrays").glob("*.distcp"))) == 4


def test_equal_arrays_have_equal_bytes(tmp_path: Path) -> None:
    arrays = {f"p{index}": torch.full((10,), float(index)) for index in range(5)}
    for name in ("one", "two"):
        storage.write_arrays(tmp_path / name, arrays)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_several_threads_write_at_the_same_time(tmp_path: Path) -> None:
    arrays = {f"p{index}": torch.randn(1000) for index in range(20)}
    threads = [
        threading.Thread(target=storage.write_arrays, args=(tmp_path / str(number), arrays)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        got = storage.read_arrays(tmp_path / str(number))
        assert all(torch.equal(got[name], want) for name, want in arrays.items())


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_torch_itself_reads_it(tmp_path: Path) -> None:
    arrays = {"layer.weight": torch.randn(3, 4), "layer.bias": torch.randn(4)}
    storage.write_arrays(tmp_path / "arrays", arrays)
    got = {name: torch.zeros_like(value) for name, value in arrays.items()}
    dcp.load(got, checkpoint_id=tmp_path / "arrays", no_dist=True)
    assert all(torch.equal(got[name], want) for name, want in arrays.items())


class Loud:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def rebuild(path: Path, **changes: Any) -> bytes:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for name, value in changes.items():
        setattr(metadata, name, value)
    return pickle.dumps(metadata)


def elsewhere(path: Path) -> bytes:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for stored in metadata.storage_data.values():
        stored.relative_path = "../" + stored.relative_path
    return pickle.dumps(metadata)


PICKLES: dict[str, Any] = {
    "one that runs something": lambda path: rebuild(path, planner_data=Loud()),
    "one that names a file elsewhere": elsewhere,
    "one of something else": lambda path: pickle.dumps([1]),
    "one cut short": lambda path: (path / ".metadata").read_bytes()[:-20],
    "no pickle": lambda path: b"hello",
    "nothing": lambda path: b"",
}


@pytest.mark.parametrize("sentence", PICKLES)
def test_another_pickle_is_refused(sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "arrays"
    storage.write_arrays(path, {"a": torch.zeros(3)})
    (path / ".metadata").write_bytes(PICKLES[sentence](path))
    with pytest.raises(Damaged) as caught:
        storage.read_arrays(path)
    assert caught.value.code == "checkpoint-damaged"
    assert "executed" not in capsys.readouterr().out


def sparse() -> Any:
    return torch.eye(3).to_sparse()


@pytest.mark.parametrize("make", [sparse, lambda: torch.empty(3, device="meta")], ids=["sparse", "meta"])
def test_a_tensor_without_plain_bytes_is_named(make: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        storage.write_arrays(tmp_path / "arrays", {"layer.odd": make()})
    assert caught.value.code == "bad-state"
    assert caught.value.where == "layer.odd"


FILL = """
import resource, signal, sys
from pathlib import Path
import torch
from gscalar.frameworks.torch import storage

storage._SPLIT_BYTES = int(sys.argv.pop(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in map(int, sys.argv[2:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        storage.write_arrays(Path(sys.argv[1], str(limit)), {f"p{i}": torch.zeros(5000) for i in range(10)})
    except Exception as error:
        outcome = type(error).__name__, getattr(error, "errno", None)
    else:
        outcome = "written"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(limit, *outcome, flush=True)
"""


@pytest.mark.parametrize("split_bytes", [1, 1_000_000], ids=["in several files", "in one file"])
def test_a_file_that_cannot_grow_is_a_system_error(split_bytes: int, tmp_path: Path) -> None:
    # RLIMIT_FSIZE stands in for a full disk: a write then fails with EFBIG instead of ENOSPC. Where in
    # the file it fails decides whether torch's zip writer wraps the error.
    limits = ["0", "1", "300", "20000", "20700", "30000", "40000"]
    limits += ["100001", "150000"] if split_bytes > 1 else []
    command = [sys.executable, "-c", FILL, str(split_bytes), str(tmp_path / "arrays"), *limits]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{limit} OSError {errno.EFBIG}" for limit in limits]


def weights() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"b.weight": torch.randn(3, 4), "a.weight": torch.randn(5).bfloat16(), "scale": torch.tensor(2)}


def digest(changes: dict[str, Any] | None = None) -> str:
    return storage.weights_digest((weights() | (changes or {})).items())


def test_the_digest_does_not_depend_on_order_layout_or_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    want = digest()
    assert storage.weights_digest(reversed(weights().items())) == want
    strided = weights()["b.weight"].t().contiguous().t()
    assert not strided.is_contiguous()
    assert digest({"b.weight": strided}) == want
    assert digest({"b.weight": torch.nn.Parameter(weights()["b.weight"])}) == want
    waves = torch.randn(3, dtype=torch.complex64)
    assert digest({"scale": waves.conj()}) == digest({"scale": waves.conj().resolve_conj()})
    monkeypatch.setattr(storage, "_BLOCK_BYTES", 8)
    assert digest() == want


CHANGES: dict[str, Any] = {
    "one bit": lambda old: torch.nextafter(old, old + 1),
    "the shape": lambda old: old.reshape(4, 3),
    "the type": lambda old: old.view(torch.int32),
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_the_digest_changes_with(sentence: str) -> None:
    old = weights()["b.weight"]
    assert digest({"b.weight": CHANGES[sentence](old)}) != digest()


def test_the_digest_tells_zero_from_minus_zero() -> None:
    assert digest({"scale": torch.tensor(0.0)}) != digest({"scale": torch.tensor(-0.0)})


def test_the_digest_tells_names_and_borders_apart() -> None:
    row = torch.arange(4.0)
    split = {"a": row[:2], "b": row[2:]}
    assert storage.weights_digest(split.items()) != storage.weights_digest([("a", row)])
    assert storage.weights_digest([("a", row)]) != storage.weights_digest([("b", row)])


def test_the_digest_is_the_documented_one() -> None:
    want = hashlib.sha256(
        b'["a", "float32", [2]]\n' + b"\x00\x00\x80\x3f\x00\x00\x00\x40" + b'["b", "int64", []]\n' + b"\x03" + bytes(7)
    ).hexdigest()
    named = [("b", torch.tensor(3)), ("a", torch.tensor([1.0, 2.0]))]
    assert storage.weights_digest(named) == want
