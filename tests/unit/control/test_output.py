"""What rank 0 printed, on its way to the display."""

from __future__ import annotations

from pathlib import Path

from gscalar.control.output import HOLD_S, TAIL_BYTES, OutputHold, OutputTail, read_log_tail

TRACE = ["Traceback (most recent call last):", '  File "t.py", line 1', "ValueError: x"]


def test_lines_pass_at_once() -> None:
    assert OutputHold().feed(["a", "b"], 0.0) == ["a", "b"]


def test_a_traceback_is_held_back_with_what_follows_it() -> None:
    hold = OutputHold()
    assert hold.feed(["a", *TRACE], 0.0) == ["a"]
    assert hold.feed(["after"], 0.1) == []


def test_a_failed_workers_traceback_is_never_shown_twice() -> None:
    hold = OutputHold()
    hold.feed(TRACE, 0.0)
    assert hold.feed([], HOLD_S + 1, failing=True) == []
    assert hold.end(failed=True) == []


def test_a_logged_exception_passes_when_the_worker_lives_on() -> None:
    hold = OutputHold()
    hold.feed(TRACE, 0.0)
    assert hold.feed(["going on"], HOLD_S) == [*TRACE, "going on"]
    assert hold.feed(["more"], HOLD_S) == ["more"]


def test_a_logged_exception_passes_at_an_end_in_order() -> None:
    hold = OutputHold()
    hold.feed(TRACE, 0.0)
    assert hold.end(failed=False) == TRACE


def test_torchs_rank_prefix_does_not_hide_a_traceback() -> None:
    assert OutputHold().feed([f"[rank0]: {TRACE[0]}"], 0.0) == []


def test_a_tail_gives_whole_lines_and_at_the_end_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    tail = OutputTail(log)
    assert tail.poll() == []
    log.write_bytes(b"eins\nzw")
    assert tail.poll() == ["eins"]
    with log.open("ab") as file:
        file.write(b"ei\nlast")
    assert tail.poll() == ["zwei"]
    assert tail.rest() == ["last"]
    assert tail.rest() == []


def test_a_progress_bar_shows_its_last_state(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"10%\r50%\r100%\r\nplain\r\n")
    assert OutputTail(log).poll() == ["100%", "plain"]


def test_a_character_that_is_cut_between_two_reads_is_put_together(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    tail = OutputTail(log)
    whole = "größe\n".encode()
    log.write_bytes(whole[:3])
    assert tail.poll() == []
    log.write_bytes(whole)
    assert tail.poll() == ["größe"]


def test_the_end_of_a_long_log_is_read_and_a_missing_log_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"a" * TAIL_BYTES + b"\nend\n")
    assert read_log_tail(log).endswith("\nend\n")
    assert len(read_log_tail(log)) == TAIL_BYTES
    assert read_log_tail(tmp_path / "absent") == ""


def test_lines_after_one_that_is_longer_than_a_poll_are_not_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 3_000_000 + b"\nlast")
    tail = OutputTail(log)
    assert [len(line) for line in tail.rest()] == [3_000_000, 4]
