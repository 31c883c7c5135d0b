from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.control.indexer import refresh
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home
from gscalar.state.records.reader import read_record
from gscalar.testing.builders import RunBuilder, write_run
from gscalar.views import doctor
from gscalar.views.doctor import BROKEN, OK, WARNING, Check


def states(checks: object) -> dict[str, str]:
    return {check.name: check.state for check in checks}  # type: ignore[attr-defined]


def one(checks: object) -> Check:
    (check,) = checks  # type: ignore[misc]
    assert isinstance(check, Check)
    return check


MOUNTS = "\n".join(
    (
        "overlay / overlay rw 0 0",
        "server:/x /mnt nfs4 rw 0 0",
        "/dev/sda1 /mnt/local ext4 rw 0 0",
        "server:/y /mnt/with\\040blank lustre rw 0 0",
        "tmpfs /mnt/local tmpfs rw 0 0",
    )
)
PLACES = {
    "the root": ("/", "overlay"),
    "below a mount": ("/mnt/a/b", "nfs4"),
    "the last mount at a place is on top": ("/mnt/local/a", "tmpfs"),
    "a blank in the path": ("/mnt/with blank/a", "lustre"),
    "a name that begins alike": ("/mntx", "overlay"),
}


@pytest.mark.parametrize("sentence", PLACES)
def test_the_file_system_of_a_path(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, want = PLACES[sentence]
    monkeypatch.setattr(Path, "exists", lambda self: True)
    assert doctor.file_system_of(Path(path), MOUNTS) == want


FILE_SYSTEMS = {
    "both local": ("ext4", "ext4", OK),
    "both on the network": ("nfs4", "nfs4", WARNING),
    "the index on a local disk": ("lustre", "xfs", OK),
    "the index on the network": ("ext4", "nfs", WARNING),
}


@pytest.mark.parametrize("sentence", FILE_SYSTEMS)
def test_the_catalog_belongs_on_a_local_disk(
    sentence: str, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind, index_kind, want = FILE_SYSTEMS[sentence]
    monkeypatch.setenv("GSCALAR_INDEX", str(tmp_path / "elsewhere" / "index.db"))
    monkeypatch.setattr(doctor, "file_system_of", lambda path: kind if path == home else index_kind)
    got = one(doctor.check_file_system(Home(home)))
    assert got.state == want
    assert ("GSCALAR_INDEX" in got.advice) == (want == WARNING)


CORES = {
    "no limit": ({}, OK),
    "a limit above what is there": ({"cpu_cores": 64.0}, OK),
    "a limit below": ({"cpu_cores": 0.5}, WARNING),
}


@pytest.mark.parametrize("sentence", CORES)
def test_a_container_with_less_time_than_cores_is_told(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, want = CORES[sentence]
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: set(range(4)))
    monkeypatch.setattr(doctor, "read_limits", lambda proc, cgroup: limits)
    got = one(doctor.check_cores())
    assert got.state == want
    assert ("at most 1 workers" in got.advice) == (want == WARNING)


def test_a_machine_that_hides_its_limits_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(proc: Path, cgroup: Path) -> None:
        raise OSError

    monkeypatch.setattr(doctor, "read_limits", refuse)
    assert one(doctor.check_cores()).state == OK


def test_a_missing_package_is_broken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict.fromkeys(doctor.REQUIRED, "1.0") | {"torch": "2.13.0"}
    monkeypatch.setattr(doctor, "installed_packages", lambda: versions)
    found = {check.name: check for check in doctor.check_packages()}
    assert found["packages"].state == OK
    assert found["torch"].value == "2.13.0"
    assert "pip install 'gscalar[tensorflow]'" in found["tensorflow-cpu"].value
    del versions["msgspec"]
    broken = next(iter(doctor.check_packages()))
    assert (broken.state, broken.value) == (BROKEN, "msgspec missing")


CLOCKS = {"equal": (0.0, OK), "a little behind": (-4.0, OK), "behind": (-9.0, WARNING), "ahead": (60.0, WARNING)}


@pytest.mark.parametrize("sentence", CLOCKS)
def test_a_file_system_with_another_clock_is_told(sentence: str) -> None:
    skew_s, want = CLOCKS[sentence]
    assert one(doctor.check_clock(1000.0 + skew_s, 1000.0)).state == want


def test_a_full_disk_is_a_warning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30, total=2**40))
    assert one(doctor.check_disk(home)).state == WARNING


def test_a_machine_whose_processes_cannot_talk_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: tuple[str, int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(doctor.socket, "create_server", refuse)
    got = one(doctor.check_loopback())
    assert got.state == BROKEN
    assert "not permitted" in got.value


def test_a_home_that_works(home: Path) -> None:
    write_run(Home(home))
    got = states(doctor.check_home(Home(home)))
    assert got == dict.fromkeys(("home", "clock", "disk", "file system", "catalog"), OK) | {"disk": got["disk"]}


def test_a_home_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert states(doctor.check_home(Home(tmp_path / "file"))) == {"home": BROKEN}


def test_a_catalog_that_cannot_be_opened_is_broken_and_says_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Home) -> None:
        raise EnvironmentProblem(code="store-newer", what="It is newer.", next_step="Use that version.")

    monkeypatch.setattr(doctor, "open_catalog", refuse)
    got = one(doctor.check_catalog(Home(home)))
    assert (got.state, got.advice) == (BROKEN, "Use that version.")


def test_a_catalog_that_was_damaged_is_told(home: Path) -> None:
    home.mkdir()
    (home / "index.db").write_bytes(b"no database" * 100)
    got = one(doctor.check_catalog(Home(home)))
    assert got.state == WARNING
    assert "damaged-" in got.value


def test_records_that_are_cut_off_or_missing_are_named(home: Path) -> None:
    run = RunBuilder(Home(home)).launch(3).train(2).finish().end()
    cut_off, missing = run.folder.worker_record(0, 1), run.folder.worker_record(0, 2)
    os.truncate(cut_off, list(read_record(cut_off))[-1].offset)  # the last seal
    missing.unlink()
    with open_catalog(Home(home)) as catalog:
        refresh(Home(home), catalog)
    _, got = doctor.check_catalog(Home(home))
    assert (got.name, got.state) == ("records", WARNING)
    assert got.value == f"damaged: {run.run_id} (a000-r00001.rec missing 0/2)"
    assert got.facts["damaged"] == [run.run_id]
