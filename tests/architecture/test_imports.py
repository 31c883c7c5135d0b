"""What `import gscalar` and `gscalar --help` load: every start of a worker waits for it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRINT_MODULES = "import json, sys; sys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"
IMPORT = f"import gscalar; {PRINT_MODULES}"
HELP = f"""
import runpy, sys
sys.argv = ["gscalar", "--help"]
try:
    runpy.run_module("gscalar", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    assert not stop.code, stop.code
{PRINT_MODULES}
"""

# Third-party packages that each may load. A new one costs every start: measure it first.
ALLOWED = {
    "import gscalar": {"gscalar", "google_crc32c", "msgspec"},
    "gscalar --help": {"gscalar", "click", "google_crc32c", "msgspec"},
}
CODE = {"import gscalar": IMPORT, "gscalar --help": HELP}
# Of the standard library, these are slow enough to be imported where they are used.
SLOW = {"asyncio", "http", "multiprocessing", "sqlite3", "unittest", "xml"}


def loaded(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after running the code."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stderr.rpartition("\n")[2])}


@pytest.fixture(scope="module")
def bare() -> set[str]:
    """What an interpreter of this environment has before anything is imported."""
    return loaded(PRINT_MODULES)


@pytest.mark.parametrize("what", ALLOWED)
def test_only_allowed_packages_are_loaded(what: str, bare: set[str]) -> None:
    new = loaded(CODE[what]) - bare
    got = {name for name in new if name not in sys.stdlib_module_names and not compiled_part(name)}
    assert got <= ALLOWED[what], f"{what} also loads {sorted(got - ALLOWED[what])}"


@pytest.mark.parametrize("what", ALLOWED)
def test_no_slow_part_of_the_standard_library_is_loaded(what: str, bare: set[str]) -> None:
    got = (loaded(CODE[what]) - bare) & SLOW
    assert not got, f"{what} loads {sorted(got)}; import it where it is used"


def compiled_part(name: str) -> bool:
    """Tell whether a module is the helper of a compiled one, such as Cython's runtime."""
    return name.startswith("_") or name == "cython_runtime"


def test_unit_tests_import_no_deep_learning_framework() -> None:
    heavy = {"torch", "tensorflow", "jax", "keras", "tf_keras"}
    got = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "tests/unit").rglob("*.py"))
        for name in sorted(imported(path) & heavy)
    ]
    assert not got, "move them to tests/integration:\n" + "\n".join(got)


# A benchmark of one part imports that part; a new entry needs a reason of that kind.
BENCHMARKED_PARTS = {
    "benchmarks/recorder.py": ("gscalar.model.events", "gscalar.state.records"),
    "benchmarks/checkpoints.py": ("gscalar.frameworks.torch.storage", "gscalar.state.checkpoints", "gscalar.testing."),
    "benchmarks/resume_matrix.py": ("gscalar.testing.",),
    "benchmarks/chaos.py": ("gscalar.state.records", "gscalar.testing."),
    "benchmarks/series.py": ("gscalar.control.indexing.series_index", "gscalar.model.events", "gscalar.state."),
    "benchmarks/reading_commands.py": ("gscalar.control.", "gscalar.state.", "gscalar.testing."),
    "benchmarks/host_group.py": ("gscalar.runtime.",),
    "benchmarks/replay_speed.py": ("gscalar.importers.", "gscalar.model.", "gscalar.prediction", "gscalar.testing."),
    "benchmarks/scaling_fit.py": ("gscalar.prediction.",),
    "benchmarks/loader.py": ("gscalar.prediction.",),
    "benchmarks/step_overhead.py": ("gscalar.model.", "gscalar.observation.", "gscalar.runtime.", "gscalar.state."),
}


def test_recipes_and_benchmarks_use_public_names_only() -> None:
    got = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}"
        for folder in ("recipes", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gscalar.")
        if not (node.module or "").startswith(BENCHMARKED_PARTS.get(path.relative_to(ROOT).as_posix(), ("-",)))
    ]
    assert not got, "only `import gscalar` and `from gscalar import ...`:\n" + "\n".join(got)


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names
