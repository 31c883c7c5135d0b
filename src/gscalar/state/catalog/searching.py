"""Searching and sorting runs: from terms to one query.

    word            a part of the name, the project, a tag's key or value, the start of the id, or the status
    key=value       an attribute, a value of the spec, a tag, or the last value of a metric
    key<number      the same, for what is a number or a time; also <= > >= !=

All terms must hold. A key is looked up among the attributes below; if it is none of them, a run fits if its
spec, tags or metrics have the key with such a value. `lr` also finds `config.lr`. A run that lacks the key
never fits, whatever the operator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final

import sqlalchemy as sa

from gscalar.base.errors import UserError
from gscalar.model.status import Status
from gscalar.state.catalog.schema import params, run_metrics, runs, tags

_OPERATORS: Final[dict[str, Any]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_COMPARISON: Final = re.compile(r"(?P<key>[^<>=!\s]+)\s*(?P<op><=|>=|!=|==|=|<|>)\s*(?P<value>.*)")
_TEXTS: Final = {"id": runs.c.id, "name": runs.c.name, "project": runs.c.project, "status": runs.c.status}
_NUMBERS: Final = {
    "steps": runs.c.steps,
    "tokens": runs.c.tokens,
    "samples": runs.c.samples,
    "seed": runs.c.seed,
    "world": runs.c.world,
}
_TIMES: Final = {"created": runs.c.created_ns, "started": runs.c.started_ns, "ended": runs.c.ended_ns}
_LARGEST: Final = 2**63 - 1  # SQLite takes no larger number
ATTRIBUTES: Final = (*_TEXTS, *_NUMBERS, *_TIMES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One `key op value`."""

    key: str
    operator: str
    value: str


Term = str | Comparison


def parse_term(text: str) -> Term:
    """Return a word of the command line as a term.

    Raises:
        UserError: `bad-query`.
    """
    found = _COMPARISON.fullmatch(text.strip())
    if found is None:
        if re.search(r"[<>=]", text):
            raise _bad_query("This is no comparison.", text, "Write key=value, key<number or a word.")
        return text.strip()
    operator = "=" if found["op"] == "==" else found["op"]
    return Comparison(key=found["key"], operator=operator, value=found["value"].strip())


def find_runs(
    connection: sa.Connection,
    terms: Sequence[Term],
    *,
    sort: str = "-created",
    limit: int | None = None,
    project: str | None = None,
) -> list[str]:
    """Return the ids of the runs for which all terms hold, in the order asked for; the newest of equals first.

    `sort` is an attribute, a metric or a value of the spec; a `-` before it reverses. Runs that lack it come last.

    Raises:
        UserError: `bad-query`, with the nearest key where there is one.
    """
    query = sa.select(runs.c.id).where(runs.c.deleted_ns.is_(None))
    if project is not None:
        query = query.where(runs.c.project == project)
    for term in terms:
        query = query.where(_word(term) if isinstance(term, str) else _comparison(term))
    query, order = _sorted(connection, query, sort)
    query = query.order_by(*order, runs.c.created_ns.desc(), runs.c.id)
    if limit is not None:
        query = query.limit(min(limit, _LARGEST))
    return [str(run_id) for run_id in connection.scalars(query)]


def unknown_key(connection: sa.Connection, term: Term) -> str | None:
    """Return a hint where a comparison's key is in no run at all, which is likely a slip."""
    if isinstance(term, str) or term.key in ATTRIBUTES or term.key.startswith("tag."):
        return None
    known = _known_keys(connection)
    if term.key in known or f"config.{term.key}" in known:
        return None
    near = get_close_matches(term.key, known, n=1)
    hint = f"; the nearest is {near[0]}" if near else ""
    return f"no run has a value, tag or metric named {term.key}{hint}"


def _known_keys(connection: sa.Connection) -> list[str]:
    columns = (params.c.key, tags.c.key, run_metrics.c.name)
    return [str(key) for column in columns for key in connection.scalars(sa.select(column).distinct())]


# ---- conditions


def _word(word: str) -> sa.ColumnElement[bool]:
    lowered = word.lower()
    in_tags = sa.or_(_contains(tags.c.key, lowered), _contains(tags.c.value, lowered))
    return sa.or_(
        _contains(runs.c.name, lowered),
        _contains(runs.c.project, lowered),
        runs.c.id.startswith(lowered, autoescape=True),
        runs.c.status == lowered,
        _has(tags, in_tags),
    )


def _contains(column: sa.Column[str], lowered: str) -> sa.ColumnElement[bool]:
    return sa.func.lower(column).contains(lowered, autoescape=True)


