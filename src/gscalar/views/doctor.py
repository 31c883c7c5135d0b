"""What this machine has and lacks for training: each thing looked at is a `Check` with its advice.

A check is *broken* where gscalar cannot work without it, a *warning* where something will be slow, will be lost or
is surprising, and *ok* otherwise; what is absent and optional is ok and says so. Nothing is changed, and no framework
is imported: versions come from the packages' metadata.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from gscalar.base.errors import ScalarError
from gscalar.base.units import format_bytes, format_duration
from gscalar.observation.containers import read_limits
from gscalar.observation.environment import installed_packages
from gscalar.observation.gpus import list_gpus
from gscalar.state.catalog import open_catalog, storing
from gscalar.state.home import Home

OK: Final = "ok"
WARNING: Final = "warning"
BROKEN: Final = "broken"

REQUIRED: Final = (
    "alembic",
    "click",
    "google-crc32c",
    "msgspec",
    "numpy",
    "psutil",
    "pyyaml",
    "rich",
    "sqlalchemy",
)
# Package, and the extra that installs it (empty: it comes with another one).
OPTIONAL: Final = {
    "torch": "torch",
    "tensorflow": "",
    "tensorflow-cpu": "tensorflow",
    "keras": "keras",
    "tf-keras": "",
    "jax": "jax",
    "transformers": "huggingface",
    "pytorch-lightning": "lightning",
    "nvidia-ml-py": "gpu",
    "scikit-learn": "recipes",
    "fastapi": "server",
}
_NETWORK_FILE_SYSTEMS: Final = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4",
    "smb3", "smbfs", "virtiofs", "wekafs",
)  # fmt: skip
_LOW_DISK_BYTES: Final = 5 * 2**30
_LOW_SHARED_BYTES: Final = 256 * 2**20
_CLOCK_SKEW_S: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing looked at. `value` is what was found, in a line for people; `facts` the same for programs."""

    name: str
    state: str
    value: str
    advice: str = ""
    facts: dict[str, Any] | None = None


def examine(home: Home) -> list[Check]:
    """Return all checks. The home is created if it does not exist, as any command would."""
    checks: list[Callable[[], Iterator[Check]]] = [
        check_python,
        check_platform,
        check_cores,
        check_memory,
        check_packages,
        check_gpus,
        check_schedulers,
        check_loopback,
        lambda: check_home(home),
    ]
    return [found for check in checks for found in check()]


# ---- the machine


def check_python() -> Iterator[Check]:
    """Look at the interpreter."""
    new_enough = sys.version_info >= (3, 11)
    yield Check(
        name="python",
        state=OK if new_enough else BROKEN,
        value=f"{platform.python_version()} at {sys.executable}",
        advice="" if new_enough else "gscalar needs Python 3.11 or newer.",
    )


def check_platform() -> Iterator[Check]:
    """Look at the operating system."""
    linux = sys.platform == "linux"
    yield Check(
        name="platform",
        state=OK if linux else WARNING,
        value=platform.platform(),
        advice="" if linux else "Only Linux is tested.",
    )


def check_cores() -> Iterator[Check]:
    """Look at the cores, and how many of them this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _limits().get("cpu_cores")
    facts = {"logical": os.cpu_count(), "usable": usable, "limit": limit}
    value = f"{os.cpu_count()} logical, {usable} usable"
    if limit is None or limit >= usable:
        yield Check(name="cores", state=OK, value=value, facts=facts)
        return
    yield Check(
        name="cores",
        state=WARNING,
        value=f"{value}, limited to the time of {limit:g} by the control group",
        advice=f"Start at most {max(1, int(limit))} workers; libraries see {usable} cores and start too many threads.",
        facts=facts,
    )


def check_memory() -> Iterator[Check]:
    """Look at memory, its limit, and the shared memory that data workers pass batches through."""
    memory = psutil.virtual_memory()
    limit = _limits().get("memory_bytes")
    value = f"{format_bytes(memory.total)}, {format_bytes(memory.available)} free"
    if limit is not None and limit < memory.total:
        value += f", limited to {format_bytes(limit)} by the control group"
    facts = {"total_bytes": memory.total, "available_bytes": memory.available, "limit_bytes": limit}
    yield Check(name="memory", state=OK, value=value, facts=facts)
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        enough = free >= _LOW_SHARED_BYTES
        yield Check(
            name="shared memory",
            state=OK if enough else WARNING,
            value=f"{format_bytes(free)} free",
            advice="" if enough else "Data-loader workers pass batches through it: docker run --shm-size=1g.",
            facts={"free_bytes": free},
        )


def check_packages() -> Iterator[Check]:
    """Look at the packages that gscalar needs, and at those that it works with."""
    versions = installed_packages()
    missing = [name for name in REQUIRED if name not in versions]
    yield Check(
        name="packages",
        state=BROKEN if missing else OK,
        value=f"{', '.join(missing)} missing" if missing else "all that gscalar needs are here",
        advice="Install gscalar again into this environment." if missing else "",
        facts={name: versions.get(name) for name in ("gscalar", *REQUIRED)},
    )
    for name, extra in OPTIONAL.items():
        if name == "tensorflow-cpu" and "tensorflow" in versions:
            continue  # the same files for a GPU, which the other would overwrite
        if name in versions or extra:
            yield Check(
                name=name,
                state=OK,
                value=versions.get(name, f"absent; pip install 'gscalar[{extra}]'"),
                facts={"version": versions.get(name)},
            )


def check_gpus() -> Iterator[Check]:
    """Look at NVIDIA's GPUs."""
    gpus = list_gpus()
    value = ", ".join(f"{each.get('name')} ({format_bytes(each.get('memory_bytes', 0))})" for each in gpus)
    yield Check(name="gpus", state=OK, value=value or "none found", facts={"gpus": gpus})


