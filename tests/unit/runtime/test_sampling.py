"""Which worker samples for its host, and which processes it looks at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gscalar.runtime import sampling
from gscalar.runtime.launch import Launch
from gscalar.runtime.sampling import HostWorkers, start_sampling
from gscalar.state.home import Home, RunFolder
from gscalar.state.records import RecordWriter, own_header

TORCHRUN = Launch(launcher="torchrun", identity="i", world=8, rank=4, local_rank=0, local_world=3)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = Home(tmp_path).run("r")
    folder.create()
    return folder


@pytest.fixture
def put(folder: RunFolder) -> Iterator[Callable[..., None]]:
    """Write the record of another worker."""
    writers: list[RecordWriter] = []

    def write(rank: int, pid: int, **header: Any) -> None:
        own = own_header("r", "worker", rank=rank, world=8)
        writers.append(RecordWriter(folder.worker_record(0, rank), structs.replace(own, pid=pid, **header)))

    yield write
    for writer in writers:
        writer.close()


def opened(folder: RunFolder, launch: Launch = TORCHRUN, **changes: Any) -> Any:
    return SimpleNamespace(
        folder=folder, attempt=0, launch=launch, gang=launch, supervised=False, writer=None, **changes
    )


def test_the_workers_of_the_host_are_found_as_they_start(folder: RunFolder, put: Callable[..., None]) -> None:
    workers = HostWorkers(opened(folder))
    assert workers.find() == {4: os.getpid()}
    put(5, 55)
    put(3, 33)  # before us: of another host
    put(7, 77)  # after those of this host
    assert workers.find() == {4: os.getpid(), 5: 55}
    put(6, 66)
    assert workers.find() == {4: os.getpid(), 5: 55, 6: 66}


def test_a_worker_of_another_host_is_none_of_ours(folder: RunFolder, put: Callable[..., None]) -> None:
    put(5, 55, host="elsewhere")
    assert HostWorkers(opened(folder)).find() == {4: os.getpid()}


def test_a_record_without_a_header_yet_is_looked_at_again(folder: RunFolder, put: Callable[..., None]) -> None:
    workers = HostWorkers(opened(folder))
    folder.worker_record(0, 5).write_bytes(b"\0\0\0")
    assert workers.find() == {4: os.getpid()}
    folder.worker_record(0, 5).unlink()
    put(5, 55)
    assert workers.find() == {4: os.getpid(), 5: 55}


# sentence: (launch, supervised, whether it samples)
PARTS: dict[str, tuple[Launch, bool, bool]] = {
    "a script alone": (Launch(launcher="alone", identity="i"), False, True),
    "the first worker of a host": (TORCHRUN, False, True),
    "the second one does not": (replace(TORCHRUN, rank=5, local_rank=1), False, False),
    "none under a supervisor, which does it itself": (Launch(launcher="gscalar", identity="i"), True, False),
}


@pytest.mark.parametrize("sentence", PARTS)
def test_who_samples(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, sentence: str) -> None:
    launch, supervised, want = PARTS[sentence]
    began: list[object] = []

    def sample(sink: object, find_pids: object) -> Callable[[], None]:
        began.append(find_pids)
        return lambda: None

    monkeypatch.setattr(sampling, "sample_hardware", sample)
    worker = opened(folder, launch)
    worker.supervised = supervised
    start_sampling(worker)()
    assert bool(began) is want
