from __future__ import annotations

import math

import pytest

from gscalar.control.indexing import parameters
from gscalar.model.events import Edited
from gscalar.testing.builders import default_spec

FLAT = {
    "a number": ({"seed": 3}, "seed", ("3", 3.0, "default")),
    "a nested value": ({"plan": {"sync": {"kind": "allreduce"}}}, "plan.sync.kind", ("allreduce", None, "default")),
    "a list is one value": ({"config": {"sizes": [1, 2]}}, "config.sizes", ("[1, 2]", None, "default")),
    "a word is no number": ({"config": {"x": "3"}}, "config.x", ("3", None, "default")),
    "true is no number": ({"deterministic": True}, "deterministic", ("true", None, "default")),
    "null": ({"config": {"x": None}}, "config.x", ("null", None, "default")),
    "infinity can be compared": ({"config": {"x": math.inf}}, "config.x", ("Infinity", math.inf, "default")),
    "NaN cannot": ({"config": {"x": math.nan}}, "config.x", ("NaN", None, "default")),
    "an integer beyond a float": ({"config": {"x": 10**400}}, "config.x", (str(10**400), None, "default")),
    "an origin of its own": ({"config": {"lr": 0.1}}, "config.lr", ("0.1", 0.1, "flag")),
    "the origin of a mapping around it": (
        {"plan": {"schedule": {"kind": "wsd"}}}, "plan.schedule.kind", ("wsd", None, "spec"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", FLAT)
def test_a_spec_is_flat(sentence: str) -> None:
    spec, key, want = FLAT[sentence]
    rows = parameters.flatten_spec(spec, {"config.lr": "flag", "plan.schedule": "spec"})
    got = {row.key: (row.value, row.number, row.origin) for row in rows}
    assert got == {key: want}


def test_labels_are_no_parameters() -> None:
    keys = [row.key for row in parameters.flatten_spec(default_spec(), {})]
    assert not any(key.partition(".")[0] in parameters.LABELS for key in keys)


DIGESTS = {
    "another name is the same job": ({"name": "other"}, True),
    "other tags are the same job": ({"tags": {}}, True),
    "another seed is another job": ({"seed": 8}, False),
    "another variable is another job": ({"env": {"OMP_NUM_THREADS": "1"}}, False),
}


@pytest.mark.parametrize("sentence", DIGESTS)
def test_the_digest_of_a_spec(sentence: str) -> None:
    change, same = DIGESTS[sentence]
    before = parameters.digests(default_spec(), None)
    after = parameters.digests(default_spec() | change, None)
    assert (before == after) is same


TAGS = {
    "those of the spec": ([], {"team": "language"}),
    "one more": ([{"stage": "final"}], {"stage": "final", "team": "language"}),
    "another value": ([{"team": "vision"}], {"team": "vision"}),
    "one less": ([{"team": None}], {}),
    "one less that is not there": ([{"stage": None}], {"team": "language"}),
    "the later edit wins": ([{"a": "1"}, {"a": "2", "team": None}], {"a": "2"}),
}


@pytest.mark.parametrize("sentence", TAGS)
def test_tags_after_edits(sentence: str) -> None:
    edits, want = TAGS[sentence]
    got = parameters.tags(default_spec(), [Edited(place, tags) for place, tags in enumerate(edits)])
    assert got == want


@pytest.mark.parametrize("given", [None, 3, ["a"], {"a": 1}])
def test_tags_of_a_strange_spec_are_taken_as_text_or_left_out(given: object) -> None:
    assert parameters.tags({"tags": given}, []) == ({"a": "1"} if given == {"a": 1} else {})
