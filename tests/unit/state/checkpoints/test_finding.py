"""Damage is found whatever it is, named, and answered by the checkpoint before."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.base.errors import Damaged
from gscalar.state.checkpoints import (
    find_loadable,
    finding,
    list_checkpoints,
    manifest,
    save_checkpoint,
    verify_checkpoint,
)

FACTS = {"run": "abc", "attempt": 1, "world": 2, "created_ns": 1_700_000_000_000_000_000}
CONTENT = {
    "state.json": b'{"a": 1}\n',
    "arrays/.metadata": b"m" * 40,
    "arrays/__0_0.distcp": bytes(range(256)),
}


def save(folder: Path, step: int) -> Path:
    def write(draft: Path) -> None:
        for name, content in CONTENT.items():
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_bytes(content)

    return save_checkpoint(folder, step, FACTS, write).path


@contextmanager
def two_checkpoints() -> Iterator[tuple[Path, Path, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder), save(Path(folder), 1), save(Path(folder), 2)


def rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and give it the digest of what it is now, as somebody with a purpose would."""
    body = json.loads((checkpoint / "manifest.json").read_text())
    body.pop("digest")
    change(body)
    digest = manifest._digest(body)
    (checkpoint / "manifest.json").write_bytes(manifest._render({**body, "digest": digest}))


@given(data=st.data())
def test_any_changed_byte_of_any_file_is_found_and_the_one_before_is_used(data: st.DataObject) -> None:
    with two_checkpoints() as (folder, before, newest):
        name = data.draw(st.sampled_from(["manifest.json", *CONTENT]))
        content = bytearray((newest / name).read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["flip", "remove", "insert", "append", "truncate"])):
            case "flip":
                content[place] ^= data.draw(st.integers(1, 255))
            case "remove":
                del content[place]
            case "insert":
                content.insert(place, data.draw(st.integers(0, 255)))
            case "append":
                content += data.draw(st.binary(min_size=1, max_size=3))
            case "truncate":
                del content[place:]
        changed = bytes(content) != (newest / name).read_bytes()
        (newest / name).write_bytes(content)
        got = find_loadable(folder)
        assert got.found is not None
        if changed:
            assert [path for path, _ in got.damaged] == [newest]
            assert name in got.damaged[0][1]
            assert got.found.path == before
        else:  # a byte inserted beside its like and such
            assert got.found.path == newest


def bad_path(path: str) -> Callable[[Path], object]:
    entry = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    return lambda newest: rewrite(newest, lambda body: body["files"].update({path: entry}))


def by_link(newest: Path) -> None:
    (newest / "state.json").rename(newest / "elsewhere")
    (newest / "state.json").symlink_to("elsewhere")


def by_folder_link(newest: Path) -> None:
    (newest / "arrays").rename(newest / "elsewhere")
    (newest / "arrays").symlink_to("elsewhere")


def by_fifo(newest: Path) -> None:
    (newest / "state.json").unlink()
    os.mkfifo(newest / "state.json")


def by_folder(newest: Path) -> None:
    (newest / "state.json").unlink()
    (newest / "state.json").mkdir()


def text_of_manifest(text: str) -> Callable[[Path], object]:
    return lambda newest: (newest / "manifest.json").write_text(text)


