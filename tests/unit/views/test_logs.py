from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gscalar.base.errors import UserError
from gscalar.state.home import Home, RunFolder
from gscalar.views.logs import read_logs


@pytest.fixture
def place(home: Path) -> Home:
    return Home(home)


def write(folder: RunFolder, attempt: int, rank: int, content: bytes) -> None:
    path = folder.worker_log(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


def fill(home: Home) -> RunFolder:
    folder = home.run("r1")
    write(folder, 0, 0, b"old\n")
    write(folder, 1, 0, b"one\ntwo\n")
    write(folder, 1, 1, b"other\nwithout an end")
    return folder


READ = {
    "the newest attempt, rank by rank": ({}, ["1.0 one", "1.0 two", "1.1 other", "1.1 without an end"]),
    "one rank": ({"rank": 1}, ["1.1 other", "1.1 without an end"]),
    "an earlier attempt": ({"attempt": 0}, ["0.0 old"]),
}


@pytest.mark.parametrize("sentence", READ)
def test_read(sentence: str, place: Home) -> None:
    options, want = READ[sentence]
    fill(place)
    got = [f"{line.attempt}.{line.rank} {line.text}" for line in read_logs(place, "r1", **options)]
    assert got == want


REFUSED = {
    "a rank that is not there": ({"rank": 7}, "ranks 0 to 1"),
    "an attempt that is not there": ({"attempt": 3}, "attempts 0 to 1"),
    "a rank that an attempt did not have": ({"attempt": 0, "rank": 1}, "ranks 0."),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refused(sentence: str, place: Home) -> None:
    options, hint = REFUSED[sentence]
    fill(place)
    with pytest.raises(UserError) as caught:
        list(read_logs(place, "r1", **options))
    assert caught.value.code == "no-logs"
    assert hint in caught.value.next_step


def test_a_run_without_any_log_is_explained(place: Home) -> None:
    with pytest.raises(UserError) as caught:
        list(read_logs(place, "r1"))
    assert caught.value.code == "no-logs"


def follow(place: Home, *steps: Callable[[], None], **options: int) -> Iterator[str]:
    """Follow a run that does these steps, one each time that there is nothing new, and then ends."""
    left = list(steps)

    def wait() -> bool:
        if left:
            left.pop(0)()
            return True
        return False

    for line in read_logs(place, "r1", wait=wait, **options):  # type: ignore[arg-type]
        yield f"{line.attempt}.{line.rank} {line.text}"


def test_followed_logs_go_on_through_later_attempts_until_the_end(place: Home) -> None:
    folder = place.run("r1")
    got = follow(
        place,
        lambda: write(folder, 0, 0, b"one\ntw"),
        lambda: write(folder, 0, 0, b"o\n"),
        lambda: write(folder, 1, 0, b"three\n"),
        lambda: write(folder, 1, 0, b"the end"),
    )
    assert list(got) == ["0.0 one", "0.0 two", "1.0 three", "1.0 the end"]


def test_a_followed_attempt_does_not_go_over_to_the_next(place: Home) -> None:
    folder = place.run("r1")
    write(folder, 0, 0, b"one\n")
    got = follow(place, lambda: write(folder, 1, 0, b"two\n"), attempt=0)
    assert list(got) == ["0.0 one"]


def test_following_a_run_that_ends_without_a_word_is_explained(place: Home) -> None:
    with pytest.raises(UserError) as caught:
        list(follow(place))
    assert caught.value.code == "no-logs"
