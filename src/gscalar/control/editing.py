"""A person's changes to a run: one record file for each, so that nobody else's file is touched."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

from gscalar.base.errors import EnvironmentProblem, UserError
from gscalar.base.ids import new_id
from gscalar.model.events import Edited
from gscalar.model.spec import TAG_NAME
from gscalar.state.home import Home
from gscalar.state.records import RecordWriter, own_header

_KEY: Final = re.compile(TAG_NAME)
_MAX_VALUE: Final = 8000


def parse_tags(words: Sequence[str]) -> dict[str, str | None]:
    """Return the changes that words such as `stage=final` and `draft-` ask for; None removes a tag.

    Raises:
        UserError: `bad-tag`.
    """
    changes: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            if not key.endswith("-"):
                raise _bad_tag(
                    "A tag is neither set nor removed.", word, f"Write {word}=value, or {word}- to remove it."
                )
            key = key.removesuffix("-")
        if not _KEY.fullmatch(key):
            raise _bad_tag(
                "A tag's name has letters, digits and _ . / : @ - only, at most 250, a letter or digit first.", word, ""
            )
        if len(value) > _MAX_VALUE or "\0" in value:
            raise _bad_tag(f"A tag's value has at most {_MAX_VALUE} characters.", value[:40], "")
        if key in changes:
            raise _bad_tag("A tag is given twice.", key, "")
        changes[key] = value if equals else None
    return changes


def edit_tags(home: Home, run_id: str, changes: Mapping[str, str | None]) -> None:
    """Record changes of the run's tags.

    Raises:
        EnvironmentProblem: `disk-full`, the change is not in the record.
        OSError: the record cannot be opened.
    """
    now_ns = time.time_ns()
    edit_id = new_id(now_ns, os.urandom(16))
    header = own_header(run_id, "edit")
    writer = RecordWriter(home.run(run_id).records / f"edit-{edit_id}.rec", header)
    writer.emit(Edited(time_ns=now_ns, tags=dict(changes)))
    writer.close()
    if writer.dropped:
        raise EnvironmentProblem(
            code="disk-full",
            what="The change of tags could not be recorded.",
            where=str(writer.path),
            next_step="Free some disk and try again.",
        )


def _bad_tag(what: str, value: str, next_step: str) -> UserError:
    return UserError(code="bad-tag", what=what, value=value, next_step=next_step)
