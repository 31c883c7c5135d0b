"""How the end of the process is seen from inside: exceptions, exit codes, SIGTERM in and outside a loop."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from gscalar.runtime.exits import ExitWatch


class Watched:
    """A watch with its hooks installed, and what it was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[object] = []
        self.at_exit: list[Callable[[], None]] = []
        monkeypatch.setattr(atexit, "register", self.at_exit.append)
        monkeypatch.setattr(atexit, "unregister", lambda hook: self.at_exit.remove(hook))
        monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: self.told.append(f"shown: {error}"))
        self.watch = ExitWatch(on_failure=self.told.append, on_exit=self.told.append)

    def end_of_process(self) -> None:
        for hook in list(self.at_exit):
            hook()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    before = signal.getsignal(signal.SIGTERM)
    watched = Watched(monkeypatch)
    watched.watch.install()
    yield watched
    watched.watch.remove()
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_exception_is_recorded_and_then_shown_as_always(watched: Watched) -> None:
    error = ValueError("bad batch")
    sys.excepthook(ValueError, error, None)
    assert watched.told == [error, "shown: bad batch"]


EXIT_CODES: dict[str, tuple[object, int]] = {
    "none": (None, 0),
    "zero": (0, 0),
    "a number": (3, 3),
    "a message": ("no data here", 1),
}


@pytest.mark.parametrize("case", EXIT_CODES)
def test_the_end_is_told_the_code_of_sys_exit(case: str, watched: Watched) -> None:
    given, want = EXIT_CODES[case]
    with pytest.raises(SystemExit) as caught:
        sys.exit(given)  # type: ignore[arg-type]
    assert caught.value.code == given
    watched.end_of_process()
    assert watched.told == [want]


def test_a_script_that_just_ends_ends_with_zero(watched: Watched) -> None:
    watched.end_of_process()
    assert watched.told == [0]


def test_a_system_exit_seen_on_its_way_out_counts(watched: Watched) -> None:
    watched.watch.note_exit(7)
    watched.end_of_process()
    assert watched.told == [7]


def test_sigterm_in_a_loop_only_raises_a_flag(watched: Watched) -> None:
    watched.watch.in_loop = True
    signal.raise_signal(signal.SIGTERM)
    assert watched.watch.stop_requested
    assert not watched.watch.terminated


def test_a_second_sigterm_ends_the_process_and_it_is_no_ordinary_end(watched: Watched) -> None:
    watched.watch.in_loop = True
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert watched.watch.terminated
    watched.end_of_process()
    assert watched.told == [128 + signal.SIGTERM]


def test_sigterm_outside_a_loop_ends_the_process_at_once(watched: Watched) -> None:
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    assert watched.watch.terminated
    watched.end_of_process()
    assert watched.told == [128 + signal.SIGTERM]


def test_a_handler_of_the_scripts_own_is_called_too_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    called: list[int] = []
    own = lambda signum, frame: called.append(signum)  # noqa: E731 - compared below
    signal.signal(signal.SIGTERM, own)
    try:
        watched = Watched(monkeypatch)
        watched.watch.install()
        watched.watch.in_loop = True
        signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM]
        watched.watch.remove()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_all_hooks_are_given_back_and_twice_does_no_harm(watched: Watched) -> None:
    assert sys.exit == watched.watch._exit
    watched.watch.remove()
    watched.watch.remove()
    assert sys.exit != watched.watch._exit
    sys.excepthook(ValueError, ValueError("later"), None)
    watched.end_of_process()
    assert watched.told == ["shown: later"]


def test_a_watch_that_is_over_passes_on_what_still_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    called: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: called.append(signum))
    try:
        first, second = Watched(monkeypatch), Watched(monkeypatch)
        first.watch.install()
        second.watch.install()
        first.watch.remove()
        assert signal.getsignal(signal.SIGTERM) == second.watch._on_sigterm
        second.watch.remove()
        signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM]
        assert not first.watch.stop_requested
        sys.excepthook(ValueError, ValueError("later"), None)
        assert [told for told in first.told if isinstance(told, ValueError)] == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_hook_that_somebody_put_on_top_is_not_taken_away(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = lambda kind, error, trace: None  # noqa: E731 - compared below
    monkeypatch.setattr(sys, "excepthook", theirs)
    watched.watch.remove()
    assert sys.excepthook is theirs


def test_a_forked_child_dies_of_sigterm_and_tells_nothing_of_its_end(watched: Watched) -> None:
    watched.watch.in_loop = True
    child = os.fork()
    if child == 0:
        watched.end_of_process()
        if not watched.told:
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not watched.watch.stop_requested


# ---- Ctrl-C


def test_ctrl_c_in_a_loop_only_raises_a_flag_and_is_told(monkeypatch: pytest.MonkeyPatch, watched: Watched) -> None:
    monkeypatch.setattr(watched.watch, "_on_interrupt", lambda: watched.told.append("told"))
    watched.watch.in_loop = True
    signal.raise_signal(signal.SIGINT)
    assert (watched.watch.stop_requested, watched.watch.interrupted, watched.watch.terminated) == (True, True, False)
    assert watched.told == ["told"]


def test_a_second_ctrl_c_interrupts_at_once_but_not_the_same_one_passed_on(
    monkeypatch: pytest.MonkeyPatch, watched: Watched
) -> None:
    now_s = 50.0
    monkeypatch.setattr("gscalar.runtime.exits.time.monotonic", lambda: now_s)
    watched.watch.in_loop = True
    signal.raise_signal(signal.SIGINT)
    now_s = 50.1
    signal.raise_signal(signal.SIGINT)
    now_s = 51.0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_outside_a_loop_interrupts_as_always(watched: Watched) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not watched.watch.stop_requested


@pytest.mark.parametrize("why", ["a handler of its own", "a notebook", "ignored"])
def test_ctrl_c_is_left_alone_where_somebody_else_has_it(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    theirs = {"a handler of its own": lambda signum, frame: None, "ignored": signal.SIG_IGN}.get(why, before)
    signal.signal(signal.SIGINT, theirs)
    try:
        if why == "a notebook":
            monkeypatch.setitem(sys.modules, "ipykernel", sys)
        watched = Watched(monkeypatch)
        watched.watch.install()
        assert signal.getsignal(signal.SIGINT) is theirs
        watched.watch.remove()
        assert signal.getsignal(signal.SIGINT) is theirs
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_pythons_own_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.watch.install()
    assert signal.getsignal(signal.SIGINT) == watched.watch._on_sigint
    watched.watch.remove()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
