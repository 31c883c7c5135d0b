"""Every recipe runs, at a small size, as its reader would run it; and reads like a tutorial."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gscalar
from gscalar.state.home import Home
from gscalar.views.timelines import run_timeline

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/job.yaml"))
GSCALAR = [sys.executable, "-m", "gscalar"]
MOST_LINES = 120
LIMIT_S = 240
needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="needs scikit-learn: .venv/bin/pip install -c constraints.txt -e '.[recipes]'",
)
FOUND = ("baseline/order0", "baseline/order1", "baseline/gzip", "baseline/xz", "val/bits_per_byte")

# What makes a recipe small enough for a test.
SMALL = {
    "bytes_lm": {
        "d_model": 32, "layers": 1, "heads": 2, "context": 32, "batch_size": 4, "steps": 6, "eval_every": 3,
        "max_bytes": 60_000,
    },
    "digits": {"epochs": 12, "eval_every": 100},
    "keras_digits": {"epochs": 6},
    "tf_async": {"steps": 120},
    "fashion": {"epochs": 1, "batch_size": 32, "eval_every": 20, "max_images": 2000},
    "straggler": {"version": "slow_machine", "steps": 16, "seconds_per_token": 1e-3},
}  # fmt: skip


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GSCALAR, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT, **options
    )


def train(name: str, **more: Any) -> tuple[dict[str, Any], str]:
    """Run a recipe at its small size; return what `show` says of it, and what it printed."""
    sizes = [word for key, value in (SMALL[name] | more).items() for word in ("--set", f"config.{key}={value}")]
    done = run("run", f"recipes/{name}", *sizes)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    shown = run("show", name, "--json")
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    assert found["status"] == "completed"
    return found, done.stdout


@pytest.mark.torch
@pytest.mark.usefixtures("home")
def test_bytes_lm_ends_with_its_bits_per_byte_beside_those_of_simpler_models() -> None:
    shown, printed = train("bytes_lm")

    assert shown["steps"] == 6
    assert shown["attempts"][0]["world"] == 2
    assert shown["tokens"] == 6 * 2 * 4 * 32
    got = {name: shown["metrics"][name]["last"] for name in shown["metrics"] if name.startswith(("val/", "baseline/"))}
    assert sorted(got) == sorted(FOUND)
    # An untrained model knows no more than that there are 256 bytes; text is far from random.
    assert 4 < got["val/bits_per_byte"] < 8
    assert 0.5 < got["baseline/xz"] < got["baseline/gzip"] < got["baseline/order1"] < got["baseline/order0"] < 6
    assert shown["metrics"]["val/bits_per_byte"]["count"] >= 3
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("  ")] == list(FOUND)


@pytest.mark.torch
@needs_digits
@pytest.mark.usefixtures("home")
def test_digits_names_the_held_out_digits_rightly() -> None:
    shown, printed = train("digits")

    assert shown["attempts"][0]["world"] == 1
    assert shown["metrics"]["val/accuracy"]["last"] > 0.96
    assert "held-out digits are named rightly" in printed


@pytest.mark.tensorflow
@needs_digits
@pytest.mark.usefixtures("home")
def test_keras_digits_names_the_held_out_digits_rightly_on_two_workers() -> None:
    shown, printed = train("keras_digits")

    assert shown["attempts"][0]["world"] == 2
    assert shown["steps"] == 6 * 23  # 1,437 images in batches of 2 x 32
    assert shown["metrics"]["val_accuracy"]["last"] > 0.93
    assert "held-out digits are named rightly" in printed


@pytest.mark.tensorflow
@needs_digits
@pytest.mark.usefixtures("home")
def test_tf_async_names_most_held_out_digits_rightly_by_two_workers_and_a_parameter_server() -> None:
    shown, printed = train("tf_async")

    assert shown["attempts"][0]["roles"] == {"chief": 1, "worker": 2, "ps": 1}
    assert shown["steps"] == 120
    assert shown["samples"] == 120 * 32
    assert shown["metrics"]["val/accuracy"]["last"] > 0.8
    assert "held-out digits are named rightly" in printed


@pytest.mark.torch
@pytest.mark.debian("dataset-fashion-mnist")
@pytest.mark.usefixtures("home")
def test_fashion_learns_from_a_few_images_what_most_clothes_are() -> None:
    shown, printed = train("fashion")

    assert shown["attempts"][0]["world"] == 2
    assert shown["metrics"]["val/accuracy"]["last"] > 0.5
    assert shown["metrics"]["val/loss"]["last"] < 1.5
    assert "of the 2,000 held-out images" in printed


# How much longer than the others' what is late takes for a token, and how many more tokens it has.
LATE = (3, 6)
STRAGGLERS = {"slow_machine": (1.5, 1.0), "more_work": (1.0, 1.5)}
# The cause, the fix that helps, and the cause that it is not.
VERDICTS = {
    "slow_machine": ("slow_worker", "replace_worker", "work_imbalance"),
    "more_work": ("work_imbalance", "balance", "slow_worker"),
}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("version", STRAGGLERS)
def test_straggler_tells_a_slow_machine_from_more_work(version: str, home: Path) -> None:
    shown, printed = train("straggler", version=version)
    got = run_timeline(Home(home).run(shown["id"]))

    assert (got.num_ranks, got.num_steps, got.work_unit) == (8, 14, "tokens")
    assert got.work is not None
    assert got.collectives is not None
    others = [rank for rank in range(8) if rank not in LATE]
    token_s = np.median(got.account("compute") / got.work, axis=1)
    tokens = got.work.mean(axis=1)
    for rank in LATE:
        slower, more = token_s[rank] / np.median(token_s[others]), tokens[rank] / np.median(tokens[others])
        assert (slower, more) == pytest.approx(STRAGGLERS[version], rel=0.08)
    last_two = np.argsort(got.collectives.ready_s.max(axis=2), axis=0)[-2:]
    assert (np.sort(last_two, axis=0) == np.array(LATE)[:, None]).all(axis=0).mean() > 0.5
    assert f"{version}: 16 steps" in printed
    told = run("diagnose", "straggler", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    cause, fix, against = VERDICTS[version]
    assert (found["principal"]["cause"], found["principal"]["ranks"]) == (cause, list(LATE))
    gains = {each["name"]: each["gain"] for each in found["fixes"]}
    assert gains[fix] > 1.15
    assert against in found["not_supported"]


ABSENT = {
    "digits": ("raise ImportError('sklearn')", "scikit-learn, which is not installed: pip install scikit-learn"),
    "keras_digits": ("raise ImportError('sklearn')", "pip install 'gscalar[tensorflow,recipes]'"),
    "tf_async": ("raise ImportError('sklearn')", "pip install 'gscalar[tensorflow,recipes]'"),
    "fashion": ("", "Do: apt-get install dataset-fashion-mnist"),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", ABSENT)
def test_a_recipe_without_its_data_says_what_to_install(name: str, home: Path, tmp_path: Path) -> None:
    blocker, want = ABSENT[name]
    folder = tmp_path / name
    folder.mkdir()
    script = (RECIPES / name / "train.py").read_text().replace("/usr/share/datasets", str(tmp_path / "absent"))
    (folder / "train.py").write_text(script)
    (folder / "job.yaml").write_text((RECIPES / name / "job.yaml").read_text())
    modules = tmp_path / "modules" / "sklearn"
    modules.mkdir(parents=True)
    (modules / "__init__.py").write_text(blocker)

    done = run("run", str(folder), env={**os.environ, "PYTHONPATH": str(modules.parent)})

    assert done.returncode == 1
    assert want in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (found,) = json.loads(run("runs", "--json").stdout)
    assert (found["status"], len(found["attempts"])) == ("failed", 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_short(name: str) -> None:
    lines = (RECIPES / name / "train.py").read_text().splitlines()
    assert len(lines) < MOST_LINES


@pytest.mark.parametrize("name", NAMES)
def test_a_script_uses_public_names_only(name: str) -> None:
    tree = ast.parse((RECIPES / name / "train.py").read_text())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [module for module in imported if module.split(".")[0] == "gscalar"] == ["gscalar"]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gscalar"
    }
    assert used <= set(gscalar.__all__)


def test_every_recipe_has_a_test_at_a_small_size() -> None:
    assert sorted(SMALL) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_of_a_script_are_the_keys_of_its_job(name: str) -> None:
    """A key that only one of them has would be a setting that does nothing, or one nobody finds."""
    job = (RECIPES / name / "job.yaml").read_text()
    for key in SMALL[name]:
        assert f"  {key}: " in job
        assert f'"{key}": ' in (RECIPES / name / "train.py").read_text()
