"""Every error code, metric, spec key and command is in the documentation, and the pages are current."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from gscalar.base.errors import CODES
from gscalar.model.hardware import HARDWARE
from gscalar.model.metrics import METRICS
from gscalar.model.spec import JobSpec

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("errors", list(CODES)),
        ("metrics", list(METRICS)),
        ("hardware", list(HARDWARE)),
        ("spec", [field.name for field in dataclasses.fields(JobSpec)]),
    ],
)
def test_every_name_is_on_its_page(page: str, names: list[str]) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing


@pytest.mark.parametrize("page", ["errors", "metrics", "hardware", "spec", "commands", "reference"])
def test_a_generated_page_is_current(page: str) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gen-docs", "--check", page],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if page not in navigation]
    assert not missing


def test_every_error_code_is_raised_somewhere() -> None:
    sources = [
        path.read_text()
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "errors.py" or "base" not in path.parts
    ]
    unused = [code for code in CODES if not any(f'"{code}"' in source for source in sources)]
    assert not unused, f"these codes are documented and never raised: {unused}"
