"""Traces that others have published, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of published traces; the test is skipped where there is none."""
    folder = Path(os.environ.get("GSCALAR_SHARED") or ROOT.parent / "shared/data")
    if not folder.is_dir():
        pytest.skip(f"needs published traces: there is no folder {folder}; GSCALAR_SHARED says where they are")
    return folder
