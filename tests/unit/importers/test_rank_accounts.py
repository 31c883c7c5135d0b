from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gscalar.importers.kineto import read_kineto
from gscalar.importers.rank_accounts import copies_of_batches, device_uses, step_accounts
from gscalar.model.timeline import ACCOUNT_NAMES
from gscalar.testing.kineto_traces import KinetoTrace

US = 1e-6


def accounts_of(trace: KinetoTrace, folder: Path) -> dict[str, float]:
    accounts = step_accounts(read_kineto(trace.write(folder / "trace.json")))
    return dict(zip(ACCOUNT_NAMES, (accounts[0] / US).tolist(), strict=True))


def compute_alone(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 100, 300)


def communication_beside_compute(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 100, 300)
    trace.collective(300, 300)


def a_copy_beside_communication(trace: KinetoTrace) -> None:
    trace.collective(300, 300)
    trace.copy(500, 200)
    trace.copy(650, 100, to_device=False)


def a_loader_beside_the_device(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 100, 300)
    trace.loader(350, 200)


def a_stall_of_the_host(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 0, 100)
    trace.event("user_annotation", "## checkpoint ##", 50, 250)
    trace.event("user_annotation", "gc.collect", 250, 150)


def an_exchange_of_the_host(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 0, 100)
    trace.event("user_annotation", "gloo:barrier", 50, 150)


def two_devices(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 0, 400, device=0)
    trace.kernel("gemm", 0, 200, device=1)


def work_over_the_end(trace: KinetoTrace) -> None:
    trace.kernel("gemm", 900, 300)


NAN = float("nan")
# The step is 1000 us. What is not said here is 0, or NaN because the trace does not show it.
CASES: dict[Callable[[KinetoTrace], None], dict[str, float]] = {
    compute_alone: {"compute": 300, "host_gap": 700},
    communication_beside_compute: {"compute": 300, "exposed_communication": 200, "host_gap": 500},
    a_copy_beside_communication: {"exposed_communication": 300, "h2d": 100, "other": 50, "host_gap": 550},
    a_loader_beside_the_device: {"compute": 300, "data_wait": 150, "host_gap": 550},
    a_stall_of_the_host: {"compute": 100, "checkpoint": 200, "gc": 100, "host_gap": 600},
    an_exchange_of_the_host: {"compute": 100, "exposed_communication": 100, "host_gap": 800},
    two_devices: {"compute": 300, "host_gap": 700},
    work_over_the_end: {"compute": 100, "host_gap": 900},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_accounts_are_exclusive_and_sum_to_the_step(tmp_path: Path, case: Callable[[KinetoTrace], None]) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 1000)
    case(trace)
    got = accounts_of(trace, tmp_path)
    unseen = {"data_wait": NAN, "optimizer": NAN, "checkpoint": NAN, "gc": NAN}
    want = dict.fromkeys(ACCOUNT_NAMES, 0.0) | unseen | CASES[case]
    assert got == pytest.approx(want, nan_ok=True)
    assert np.nansum(list(got.values())) == pytest.approx(1000)


def test_without_a_device_only_what_the_host_shows_is_known(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 1000)
    trace.loader(100, 300)
    trace.event("user_annotation", "gloo:all_reduce", 500, 100)
    got = accounts_of(trace, tmp_path)
    assert got == pytest.approx(dict.fromkeys(ACCOUNT_NAMES, NAN) | {"data_wait": 300}, nan_ok=True)


def test_a_copy_belongs_to_the_step_that_issued_it(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 1000)
    trace.step(2, 1000, 1000)
    trace.copy(1100, 40, launch_us=900, bytes=100)
    trace.copy(1200, 10, launch_us=1150, bytes=7)
    trace.copy(1300, 10, to_device=False, bytes=1000)
    seconds, num_bytes = copies_of_batches(read_kineto(trace.write(tmp_path / "trace.json")))
    assert seconds == pytest.approx([40 * US, 10 * US])
    assert num_bytes.tolist() == [100, 7]


def test_bytes_that_the_trace_does_not_tell_are_not_known(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 1000)
    trace.copy(100, 40)
    _, num_bytes = copies_of_batches(read_kineto(trace.write(tmp_path / "trace.json")))
    assert np.isnan(num_bytes).all()


def test_each_device_has_its_own_use(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.kernel("gemm", 0, 100, device=2, launch_us=-10)
    trace.kernel("gemm", 300, 100, device=2, launch_us=200)
    trace.collective(0, 50, device=5)
    first, second = device_uses(read_kineto(trace.write(tmp_path / "trace.json")), rank=1)
    assert (first.rank, first.device, second.device) == (1, 2, 5)
    assert first.span_s == pytest.approx(400 * US)
    assert first.idle_launch_s == pytest.approx(200 * US)
    assert second.exposed_s == pytest.approx(50 * US)
    assert np.isnan(second.idle_launch_s)
