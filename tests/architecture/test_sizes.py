"""Files, functions, parameter lists and classes stay small.

A soft limit may be passed only with an entry in allowed_sizes.toml that holds the exact size and why;
the hard limits may not be passed at all. An entry shrinks with the code and goes when it is not needed.

A function's body is counted from its first statement after the docstring to its last line, comments
and blank lines included. A method's `self` or `cls` is no parameter.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ROOT / "tests/architecture/allowed_sizes.toml"
FOLDERS = ("src", "tests", "recipes", "benchmarks", "scripts")
SOFT = {"lines": 500, "body": 50, "parameters": 8, "methods": 25}
HARD = {"lines": 800, "body": 80}

Sizes = dict[tuple[str, str], int]  # (place, measure) -> size


def python_files() -> list[Path]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in paths if path.suffix == ".py" or has_python_shebang(path))


def has_python_shebang(path: Path) -> bool:
    if path.suffix:
        return False
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


def measure(source: str, place: str) -> Sizes:
    sizes = {(place, "lines"): len(source.splitlines())}
    for name, node in definitions(ast.parse(source), ""):
        where = f"{place}:{name}"
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            sizes[where, "methods"] = len(methods)
        else:
            sizes[where, "body"] = body_lines(node)
            sizes[where, "parameters"] = num_parameters(node)
    return sizes


def definitions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not statements:
        return 0
    first = statements[0]
    decorators = getattr(first, "decorator_list", [])
    start = min([first.lineno, *(each.lineno for each in decorators)])
    return (node.end_lineno or start) - start + 1


def num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def all_sizes() -> Sizes:
    sizes: Sizes = {}
    for path in python_files():
        sizes |= measure(path.read_text(), path.relative_to(ROOT).as_posix())
    return sizes


def complaints(sizes: Sizes, allowed: dict[str, dict[str, object]]) -> list[str]:
    """Return what is wrong, as sentences."""
    wrong = []
    for (place, what), size in sizes.items():
        entry = allowed.get(place, {}).get(what)
        if size > HARD.get(what, size):
            wrong.append(f"{place}: {what} {size} is above the hard limit of {HARD[what]}")
        elif size > SOFT[what] and entry is None:
            wrong.append(f"{place}: {what} {size} is above the limit of {SOFT[what]}")
        elif entry is not None and size <= SOFT[what]:
            wrong.append(f"{place}: {what} {size} is within the limit; remove the entry")
        elif entry is not None and size != entry:
            verb = "grew to" if size > int(str(entry)) else "shrank to"
            wrong.append(f"{place}: {what} {verb} {size} and the entry says {entry}; an entry may only shrink")
    for place, entry in allowed.items():
        if not entry.get("why"):
            wrong.append(f"{place}: the entry does not say why")
        wrong += [
            f"{place}: there is no {what} here; remove the entry"
            for what in entry
            if what != "why" and (place, what) not in sizes
        ]
    return wrong


def test_nothing_is_larger_than_allowed_and_no_entry_is_larger_than_needed() -> None:
    wrong = complaints(all_sizes(), tomllib.loads(ALLOWED.read_text()))
    assert not wrong, "\n" + "\n".join(wrong)


LONG = "def f(self, a):\n    '''Doc.'''\n" + "    x = 1\n" * 60
CASES = {
    "a long function without an entry is named": (LONG, {}, "body 60 is above the limit of 50"),
    "an entry with the exact size is enough": (LONG, {"a.py:f": {"body": 60, "why": "x"}}, None),
    "a function may not grow beyond its entry": (
        LONG,
        {"a.py:f": {"body": 59, "why": "x"}},
        "body grew to 60",
    ),
    "an entry shrinks with the code": (LONG, {"a.py:f": {"body": 61, "why": "x"}}, "body shrank to 60"),
    "an entry that is not needed must go": (
        "def f(): pass",
        {"a.py:f": {"body": 1, "why": "x"}},
        "remove the entry",
    ),
    "an entry for what is gone must go": ("", {"a.py:g": {"body": 60, "why": "x"}}, "there is no body here"),
    "an entry says why": (LONG, {"a.py:f": {"body": 60}}, "does not say why"),
    "no entry lifts a hard limit": (
        LONG + "    y = 1\n" * 30,
        {"a.py:f": {"body": 90, "why": "x"}},
        "above the hard limit of 80",
    ),
    "a docstring is no body": ("def f():\n    '''" + "\n" * 60 + "'''\n", {}, None),
    "nine parameters are one too many": ("def f(a, b, c, d, e, f, g, *, h, i): ...", {}, "parameters 9"),
    "self is no parameter": ("class C:\n def f(self, a, b, c, d, e, f, g, h): ...", {}, None),
    "a file of 501 lines is named": ("\n" * 501, {}, "lines 501"),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_check_itself(sentence: str) -> None:
    source, allowed, want = CASES[sentence]
    got = complaints(measure(source, "a.py"), allowed)
    assert (got == []) if want is None else (len(got) == 1 and want in got[0]), got
