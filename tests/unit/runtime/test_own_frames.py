"""Which frames of a traceback people see."""

from __future__ import annotations

import traceback

import pytest

from gscalar.base.errors import UserError
from gscalar.model.parsing import load_environment
from gscalar.runtime.own_frames import shown_traceback


def shown(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(shown_traceback(error, error.__traceback__))]


def test_a_user_error_shows_the_scripts_frames_only() -> None:
    with pytest.raises(UserError) as caught:
        load_environment({"GSCALAR_SET": "no_such_key=1"})
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 1
    assert shown(caught.value) == ["test_a_user_error_shows_the_scripts_frames_only"]


def test_any_other_error_is_shown_whole() -> None:
    def fail() -> None:
        raise ValueError("the script's own")

    with pytest.raises(ValueError, match="own") as caught:
        fail()
    assert shown(caught.value) == ["test_any_other_error_is_shown_whole", "fail"]


def test_no_traceback_stays_none() -> None:
    assert shown_traceback(UserError(code="unknown-key", what="x"), None) is None
