"""No file says where it was written or where its packages came from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# In parts, so that this file does not hold what it looks for.
FORBIDDEN = {
    "a path of one machine": ["/" + "work/", "/" + "root/", "/opt/" + "pypi", "/opt/" + "wheels"],
    "a package registry's host": [
        "pypi" + ".org",
        "python" + "hosted.org",
        "npm" + "js.org",
        "deb." + "debian.org",
        "index-" + "url",
    ],
    "a wheel that fits one kind of machine": ["+" + "cpu", "+" + "cu1", "--" + "hash"],
}


def project_files() -> list[Path]:
    """Return every file of the project as git sees it, new ones too."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git work tree")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    got = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in project_files()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        for word in FORBIDDEN[what]
        if word.encode() in line
    ]
    assert not got, f"{what}:\n" + "\n".join(got)
