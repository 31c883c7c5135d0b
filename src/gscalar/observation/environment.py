"""What a run would need to be made again: code, command, interpreter, packages, machine, variables.

Everything is read here and now from files under /proc and /sys, from git and from the metadata of
the installed packages; torch is not imported for it. Nothing raises: what is not known is absent.
Secrets are taken out before the result leaves this module.

Limits: only NVIDIA's GPUs are listed; a memory or CPU limit is the tightest of the process's control
group and those above it, as `gscalar.observation.containers` reads it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from gscalar.observation.containers import read_limits
from gscalar.observation.gpus import list_gpus
from gscalar.observation.secrets import redact, redact_words

_GIT_TIMEOUT_S: Final = 2.0
_PROC = Path("/proc")

# Variables that change what a training does or how fast it is. A trailing * takes all that begin so.
KEPT_VARIABLES: Final = (
    "BLIS_*", "CUBLAS_*", "CUDA_*", "CUDNN_*", "FI_*", "GLOO_*", "GOMP_*", "GSCALAR_*", "HF_*", "HIP_*",
    "HSA_*", "JOBSET_*", "JOB_COMPLETION_INDEX", "KMP_*", "LANG", "LC_ALL", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MALLOC_*", "MASTER_ADDR", "MASTER_PORT", "MKL_*",
    "NCCL_*", "NVIDIA_*", "OMP_*", "OMPI_*", "OPENBLAS_*", "PYTHON*", "PYTORCH_*", "RANK", "RCCL_*",
    "ROCR_*", "SLURM_CLUSTER_NAME", "SLURM_CPUS_*", "SLURM_GPUS*", "SLURM_JOB_*", "SLURM_NNODES",
    "SLURM_NODEID", "SLURM_NTASKS*", "SLURM_PROCID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TF_*",
    "TOKENIZERS_*", "TORCH*", "TRANSFORMERS_*", "TRITON_*", "TZ", "UCX_*", "VECLIB_*", "VIRTUAL_ENV",
    "WORLD_SIZE", "XLA_*",
)  # fmt: skip


def capture_environment(environ: Mapping[str, str], cwd: Path, argv: Sequence[str]) -> dict[str, Any]:
    """Return everything that is known of this process's surroundings, as JSON values without secrets."""
    parts: dict[str, Callable[[], Any]] = {
        "git": lambda: read_git(cwd),
        "command": lambda: _command(cwd, argv),
        "python": _python,
        "os": _operating_system,
        "cpu": _cpu,
        "memory": lambda: _memory(_PROC),
        "limits": lambda: read_limits(_PROC),
        "gpus": list_gpus,
        "packages": installed_packages,
        "variables": lambda: kept_variables(environ),
    }
    captured = {name: _attempt(read) for name, read in parts.items()}
    return {name: value for name, value in captured.items() if value}