def _comparison(term: Comparison) -> sa.ColumnElement[bool]:
    compare = _OPERATORS[term.operator]
    ordered = term.operator not in ("=", "!=")
    if term.key in _TEXTS:
        if ordered:
            raise _bad_query(f"{term.key} is text and has no order.", term.value, f"Write {term.key}={term.value}.")
        if term.key == "status":
            _check_status(term.value)
        return _bool(compare(_TEXTS[term.key], term.value))
    if term.key in _NUMBERS:
        return _bool(compare(_NUMBERS[term.key], _number(term)))
    if term.key in _TIMES:
        return _bool(compare(_TIMES[term.key], _time_ns(term)))
    if term.key.startswith("tag."):
        key = term.key.removeprefix("tag.")
        return _has(tags, tags.c.key == key, _bool(compare(tags.c.value, term.value)))
    keys = (term.key, f"config.{term.key}")
    if ordered:
        number = _number(term)
        return sa.or_(
            _has(params, params.c.key.in_(keys), _bool(compare(params.c.number, number))),
            _has(run_metrics, run_metrics.c.name == term.key, _bool(compare(run_metrics.c.last, number))),
        )
    return _equality(term, keys)


def _equality(term: Comparison, keys: tuple[str, ...]) -> sa.ColumnElement[bool]:
    """`=` and `!=` compare as numbers where both sides are numbers (1e-3 is 0.001), and as text otherwise."""
    number = _maybe_number(term.value)
    same_param = params.c.value == term.value
    same_metric: sa.ColumnElement[bool] = sa.false()
    if number is not None:
        same_param = sa.or_(same_param, sa.func.coalesce(params.c.number == number, sa.false()))
        same_metric = sa.func.coalesce(run_metrics.c.last == number, sa.false())
    same_tag: sa.ColumnElement[bool] = tags.c.value == term.value
    if term.operator == "!=":
        same_param, same_tag, same_metric = sa.not_(same_param), sa.not_(same_tag), sa.not_(same_metric)
    return sa.or_(
        _has(params, params.c.key.in_(keys), same_param),
        _has(tags, tags.c.key == term.key, same_tag),
        _has(run_metrics, run_metrics.c.name == term.key, same_metric),
    )


def _has(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists().where(table.c.run_id == runs.c.id, *conditions)


def _bool(condition: Any) -> sa.ColumnElement[bool]:
    assert isinstance(condition, sa.ColumnElement)
    return condition


def _check_status(value: str) -> None:
    if value not in set(Status):
        near = get_close_matches(value, list(Status), n=1)
        hint = f"Did you mean {near[0]}?" if near else ""
        raise _bad_query("There is no such status.", value, hint or f"They are {', '.join(Status)}.")


# ---- order


def _sorted(
    connection: sa.Connection, query: sa.Select[Any], sort: str
) -> tuple[sa.Select[Any], list[sa.ColumnElement[Any]]]:
    key = sort.removeprefix("-")
    column: Any = (_TEXTS | _NUMBERS | _TIMES).get(key)
    if column is None:
        table, name, column = _sort_table(connection, key)
        query = query.outerjoin(table, (table.c.run_id == runs.c.id) & name)
    ordered = column.desc() if sort.startswith("-") else column.asc()
    return query, [column.is_(None), ordered]


def _sort_table(connection: sa.Connection, key: str) -> tuple[sa.Table, sa.ColumnElement[bool], sa.ColumnElement[Any]]:
    if connection.scalar(sa.select(run_metrics.c.name).where(run_metrics.c.name == key).limit(1)):
        return run_metrics, run_metrics.c.name == key, run_metrics.c.last
    for name in (key, f"config.{key}"):
        if connection.scalar(sa.select(params.c.key).where(params.c.key == name).limit(1)):
            return params, params.c.key == name, params.c.number
    near = get_close_matches(key, [*ATTRIBUTES, *_known_keys(connection)], n=1)
    raise _bad_query(
        "Nothing to sort by has this name.",
        key,
        f"Did you mean {near[0]}?" if near else f"Sort by a metric, a value, or {', '.join(ATTRIBUTES)}.",
    )


# ---- values


def _number(term: Comparison) -> float:
    number = _maybe_number(term.value)
    if number is None:
        raise _bad_query(f"{term.key} is compared with a number.", term.value, f"For example {term.key}<3.0.")
    return number


def _maybe_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number


def _time_ns(term: Comparison) -> int:
    try:
        # A time without a zone is one of this place.
        moment = datetime.fromisoformat(term.value).astimezone(UTC)
    except (ValueError, OverflowError):  # the latter where another zone would need a year 0 or 10000
        raise _bad_query(
            f"{term.key} is compared with a date.", term.value, f"For example {term.key}>2026-01-31."
        ) from None
    return max(-_LARGEST, min(_LARGEST, round(moment.timestamp() * 1e9)))


def _bad_query(what: str, value: str, next_step: str) -> UserError:
    return UserError(code="bad-query", what=what, value=value, next_step=next_step)
