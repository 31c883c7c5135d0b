"""The commit protocol, with a crash, a failure and a full disk at every one of its calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gscalar.state.checkpoints import (
    begin_checkpoint,
    commit_checkpoint,
    discard_draft,
    find_loadable,
    layout,
    list_checkpoints,
    prune_checkpoints,
    read_latest,
    repair_latest,
    save_checkpoint,
    verify_checkpoint,
)
from gscalar.testing.disk_faults import Crash, disk_faults

FACTS = {"run": "abc", "attempt": 0, "world": 2, "created_ns": 1}


def files(draft: Path, text: str) -> None:
    (draft / "state.json").write_text(text)
    (draft / "arrays").mkdir()
    (draft / "arrays" / "a.bin").write_bytes(text.encode() * 100)
    (draft / "arrays" / "empty").touch()


def save(folder: Path, step: int, text: str = "") -> Path:
    return save_checkpoint(folder, step, FACTS, lambda draft: files(draft, text or f"step {step}")).path


def text(checkpoint: Path) -> str:
    return (checkpoint / "state.json").read_text()


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(".*")]


def latest(folder: Path) -> Path:
    """Return what `latest` names, after making sure that it loads."""
    path = read_latest(folder)
    assert path is not None
    return verify_checkpoint(path).path


def test_a_saved_checkpoint_is_found_listed_and_named_by_latest(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved = save_checkpoint(folder, 100, FACTS, lambda draft: files(draft, "x"))
    assert saved.path == folder / "step-000000000100"
    assert saved.num_bytes == sum(path.stat().st_size for path in saved.path.rglob("*") if path.is_file())
    assert saved.facts == FACTS
    assert list_checkpoints(folder) == [saved]
    assert find_loadable(folder).found == saved
    assert find_loadable(folder).damaged == []
    assert (folder / "latest").read_text() == "step-000000000100\n"
    assert hidden(folder) == []


def test_checkpoints_are_listed_newest_first_by_number(tmp_path: Path) -> None:
    for step in (9, 10_000_000_000_000, 100):
        save(tmp_path, step)
    assert [each.step for each in list_checkpoints(tmp_path)] == [10_000_000_000_000, 100, 9]


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert find_loadable(folder).found is None
        assert list_checkpoints(folder) == []
        assert read_latest(folder) is None


def test_a_draft_is_nothing_until_it_is_committed(tmp_path: Path) -> None:
    draft = begin_checkpoint(tmp_path, 5)
    files(draft, "x")
    assert find_loadable(tmp_path).found is None
    discard_draft(draft)
    discard_draft(draft)
    assert list(tmp_path.iterdir()) == []


def test_the_same_step_again_replaces_the_old_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 100, "first")
    second = save(tmp_path, 100, "second")
    assert second.name == "step-000000000100.1"
    assert text(latest(tmp_path)) == "second"
    third = save_checkpoint(tmp_path, 100, FACTS, lambda draft: files(draft, "third"))
    assert third.replaced == (second,)
    assert list_checkpoints(tmp_path) == [third]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-000000000100.2"]


def test_what_write_raises_goes_through_and_the_draft_goes(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def write(draft: Path) -> None:
        files(draft, "half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(tmp_path, 2, FACTS, write)
    assert caught.value.errno == errno.ENOSPC
    assert hidden(tmp_path) == []
    assert latest(tmp_path).name == "step-000000000001"


def test_a_link_in_a_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "checkpoints"
    with pytest.raises(OSError, match="symbolic links"):
        save_checkpoint(folder, 1, FACTS, lambda draft: (draft / "link").symlink_to(tmp_path / "secret"))
    assert list(folder.iterdir()) == []


def failure(act: Callable[[], object]) -> OSError | None:
    try:
        act()
    except OSError as error:
        return error
    return None


def prepare_next(folder: Path) -> Callable[[], object]:
    save(folder, 100)
    return lambda: save(folder, 200)


def prepare_again(folder: Path) -> Callable[[], object]:
    save(folder, 100)
    save(folder, 200, "old")
    return lambda: save(folder, 200)


def prepare_first(folder: Path) -> Callable[[], object]:
    return lambda: save(folder, 200)


def prepare_prune(folder: Path) -> Callable[[], object]:
    for step in (98, 99, 100):
        save(folder, step)
    return lambda: prune_checkpoints(folder, 1)


# What is done, and the texts that may be the newest one after it was cut short.
PROTOCOLS: dict[str, tuple[Callable[[Path], Callable[[], object]], set[str | None]]] = {
    "the first checkpoint": (prepare_first, {None, "step 200"}),
    "a later checkpoint": (prepare_next, {"step 100", "step 200"}),
    "the same step again": (prepare_again, {"old", "step 200"}),
    "pruning": (prepare_prune, {"step 100"}),
}


def num_calls(sentence: str, tmp_path: Path) -> int:
    act = PROTOCOLS[sentence][0](tmp_path / "counted")
    with disk_faults() as counted:
        act()
    assert counted.calls >= 4, counted.names
    return counted.calls


@pytest.mark.parametrize("sentence", PROTOCOLS)
def test_a_crash_at_any_call_leaves_one_that_loads(sentence: str, tmp_path: Path) -> None:
    prepare, allowed = PROTOCOLS[sentence]
    for at in range(num_calls(sentence, tmp_path)):
        folder = tmp_path / str(at)
        act = prepare(folder)
        with disk_faults(at), pytest.raises(Crash):
            act()
        for path in folder.glob("step-*"):
            verify_checkpoint(path)  # those that are not the newest are not there by half either
        found = find_loadable(folder)
        assert (text(found.found.path) if found.found else None) in allowed, at
        if (folder / "latest").exists():
            assert text(latest(folder)) in allowed
        else:
            assert None in allowed, at
        act()  # the next process goes on
        assert text(latest(folder)) == ("step 100" if sentence == "pruning" else "step 200"), at


@pytest.mark.parametrize("sentence", [each for each in PROTOCOLS if each != "pruning"])
@pytest.mark.parametrize("kind", ["fail", "full"])
def test_a_disk_that_fails_at_any_call_leaves_the_old_one_latest(sentence: str, kind: str, tmp_path: Path) -> None:
    prepare, allowed = PROTOCOLS[sentence]
    (old,) = allowed - {"step 200"}
    for at in range(num_calls(sentence, tmp_path)):
        folder = tmp_path / f"{kind}-{at}"
        act = prepare(folder)
        before = read_latest(folder)
        with disk_faults(at, kind, errno.ENOSPC) as faults:
            raised = failure(act)
        assert find_loadable(folder).damaged == []
        if raised:
            assert raised.errno == errno.ENOSPC, at
            assert read_latest(folder) == before, (at, faults.names)
            found = find_loadable(folder).found
            assert (text(found.path) if found else None) == old, (at, faults.names)
            assert hidden(folder) == [], (at, faults.names)
        else:  # only the clean-up after the commit was hit
            assert text(latest(folder)) == "step 200", (at, faults.names)


def test_pruning_that_fails_at_any_call_leaves_the_newest_and_latest(tmp_path: Path) -> None:
    for at in range(num_calls("pruning", tmp_path)):
        folder = tmp_path / str(at)
        act = prepare_prune(folder)
        with disk_faults(at, "fail"):
            failure(act)
        assert find_loadable(folder).damaged == []
        assert text(latest(folder)) == "step 100"


def test_drafts_of_dead_processes_are_swept_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    mine = begin_checkpoint(tmp_path, 1)
    machine = mine.name.split("-")[2]
    parent = os.getppid()
    start = layout._start_ticks(parent)
    assert start > 0
    living = tmp_path / f".draft-000000000001-{machine}-{parent}-{start}-00000000"
    reused_pid = tmp_path / f".draft-000000000001-{machine}-{parent}-{start + 1}-00000000"
    trash = tmp_path / f".trash-{machine}-4194304-7-00000000"  # above the largest pid
    staged = tmp_path / f".latest-{machine}-4194304-7-00000000"
    foreign = tmp_path / ".draft-000000000001-ffffffff-1-1-00000000"
    strange = tmp_path / ".draft-of-somebody"
    for path in (living, reused_pid, trash, foreign, strange):
        path.mkdir()
        (path / "file").touch()
    staged.touch()

    draft = begin_checkpoint(tmp_path, 2)
    assert set(tmp_path.iterdir()) == {mine, living, foreign, strange, draft}

    tomorrow = foreign.stat().st_mtime + layout.FOREIGN_AGE_S + 1
    begin_checkpoint(tmp_path, 3, clock_s=lambda: tomorrow)
    assert not foreign.exists()
    assert living.exists()


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert layout._start_ticks(pid) == 0
    os.waitpid(pid, 0)


def test_everything_is_durable_before_the_next_thing_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 100, "old")
    done: list[str] = []
    rename, replace = os.rename, os.replace

    def record(what: str, path: str | Path) -> None:
        done.append(f"{what} {Path(path).relative_to(tmp_path).as_posix()}")

    def renaming(real: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def call(old: Path, new: Path) -> None:
            record("name", new)
            real(old, new)

        return call

    monkeypatch.setattr(os, "fsync", lambda fd: record("sync", Path(f"/proc/self/fd/{fd}").readlink()))
    monkeypatch.setattr(os, "rename", renaming(rename))
    monkeypatch.setattr(os, "replace", renaming(replace))
    save(tmp_path, 100)

    commit = done.index("name step-000000000100.1")
    synced = {each.partition("/")[2] for each in done[:commit] if each.startswith("sync .draft-")}
    assert synced == {"", "manifest.json", "state.json", "arrays", "arrays/a.bin", "arrays/empty"}
    assert any(each.startswith("sync .latest-") for each in done[:commit])
    assert done[commit + 1 : commit + 4] == ["sync .", "name latest", "sync ."]
    assert done[commit + 4].startswith("name .trash-")
    assert done[commit + 5 :] == ["sync ."]


LATEST_TEXTS = {
    "a name of nothing": "step-000000000007\n",
    "an empty file": "",
    "a path that leaves the folder": "../checkpoints/step-000000000001",
    "no text": b"\xff\xfe\x00",
    "the name of another file": "latest",
}


@pytest.mark.parametrize("sentence", LATEST_TEXTS)
def test_latest_is_not_trusted(sentence: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    content = LATEST_TEXTS[sentence]
    (tmp_path / "latest").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read_latest(tmp_path) is None
    loadable = find_loadable(tmp_path)
    assert loadable.found is not None
    assert loadable.found.step == 1
    repair_latest(tmp_path, loadable)
    assert latest(tmp_path).name == "step-000000000001"


def test_latest_is_repaired_to_what_loads(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "state.json").write_text("rot")
    repair_latest(tmp_path, find_loadable(tmp_path))
    assert latest(tmp_path).name == "step-000000000001"
    (tmp_path / "step-000000000001" / "state.json").write_text("rot")
    repair_latest(tmp_path, find_loadable(tmp_path))
    assert not (tmp_path / "latest").exists()


def test_committing_goes_by_the_draft_that_it_is_given(tmp_path: Path) -> None:
    one, two = begin_checkpoint(tmp_path, 1), begin_checkpoint(tmp_path, 1)
    files(one, "one")
    files(two, "two")
    commit_checkpoint(tmp_path, two, 1, FACTS)
    assert text(latest(tmp_path)) == "two"
    commit_checkpoint(tmp_path, one, 1, FACTS)
    assert text(latest(tmp_path)) == "one"
