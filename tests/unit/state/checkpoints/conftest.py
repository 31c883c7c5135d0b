"""No unit test waits for a disk; that fsync is called when it must be is a test of its own."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def instant_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