def installed_packages() -> dict[str, str]:
    """Return the version of every installed package by its normalised name, as imports would find them."""
    versions: dict[str, str] = {}
    for entry in dict.fromkeys(sys.path):
        for name, version in _packages_in(Path(entry or ".")):
            versions.setdefault(name, version)  # the first on the path is the one imported
    return dict(sorted(versions.items()))


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter to a training, with what looks secret taken out."""
    whole = {name for name in KEPT_VARIABLES if not name.endswith("*")}
    starts = tuple(name[:-1] for name in KEPT_VARIABLES if name.endswith("*"))
    kept = sorted(name for name in environ if name in whole or name.startswith(starts))
    return {name: redact(name, environ[name]) for name in kept}


def read_git(cwd: Path) -> dict[str, Any]:
    """Return commit, branch, whether there are changes, and the SHA-256 of the changes to tracked files."""
    if not any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        return {}
    status = _git(cwd, "status", "--porcelain=v2", "--branch", "--untracked-files=normal")
    if status is None:
        # A status can take longer than we wait for; the commit alone never does.
        commit_only = _git(cwd, "rev-parse", "HEAD")
        return {"commit": commit_only.decode().strip()} if commit_only else {}
    lines = status.decode(errors="replace").splitlines()
    headers = dict(line[2:].partition(" ")[::2] for line in lines if line.startswith("# "))
    commit, branch = headers.get("branch.oid"), headers.get("branch.head")
    found: dict[str, Any] = {"dirty": any(not line.startswith("#") for line in lines)}
    if commit and commit != "(initial)":
        found["commit"] = commit
    if branch and branch != "(detached)":
        found["branch"] = branch
    if found["dirty"] and "commit" in found:
        diff = _git(cwd, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary")
        found |= {"diff_sha256": hashlib.sha256(diff).hexdigest()} if diff is not None else {}
    remote = _git(cwd, "config", "--get", "remote.origin.url")
    return found | ({"remote": redact("remote", remote.decode(errors="replace").strip())} if remote else {})


def _attempt(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - a machine that hides something must not stop a training
        return None


def _git(cwd: Path, *arguments: str) -> bytes | None:
    """Return git's output, or None. It must not wait for long, ask anything, or write to the clone."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=cwd,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _command(cwd: Path, argv: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"argv": redact_words(argv), "cwd": str(cwd), "executable": sys.executable}
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None and (cwd / script).is_file():
        found["entry_point"] = str((cwd / script).resolve())
        found["entry_point_sha256"] = hashlib.sha256((cwd / script).read_bytes()).hexdigest()
    return found


def _python() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "build": " ".join(platform.python_build()),
        "compiler": platform.python_compiler(),
        "prefix": sys.prefix,
        "flags": {"optimize": sys.flags.optimize, "hash_seed_fixed": not sys.flags.hash_randomization},
    }


def _operating_system() -> dict[str, Any]:
    system = os.uname()
    found = {
        "kernel": f"{system.sysname} {system.release}",
        "machine": system.machine,
        "host": system.nodename,
    }
    release = _attempt(platform.freedesktop_os_release)
    if release:
        found["name"] = release.get("PRETTY_NAME", "")
    libc = " ".join(platform.libc_ver()).strip()
    return found | ({"libc": libc} if libc else {})


def _cpu() -> dict[str, Any]:
    found: dict[str, Any] = {"logical_cores": os.cpu_count()}
    if hasattr(os, "sched_getaffinity"):
        found["usable_cores"] = len(os.sched_getaffinity(0))
    fields = [line.partition(":")[::2] for line in _lines(_PROC / "cpuinfo") if ":" in line]
    pairs = [(name.strip(), value.strip()) for name, value in fields]
    model = next((value for name, value in pairs if name in ("model name", "Model", "cpu model")), None)
    # A physical core is a pair of socket and core id; each logical core lists both, in this order.
    sockets = [value for name, value in pairs if name == "physical id"]
    cores = [value for name, value in pairs if name == "core id"]
    found |= {"model": model} if model else {}
    return found | ({"physical_cores": len(set(zip(sockets, cores, strict=False)))} if cores else {})


def _memory(proc: Path) -> dict[str, int]:
    fields = dict(line.partition(":")[::2] for line in _lines(proc / "meminfo"))
    wanted = {"total_bytes": "MemTotal", "swap_bytes": "SwapTotal"}
    return {name: int(fields[field].split()[0]) * 1024 for name, field in wanted.items() if field in fields}


def _packages_in(folder: Path) -> Iterable[tuple[str, str]]:
    """Yield name and version from the names of a folder's metadata, without opening the files.

    `NAME-VERSION.dist-info` is what the wheel specification guarantees; an egg, or a name of another
    form, is asked of importlib.
    """
    try:
        entries = os.listdir(folder)  # noqa: PTH208 - names are enough, and this is the fast way
    except OSError:
        return
    for entry in entries:
        stem, kind = entry.rpartition(".")[::2]
        if kind not in ("dist-info", "egg-info"):
            continue
        name, _, version = stem.partition("-")
        if kind == "egg-info" or not version or "-" in version:
            found = metadata.PathDistribution(folder / entry)
            name, version = found.metadata["Name"] or name, found.version or version
        yield name.lower().replace("_", "-").replace(".", "-"), version


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
