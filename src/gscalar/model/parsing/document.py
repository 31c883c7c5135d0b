"""From the bytes of a YAML document to a tree with places.

PyYAML's scanner and parser give events with marks; composing them is done here, since PyYAML's
composer recurses without a limit, keeps the last of two equal keys and lets aliases multiply.
Limits: 256 KiB of text, 64 levels and 20 000 values, both after aliases are expanded. No tag makes an object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import yaml
from yaml.reader import ReaderError

from gscalar.base.errors import SpecError
from gscalar.model.parsing.scalars import Scalar, resolve_plain
from gscalar.model.parsing.tree import MAX_DEPTH, Entry, Items, Leaf, Node, Table
from gscalar.model.spec import Origin

MAX_BYTES: Final = 2**18
MAX_VALUES: Final = 20_000
_CORE: Final = "tag:yaml.org,2002:"
_TAGGED: Final[dict[str, type]] = {
    _CORE + "null": type(None),
    _CORE + "bool": bool,
    _CORE + "int": int,
    _CORE + "float": float,
}

Locate = Callable[[int, int], str]  # line and column, both from 0 -> the place as a user reads it


def read_document(text: bytes, file: str) -> Table:
    """Return the tree of a spec file.

    Raises:
        SpecError: `bad-encoding`, `bad-yaml`, `duplicate-key`.
    """

    def locate(line: int, column: int) -> str:
        return f"{file}:{line + 1}:{column + 1}"

    node = _Composer(_decode(text, file), locate, "spec", "bad-yaml").document()
    if isinstance(node, Table):
        return node
    empty = isinstance(node, Leaf) and node.value is None
    raise SpecError(
        code="bad-yaml",
        what="The file holds no keys." if empty else "A job spec is a mapping of keys to values.",
        where=node.where,
        next_step="Write at least the command, such as `command: python train.py`.",
    )


def read_value(text: str, where: str, origin: Origin) -> Node:
    """Return the tree of one value, as on the right of `--set key=`.

    Raises:
        SpecError: `bad-override`, `duplicate-key`.
    """
    return _Composer(text, lambda line, column: where, origin, "bad-override").document()


def _decode(text: bytes, file: str) -> str:
    if len(text) > MAX_BYTES:
        raise SpecError(
            code="bad-yaml",
            what=f"The file has {len(text)} bytes; a job spec has at most {MAX_BYTES}.",
            where=file,
            next_step="Keep data out of the spec and give the script its path.",
        )
    offset, problem = -1, ""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        offset, problem = error.start, f"byte 0x{text[error.start]:02x} is no UTF-8"
    else:
        # Text in UTF-16 without a mark at its start is valid UTF-8 with many NULs.
        offset, problem = text.find(b"\0"), "there is a NUL byte"
        if offset < 0:
            return decoded  # the parser skips a byte order mark
    before = text[:offset].decode("utf-8").removeprefix("\ufeff")
    line = before.count("\n")
    raise SpecError(
        code="bad-encoding",
        what=f"The file is not UTF-8 text: {problem}, at offset {offset}.",
        where=f"{file}:{line + 1}:{len(before) - before.rfind(chr(10))}",
        next_step="Save the file as UTF-8.",
    )


class _Composer:
    """Builds the tree of one document from the parser's events, which are read one at a time."""

    def __init__(self, text: str, locate: Locate, origin: Origin, code: str) -> None:
        self._text = text
        self._locate = locate
        self._origin = origin
        self._code = code
        self._events: Any = yaml.parse(text, Loader=yaml.SafeLoader)
        self._last = locate(0, 0)
        # Node, number of values in it, levels below it; None while it is being composed.
        self._anchors: dict[str, tuple[Node, int, int] | None] = {}
        self._num_values = 0
        self._deepest = 0  # since the node that is being composed began

    def document(self) -> Node:
        """Return the only document."""
        self._take()  # the start of the stream
        event = self._take()
        if isinstance(event, yaml.StreamEndEvent):
            return Leaf(None, "", self._locate(0, 0), self._origin)
        if event.version is not None and event.version < (1, 2):
            self._fail("a spec is YAML 1.2, and this says another version", "Remove the `%YAML` line.")
        node = self._compose(self._take(), 0)
        self._take()  # the end of the document
        event = self._take()
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail("a second document begins", "Keep one document in the file.")
        return node

    def _take(self) -> Any:
        try:
            event = next(self._events)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = self._locate(mark.line, mark.column) if mark else self._last
            problem = " ".join(part for part in (error.context, error.problem) if part)
            self._fail(problem, "Mend the YAML at this place.", where)
        except ReaderError as error:
            before = self._text[: error.position]
            where = self._locate(before.count("\n"), len(before) - before.rfind("\n") - 1)
            self._fail(f"the character U+{ord(self._text[error.position]):04X} is not allowed", "Remove it.", where)
        except (ValueError, OverflowError) as error:
            # PyYAML hands an escape such as "\UFFFFFFFF" to chr().
            self._fail(f"an escape names no character ({error})", "Mend the escape after this place.")
        self._last = self._locate(event.start_mark.line, event.start_mark.column)
        return event

    def _compose(self, event: Any, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event.anchor, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        num_before, deepest_before = self._num_values, self._deepest
        self._deepest = 0
        self._count(1, depth)
        node = self._node(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._num_values - num_before, self._deepest - depth)
        self._deepest = max(self._deepest, deepest_before)
        return node

    def _node(self, event: Any, depth: int) -> Node:
        where = self._last
        if isinstance(event, yaml.ScalarEvent):
            return Leaf(self._scalar(event), event.value, where, self._origin)
        if isinstance(event, yaml.SequenceStartEvent):
            self._expect_tag(event.tag, "seq")
            return Items(self._items(depth), where, self._origin)
        self._expect_tag(event.tag, "map")
        return Table(self._entries(depth), where, self._origin)

    def _items(self, depth: int) -> tuple[Node, ...]:
        items = []
        while not isinstance(event := self._take(), yaml.SequenceEndEvent):
            items.append(self._compose(event, depth + 1))
        return tuple(items)

    def _entries(self, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        while not isinstance(event := self._take(), yaml.MappingEndEvent):
            where = self._last
            key = self._compose(event, depth + 1)
            if not isinstance(key, Leaf):
                self._fail("a key is a list or a mapping", "Use a string as the key.", where)
            name = key.text
            if name == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                self._fail("merge keys (`<<`) are not in YAML 1.2", "Repeat the keys.", where)
            if name in entries:
                raise SpecError(
                    code="duplicate-key",
                    what=f"The key `{name}` stands twice, first at {entries[name].where}.",
                    where=where,
                    next_step="Remove one of the two.",
                )
            entries[name] = Entry(where, self._compose(self._take(), depth + 1))
        return entries

    def _aliased(self, anchor: Any, depth: int) -> Node:
        if anchor not in self._anchors:
            self._fail(f"the alias `*{anchor}` has no anchor before it", "If it is no alias, quote it.")
        known = self._anchors[anchor]
        if known is None:
            self._fail(f"the alias `*{anchor}` stands inside its own anchor", "Write the value out.")
        node, num_values, num_levels = known
        self._count(num_values, depth + num_levels)
        return node

    def _count(self, num_values: int, depth: int) -> None:
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            self._fail(f"values are nested deeper than {MAX_DEPTH} levels", "Write a flatter spec.")
        self._num_values += num_values
        if self._num_values > MAX_VALUES:
            self._fail(f"there are more than {MAX_VALUES} values, counting aliases", "Keep data out of the spec.")

    def _scalar(self, event: Any) -> Scalar:
        text: str = event.value
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self._fail("an escape names half of a surrogate pair", "Write the character itself.")
        if event.tag is None:
            return resolve_plain(text) if event.implicit[0] else text
        if event.tag in ("!", _CORE + "str"):
            return text
        wanted = _TAGGED.get(event.tag)
        if wanted is None:
            self._fail(f"the tag {event.tag} means nothing in a job spec", "Remove the tag.")
        value = resolve_plain(text)
        if wanted is float and type(value) is int:
            value = resolve_plain(text + ".0")
        if type(value) is not wanted:
            self._fail(f"{text!r} does not fit its tag", "Remove the tag.")
        return value

    def _expect_tag(self, tag: str | None, wanted: str) -> None:
        if tag not in (None, "!", _CORE + wanted):
            self._fail(f"the tag {tag} means nothing in a job spec", "Remove the tag.")

    def _fail(self, problem: str, next_step: str, where: str | None = None) -> NoReturn:
        what = f"This is no YAML 1.2 that a spec can use: {problem}."
        raise SpecError(code=self._code, what=what, where=where or self._last, next_step=next_step) from None
