"""Every fenced code block of the Markdown pages is run, or says why not.

The blocks of a page run in order in one empty folder with a home of its own, in which `recipes` is the
project's; gscalar, python and torchrun are those of the environment. An HTML comment on the line before
a block says what is done with it:

    ```python                        is run
    <!-- run -->                     before ```bash or ```console: each command line is run and must exit 0
    <!-- run: exit 2 -->             the same, and the last command must exit 2
    <!-- file: train.py -->          the block is written to this file, for the commands that follow
    <!-- not run: the reason -->     nothing is run
    ```yaml                          is parsed as a job spec (without `command` it is a part of one)
    ```json, ```toml                 is parsed
    ```text                          is output or a drawing

A block without a language, or a shell block without a comment, fails the test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SLOW_S = {
    "docs/keras.md": 60,
    "docs/first-script.md": 45,
    "docs/recipes.md": 35,
    "README.md": 25,
    "docs/world-size.md": 20,
}
SHELLS = ("bash", "console")
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
COMMENT = re.compile(r"^\s*<!-- *(?P<verb>run|file|not run)(?:: *(?P<what>.*?))? *-->\s*$")
BLOCK_TIMEOUT_S = 240
PARSE = (
    "import sys; from gscalar.model.parsing import load_spec; "
    "load_spec(sys.stdin.buffer.read(), 'block.yaml', (), {}, {})"
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: where it starts, its language, what the comment before it asks, its text."""

    where: str
    language: str
    verb: str | None
    what: str
    text: str


def blocks(page: str, text: str) -> Iterator[Block]:
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        opening = FENCE.match(lines[index])
        if opening is None:
            index += 1
            continue
        start, closing = index, opening["indent"] + opening["fence"]
        index += 1
        while index < len(lines) and lines[index].rstrip() != closing:
            index += 1
        body = [line.removeprefix(opening["indent"]) for line in lines[start + 1 : index]]
        comment = COMMENT.match(previous_line(lines, start))
        yield Block(
            where=f"{page}:{start + 1}",
            language=(opening["info"].split() or [""])[0],
            verb=comment["verb"] if comment else None,
            what=(comment["what"] or "") if comment else "",
            text="\n".join(body) + "\n",
        )
        index += 1


def previous_line(lines: list[str], index: int) -> str:
    """Return the last line before the index that is not empty."""
    return next((line for line in reversed(lines[:index]) if line.strip()), "")


def run_block(block: Block, folder: Path) -> None:
    assert block.language, f"{block.where}: the block names no language"
    if block.verb == "not run":
        assert block.what, f"{block.where}: `not run` needs a reason"
    elif block.verb == "file":
        path = folder / block.what
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    elif block.language == "python":
        call([sys.executable, "-"], block, folder, text=block.text)
    elif block.language in SHELLS:
        assert block.verb == "run", f"{block.where}: say `<!-- run -->` or `<!-- not run: reason -->` before it"
        run_commands(block, folder)
    elif block.language == "yaml":
        parse_spec(block, folder)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    else:
        assert block.language == "text", f"{block.where}: no rule for {block.language}; use text or a comment"


def run_commands(block: Block, folder: Path) -> None:
    found = commands(block)
    wanted_exit = int(block.what.removeprefix("exit ")) if block.what else 0
    for number, command in enumerate(found, 1):
        call(["bash", "-c", command], block, folder, exits=wanted_exit if number == len(found) else 0)


def commands(block: Block) -> list[str]:
    """Return a shell block's commands: in ```console the lines after `$ `, in ```bash all but comments."""
    joined = block.text.replace("\\\n", " ")
    if block.language == "console":
        return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def parse_spec(block: Block, folder: Path) -> None:
    has_command = re.search(r"(?m)^command:", block.text)
    text = block.text if has_command else block.text + "\ncommand: python train.py\n"
    call([sys.executable, "-c", PARSE], block, folder, text=text)


def call(command: list[str], block: Block, folder: Path, *, text: str = "", exits: int = 0) -> None:
    done = subprocess.run(
        command,
        input=text,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=BLOCK_TIMEOUT_S,
        check=False,
    )
    shown = text or command[-1]
    assert done.returncode == exits, (
        f"{block.where}: exit {done.returncode}, not {exits}\n{shown}\n{done.stdout}\n{done.stderr}"
    )


def environment(folder: Path) -> dict[str, str]:
    # Pages say both `gscalar` and `.venv/bin/gscalar`; the second is found through a link in the folder.
    tools = str(Path(sys.executable).parent)
    return os.environ | {
        "GSCALAR_HOME": str(folder / "home"),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


def page_parameter(path: Path) -> Any:
    name = path.relative_to(ROOT).as_posix()
    return pytest.param(path, id=name, marks=[pytest.mark.slow(SLOW_S[name])] if name in SLOW_S else [])


@pytest.mark.e2e
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", [page_parameter(path) for path in PAGES])
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    for block in blocks(page.relative_to(ROOT).as_posix(), page.read_text()):
        run_block(block, tmp_path)


BAD = {
    "a block without a language": ("```\nls\n```\n", "names no language"),
    "a shell block without a comment": ("```bash\nls\n```\n", "say `<!-- run -->`"),
    "a block that is not run without a reason": ("<!-- not run -->\n```bash\nls\n```\n", "needs a reason"),
    "a language without a rule": ("```rust\nfn\n```\n", "no rule for rust"),
    "python that raises": ("```python\nraise SystemExit(4)\n```\n", "exit 4, not 0"),
    "a command that fails": ("<!-- run -->\n```bash\n# why\nfalse\n```\n", "exit 1, not 0"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_the_check_refuses(sentence: str, tmp_path: Path) -> None:
    page, want = BAD[sentence]
    (block,) = blocks("page.md", page)
    with pytest.raises(AssertionError, match=re.escape(want)):
        run_block(block, tmp_path)


def test_the_check_takes_files_commands_and_expected_exits_in_order(tmp_path: Path) -> None:
    page = (
        "<!-- file: a/b.py -->\n```python\nraise SystemExit(3)\n```\n"
        "- item\n\n  <!-- run: exit 3 -->\n\n  ```console\n  $ true\n  output\n  $ python a/b.py\n  ```\n"
        "```json\n{}\n```\n```text\nanything\n```\n"
    )
    found = list(blocks("page.md", page))
    assert [block.where for block in found] == ["page.md:2", "page.md:9", "page.md:14", "page.md:17"]
    for block in found:
        run_block(block, tmp_path)