def check_schedulers() -> Iterator[Check]:
    """Look for the commands of cluster schedulers."""
    for name, programs in (("slurm", ("sbatch", "srun")), ("kubernetes", ("kubectl",))):
        found = [path for program in programs if (path := shutil.which(program)) is not None]
        yield Check(name=name, state=OK, value=", ".join(found) or "absent", facts={"programs": found})


def check_loopback() -> Iterator[Check]:
    """Look whether processes of this machine can talk over 127.0.0.1, as the workers of a gang do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        yield Check(
            name="loopback",
            state=BROKEN,
            value=f"127.0.0.1 cannot be used: {error}",
            advice="Workers of one machine meet there; look at the firewall and at the container's network.",
        )
        return
    yield Check(name="loopback", state=OK, value="127.0.0.1 works")


# ---- the home


def check_home(home: Home) -> Iterator[Check]:
    """Look at the home: whether it can be written, its disk, its clock, and the catalog."""
    probe = home.path / f".probe-{uuid.uuid4().hex}"
    try:
        home.runs.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"gscalar")
        written_s = probe.stat().st_mtime
        probe.unlink()
    except OSError as error:
        yield Check(
            name="home",
            state=BROKEN,
            value=f"{home.path} cannot be written: {error.strerror}",
            advice="Give a writable folder with --home or GSCALAR_HOME, or free some disk.",
        )
        return
    yield Check(name="home", state=OK, value=str(home.path))
    yield from check_clock(written_s, time.time())
    yield from check_disk(home.path)
    yield from check_file_system(home)
    yield from check_catalog(home)


def check_clock(written_s: float, now_s: float) -> Iterator[Check]:
    """Look whether the clock of the home's file system is that of this machine."""
    skew_s = written_s - now_s
    far = abs(skew_s) > _CLOCK_SKEW_S
    yield Check(
        name="clock",
        state=WARNING if far else OK,
        value=f"the home's file system is {format_duration(abs(skew_s))} {'ahead' if skew_s > 0 else 'behind'}"
        if far
        else f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now_s))}",
        advice="Times of different machines cannot be compared: synchronise their clocks." if far else "",
        facts={"file_system_skew_s": skew_s},
    )


def check_disk(path: Path) -> Iterator[Check]:
    """Look at the room that is left for records and checkpoints."""
    usage = shutil.disk_usage(path)
    low = usage.free < _LOW_DISK_BYTES
    yield Check(
        name="disk",
        state=WARNING if low else OK,
        value=f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}",
        advice="Free some: `gscalar delete` removes runs, `checkpoint.keep` bounds what a run needs." if low else "",
        facts={"free_bytes": usage.free, "total_bytes": usage.total},
    )


def check_file_system(home: Home) -> Iterator[Check]:
    """Look whether the catalog lies on a network file system, where SQLite cannot work safely."""
    kind, index_kind = file_system_of(home.path), file_system_of(home.index.parent)
    remote = index_kind in _NETWORK_FILE_SYSTEMS
    yield Check(
        name="file system",
        state=WARNING if remote else OK,
        value=kind if kind == index_kind else f"{kind}, the catalog on {index_kind}",
        advice="Records are safe there, the catalog is not: set GSCALAR_INDEX to a file on a local disk."
        if remote
        else "",
        facts={"home": kind, "index": index_kind},
    )


def check_catalog(home: Home) -> Iterator[Check]:
    """Look whether the catalog opens, and at the damage that reading records has found."""
    try:
        with open_catalog(home) as catalog, catalog.read() as connection:
            num_runs, damaged = storing.count_runs(connection)
    except ScalarError as error:
        yield Check(name="catalog", state=BROKEN, value=f"{error.what} ({home.index})", advice=error.next_step)
        return
    aside = f"; a damaged one was set aside as {catalog.damaged_file}" if catalog.damaged_file else ""
    yield Check(
        name="catalog",
        state=WARNING if aside else OK,
        value=f"{num_runs} runs in {home.index}{aside}",
        advice="The next command that reads fills it again from the records." if aside else "",
        facts={"runs": num_runs, "index": str(home.index)},
    )
    if damaged:
        yield Check(
            name="records",
            state=WARNING,
            value=f"damaged: {', '.join(_damage_words(run_id, each) for run_id, each in damaged.items())}",
            advice="All else was read. `gscalar show RUN` says more; check the disk, and whether a copy is whole.",
            facts={"damaged": list(damaged), "damage": damaged},
        )


def _damage_words(run_id: str, damage: Mapping[str, Any]) -> str:
    missing = [f"missing {place}" for place in damage.get("missing", ())]
    return f"{run_id} ({' '.join([*damage.get('files', ()), *damage.get('unclosed', ()), *missing])})"


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the kind of file system that a path lies on, or would."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="replace")
        except OSError:
            return "unknown"
    while not path.exists() and path != path.parent:
        path = path.parent
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        # Blanks in a path are written as \040.
        point = Path(fields[1].replace("\\040", " "))
        # Of mounts at one place, the last one is on top.
        if len(point.parts) >= best and path.resolve().is_relative_to(point):
            best, kind = len(point.parts), fields[2]
    return kind


def _limits() -> dict[str, Any]:
    try:
        return read_limits(Path("/proc"), Path("/sys/fs/cgroup"))
    except (OSError, ValueError):
        return {}
