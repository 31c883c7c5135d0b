"""Which value counts: flags, then environment, then the spec, then the script's arguments, then defaults.

Each source becomes a tree, the trees are laid over each other, and the spec is built once from the
result; so a mistake is named where the value that counts was written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gscalar.base.errors import SpecError
from gscalar.model.parsing.building import build_spec, raise_all, unknown_key
from gscalar.model.parsing.document import read_document
from gscalar.model.parsing.overrides import ENVIRONMENT_VARIABLE, read_overrides, split_words
from gscalar.model.parsing.tree import Entry, Node, Path, Table, dotted, overlay, tree_of
from gscalar.model.spec import Origin, ResolvedSpec

# When a script runs, these are past: they say how its processes were started and are watched.
_DECIDED_AT_LAUNCH: Final = (
    "version", "command", "workers", "resources", "retries", "hang_after_s", "elastic", "env",
)  # fmt: skip
_PLACES: Final[dict[Origin, str]] = {
    "flag": "command line",
    "environment": ENVIRONMENT_VARIABLE,
    "spec": "job spec",
    "script": "gscalar.init",
    "launcher": "launcher",
    "default": "default",
}


def load_spec(
    text: bytes | None,
    file: str,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    *,
    needs_command: bool = True,
) -> ResolvedSpec:
    """Return the spec of a file's bytes (None: there is no file), `--set` words, environment and flags.

    `flags` maps keys of the spec to the values of options that have a name of their own, such as
    `--workers`; None is an option that was not given.

    Raises:
        SpecError: what is wrong, at file:line:column or in the argument; the other mistakes follow.
    """
    tree = read_document(text, file) if text is not None else Table({}, file, "spec")
    tree = overlay(tree, _environment_tree(environment))
    tree = overlay(tree, read_overrides(overrides, "--set", "flag"))
    tree = overlay(tree, _flag_tree(flags))
    spec, origins = build_spec(tree, needs_command=needs_command)
    return ResolvedSpec(spec=spec, origins=origins)


def load_environment(environment: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> ResolvedSpec:
    """Return the spec of a script that was not launched by `gscalar run`: GSCALAR_SET over defaults.

    Raises:
        SpecError: GSCALAR_SET cannot be used.
    """
    return load_spec(None, "", (), environment, flags or {}, needs_command=False)


def override_spec(resolved: ResolvedSpec, overrides: Sequence[str], flags: Mapping[str, Any]) -> ResolvedSpec:
    """Return a spec that was resolved before, with other `--set` words and options, as on `--resume`.

    Raises:
        SpecError: a word or option cannot be used.
    """
    tree = overlay(_set_values(resolved), read_overrides(overrides, "--set", "flag"))
    spec, origins = build_spec(overlay(tree, _flag_tree(flags)), needs_command=False)
    return ResolvedSpec(spec=spec, origins=origins)


def merge_script_arguments(
    resolved: ResolvedSpec, arguments: Mapping[str, Any], *, strict_config: bool = True
) -> ResolvedSpec:
    """Return the spec with the arguments of `gscalar.init` where nothing else has set a value.

    What an earlier start of the script set (origin `script`) does not count: the script speaks anew.
    Where the script gives a `config`, that says which keys there are: with `strict_config` a key that
    the job sets and the script does not know is refused, so that a typing error cannot pass silently.

    Raises:
        SpecError: an argument that no spec would take, or `unknown-key` in the job's config.
    """
    job = _set_values(resolved, without="script")
    script = _script_tree(arguments)
    config = script.entries.get("config")
    if strict_config and config and "config" in job.entries:
        raise_all(_strangers(job.entries["config"].node, config.node, ("config",)))
    spec, origins = build_spec(overlay(script, job), needs_command=False)
    return ResolvedSpec(spec=spec, origins=origins)


def _environment_tree(environment: Mapping[str, str]) -> Table:
    words = split_words(environment.get(ENVIRONMENT_VARIABLE, ""))
    return read_overrides(words, ENVIRONMENT_VARIABLE, "environment")


def _flag_tree(flags: Mapping[str, Any]) -> Table:
    entries = {}
    for name, value in flags.items():
        if value is not None:
            where = "command line" if name == "command" else f"--{name}"
            entries[name] = Entry(where, tree_of(value, where, "flag", (name,)))
    return Table(entries, "command line", "flag")


def _script_tree(arguments: Mapping[str, Any]) -> Table:
    entries = {}
    for name, value in arguments.items():
        if value is None:
            continue
        where = f"gscalar.init({name}=...)"
        if name in _DECIDED_AT_LAUNCH:
            raise SpecError(
                code="unknown-key",
                what=f"`{name}` is decided when a job is launched, before its script runs",
                where=where,
                next_step=f"Put it into job.yaml, or launch with --set {name}=...",
            )
        entries[name] = Entry(where, tree_of(value, where, "script", (name,)))
    return Table(entries, "gscalar.init", "script")


def _set_values(resolved: ResolvedSpec, *, without: Origin = "default") -> Table:
    """Return the tree of the values that some source has set; defaults are left out."""
    origins = {name: origin for name, origin in resolved.origins.items() if origin not in ("default", without)}

    def chosen(value: Any, path: Path) -> Node | None:
        if dataclasses.is_dataclass(value):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        origin = origins.get(dotted(path))
        if isinstance(value, dict) and origin is None:
            found = {name: chosen(item, (*path, name)) for name, item in value.items()}
            entries = {name: Entry(_place(node, (*path, name)), node) for name, node in found.items() if node}
            return Table(entries, "", "spec") if entries or not path else None
        return None if origin is None else tree_of(value, f"{_PLACES[origin]}, {dotted(path)}", origin, path)

    tree = chosen(resolved.spec, ())
    assert isinstance(tree, Table)
    return tree


def _place(node: Node, path: Path) -> str:
    return node.where or f"job, {dotted(path)}"


def _strangers(job: Node, script: Node, path: Path) -> list[SpecError]:
    """Return an error for each key of the job's config that the script's config does not have."""
    # An empty mapping in the script takes any keys.
    if not isinstance(job, Table) or not isinstance(script, Table) or not script.entries:
        return []
    errors = []
    for name, entry in job.entries.items():
        known = script.entries.get(name)
        if known is None:
            errors.append(_stranger(name, entry.where, path, script))
        else:
            errors += _strangers(entry.node, known.node, (*path, name))
    return errors


def _stranger(name: str, where: str, path: Path, script: Table) -> SpecError:
    error = unknown_key(name, where, path, script.entries)
    what = f"`{dotted((*path, name))}` is not in the config that the script gives to gscalar.init"
    return SpecError(code=error.code, what=what, where=where, next_step=error.next_step)