def set_key(key: str, value: object) -> Callable[[Path], object]:
    return lambda newest: rewrite(newest, lambda body: body.update({key: value}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (lambda newest: (newest / "state.json").unlink(), "state.json is missing"),
    "a missing folder": (lambda newest: shutil.rmtree(newest / "arrays"), "arrays/.metadata is missing"),
    "no manifest": (lambda newest: (newest / "manifest.json").unlink(), "manifest.json is missing"),
    "a short file": (lambda newest: (newest / "state.json").write_text("{}"), "has 2 bytes, not 9"),
    "another content of the same size": (
        lambda newest: (newest / "state.json").write_bytes(b'{"a": 2}\n'),
        "state.json has another checksum",
    ),
    "an empty manifest": (text_of_manifest(""), "not what was written"),
    "a manifest that is a list": (text_of_manifest("[]"), "not what was written"),
    "a manifest without end": (text_of_manifest("[" * 100_000), "not what was written"),
    "a manifest with NaN": (text_of_manifest('{"version": 1, "step": NaN}'), "not what was written"),
    "a manifest of another step": (set_key("step", 3), "that of step 3"),
    "a manifest without files": (set_key("files", None), "lists no files"),
    "a file without a size": (set_key("files", {"state.json": {"bytes": "9"}}), "no size of 'state.json'"),
    "a manifest of a newer version": (set_key("version", 2), "has version 2"),
    "a path upwards": (bad_path("../outside"), "outside the checkpoint: '../outside'"),
    "a path upwards in the middle": (bad_path("arrays/../../outside"), "outside the checkpoint"),
    "an absolute path": (bad_path("/etc/hostname"), "outside the checkpoint: '/etc/hostname'"),
    "an empty path": (bad_path(""), "outside the checkpoint"),
    "a path with a zero byte": (bad_path("a\0b"), "outside the checkpoint"),
    "a link in place of a file": (by_link, "state.json is a symbolic link"),
    "a link in place of a folder": (by_folder_link, "arrays/.metadata cannot be read"),
    "a FIFO in place of a file": (by_fifo, "state.json cannot be read: Not a regular file"),
    "a folder in place of a file": (by_folder, "state.json cannot be read: Not a regular file"),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_damage_is_named_and_the_one_before_is_used(sentence: str) -> None:
    damage, reason = DAMAGES[sentence]
    with two_checkpoints() as (folder, before, newest):
        (folder / "outside").write_text("x")
        damage(newest)
        got = find_loadable(folder)
        assert got.found is not None
        assert got.found.path == before
        ((path, why),) = got.damaged
        assert path == newest
        assert reason in why
        with pytest.raises(Damaged) as caught:
            verify_checkpoint(newest)
        assert caught.value.code == "checkpoint-damaged"


def test_every_damaged_one_is_returned_newest_first(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    for path in paths[1:]:
        (path / "state.json").unlink()
    got = find_loadable(tmp_path)
    assert got.found is not None
    assert got.found.path == paths[0]
    assert [path for path, _ in got.damaged] == [paths[2], paths[1]]
    (paths[0] / "state.json").unlink()
    assert find_loadable(tmp_path).found is None
    assert len(find_loadable(tmp_path).damaged) == 3


def test_what_is_no_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    saved = save(tmp_path, 5)
    for name in (
        "step-7",
        "step-00000000007",
        "step-0000000000007",
        "step-000000000007.0",
        "step-000000000007.bak",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000000000008").touch()
    (tmp_path / "step-000000000009").symlink_to(saved)
    assert find_loadable(tmp_path).damaged == []
    assert [each.path for each in list_checkpoints(tmp_path)] == [saved]


def test_the_list_leaves_out_what_has_no_sound_manifest(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "manifest.json").write_text("{}")
    assert [each.step for each in list_checkpoints(tmp_path)] == [1]


def test_files_that_the_manifest_does_not_list_do_no_harm(tmp_path: Path) -> None:
    (save(tmp_path, 1) / ".nfs0001").touch()
    assert find_loadable(tmp_path).damaged == []


def test_a_checkpoint_pruned_under_the_reader_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save(tmp_path, 1)
    real = finding.verify_checkpoint

    def prune_first(path: Path) -> object:
        if path == old and old.exists():
            save(tmp_path, 2)
            shutil.rmtree(old)
        return real(path)

    monkeypatch.setattr(finding, "verify_checkpoint", prune_first)
    got = find_loadable(tmp_path)
    assert got.damaged == []
    assert got.found is not None
    assert got.found.step == 2
