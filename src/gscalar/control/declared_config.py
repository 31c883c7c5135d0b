"""Refuses, on a resume, a config key that the script does not have: before anything is written.

The script itself refuses such a key too (`gscalar.init`), but only once it runs; by then a typing error stands in
the attempt's job file, and every later resume fails on it.

    known      the config that rank 0 of the newest attempt recorded when `gscalar.init` returned
    declared   the script named keys of that part of the config: some value in it has the origin `script`, or the
               script's start says so of the config as a whole (a job may set every key that the script has)

Only keys that are new to the run count, and only in parts that are declared. An empty mapping takes any keys.

Limits: a script that has learned a key since its last attempt must be resumed once without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gscalar.base.errors import SpecError
from gscalar.control.indexing.scanning import RECORD_NAME, scan_records
from gscalar.model import events
from gscalar.model.parsing.building import raise_all, unknown_key
from gscalar.model.parsing.tree import dotted
from gscalar.state.home import RunFolder
from gscalar.state.records.reader import Frame, read_record


def check_new_keys(folder: RunFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse keys of the config `now` that neither the config `before` nor the script has.

    Raises:
        SpecError: `unknown-key`, with the nearest key that there is.
    """
    if now == before:
        return
    started = _newest_start(folder)
    if started is not None:
        known = started.spec.get("config") or {}
        declared = True if started.declares_config else None
        raise_all(list(find_strangers(now, before, known, started.origins, declared=declared)))


def find_strangers(
    now: Mapping[str, Any],
    before: Mapping[str, Any],
    known: Mapping[str, Any],
    origins: Mapping[str, str],
    path: tuple[str, ...] = ("config",),
    *,
    declared: bool | None = None,
) -> Iterator[SpecError]:
    """Return an error for each key of `now` that is new and unknown, where the script has declared the keys.

    `declared` says so of this part; None leaves it to the origins.
    """
    below = dotted(path) + "."
    if declared is None:
        declared = any(origin == "script" and key.startswith(below) for key, origin in origins.items())
    if not known or not declared:
        return
    for name, value in now.items():
        if name in known:
            inner = known[name]
            if isinstance(value, dict) and isinstance(inner, dict):
                old = before.get(name)
                yield from find_strangers(value, old if isinstance(old, dict) else {}, inner, origins, (*path, name))
        elif name not in before:
            error = unknown_key(name, "--set", path, known)
            what = f"`{dotted((*path, name))}` is not in the config that the script gives to gscalar.init"
            yield SpecError(code=error.code, what=what, where=error.where, next_step=error.next_step)


def _newest_start(folder: RunFolder) -> events.WorkerStarted | None:
    """Return what rank 0 of the newest attempt that got so far said of its job."""
    names = [match for name in scan_records(folder) if (match := RECORD_NAME.fullmatch(name))]
    firsts = [match for match in names if match["rank"] and int(match["rank"]) == 0]
    for match in sorted(firsts, key=lambda each: int(each["attempt"]), reverse=True):
        try:
            for item in read_record(folder.records / match.string):
                if isinstance(item, Frame) and isinstance(item.event, events.WorkerStarted):
                    return item.event
        except OSError:
            continue  # the script will tell what the record cannot
    return None
