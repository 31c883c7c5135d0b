"""Unit tests open no socket and do not sleep; what needs either is an integration test."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import pytest_socket


@pytest.fixture(autouse=True)
def closed_sockets() -> Iterator[None]:
    """Refuse every socket but UNIX ones, which event loops need inside one process."""
    pytest_socket.disable_socket(allow_unix_socket=True)
    yield
    pytest_socket.enable_socket()


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to sleep in the test's own thread: pass a fake clock instead."""

    def refuse(seconds: float) -> None:
        raise AssertionError(f"a unit test slept for {seconds} s; pass a fake clock instead")

    monkeypatch.setattr(time, "sleep", refuse)
