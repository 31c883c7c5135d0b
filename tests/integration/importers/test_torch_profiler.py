"""What the installed PyTorch's profiler writes of two ranks that train on CPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gscalar.importers.recognition import open_traces
from gscalar.model.timeline import Signal, StepTimeline

SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 64
    def __getitem__(self, at):
        time.sleep(0.005)
        return torch.zeros(8)

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
schedule = torch.profiler.schedule(wait=0, warmup=1, active=4, repeat=1)
write = lambda profiler: profiler.export_chrome_trace(f"{folder}/{rank}.json.gz")
with torch.profiler.profile(schedule=schedule, on_trace_ready=write) as profiler:
    for batch, _ in zip(DataLoader(Slow(), batch_size=4), range(6)):
        if rank == 1:
            time.sleep(0.05)
        dist.all_reduce(batch.mean())
        profiler.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    ranks = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(folder)]) for rank in range(2)]
    try:
        assert [each.wait(120) for each in ranks] == [0, 0]
    finally:
        for each in ranks:
            each.kill()
    (folder / "meeting").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def timeline(traces: Path) -> StepTimeline:
    return open_traces([traces])


@pytest.mark.torch
def test_ranks_steps_and_waits_are_found(timeline: StepTimeline) -> None:
    assert [each.rank for each in timeline.ranks] == [0, 1]
    assert timeline.world == 2
    assert timeline.steps.tolist() == [1, 2, 3, 4]
    assert Signal.DEVICE in timeline.unknown
    loading = timeline.loading
    assert loading is not None
    assert loading.num_workers == 0
    assert (loading.wait_s > 0.02).all()  # four samples of 5 ms
    assert (loading.wait_s < timeline.step_s).all()


@pytest.mark.torch
def test_the_late_rank_is_found_by_the_collectives_of_the_hosts(timeline: StepTimeline) -> None:
    assert timeline.collectives is not None
    assert set(timeline.collectives.kind) == {"all_reduce"}
    waited_s = timeline.collectives.wait_s.sum(axis=2)
    assert np.median(waited_s[0]) > 0.025
    assert np.median(waited_s[1]) < 0.025
    assert timeline.clock_error_s < 0.025
