"""What commands that only look load: most of the time that they take is the loading of libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gscalar.control.indexer import refresh
from gscalar.control.indexing.series_index import refresh_series
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home
from gscalar.testing.builders import write_run

CODE = """
import json, os, sys
from gscalar.cli.main import main
sys.stdout = open(os.devnull, "w")
code = main(sys.argv[1:])
threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
sys.stderr.write(json.dumps([code, threads, "OPENBLAS_NUM_THREADS" in os.environ, sorted(sys.modules)]))
"""
# All of these take longer to import than the command itself works.
HEAVY = {"sqlalchemy", "alembic", "psutil", "numpy.ma", "gscalar.control.indexing.readings", "asyncio"}
COMMANDS = {
    "metrics by id": (["metrics", "aaaa00000000"], HEAVY),
    "metrics by name": (["metrics", "a"], HEAVY),
    "compare": (["compare", "a", "b"], HEAVY),
    "show": (["show", "a"], HEAVY | {"numpy"}),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("home"))
    for name in ("a", "b"):
        write_run(home, name * 4 + "00000000", spec={"name": name})
        refresh_series(home, name * 4 + "00000000")
    with open_catalog(home) as catalog:
        refresh(home, catalog)
    return home.path


@pytest.mark.parametrize("sentence", COMMANDS)
def test_nothing_heavy_is_loaded_for_runs_that_are_indexed(
    sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, heavy = COMMANDS[sentence]
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words, "--home", str(place)], stderr=subprocess.PIPE, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    code, num_threads, is_set, modules = json.loads(done.stderr)
    assert code == 0
    assert not heavy & set(modules)
    assert num_threads == 1, "NumPy's BLAS has started threads"
    assert not is_set, "what the command starts would inherit it"
