"""Which keys a resume refuses because the script does not have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gscalar.base.errors import SpecError
from gscalar.control.declared_config import check_new_keys, find_strangers
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder

KNOWN: dict[str, Any] = {"lr": 0.1, "opt": {"name": "adamw", "beta": 0.9}, "extra": {}, "free": {"a": 1}}
SCRIPT = {
    "config.lr": "script",
    "config.opt.name": "script",
    "config.opt.beta": "flag",
    "config.extra": "script",
    "config.free.a": "spec",
}
JOB = {"config.lr": "flag", "config.opt.name": "spec", "config.opt.beta": "flag", "config.free.a": "spec"}

# The config that is asked for, the one before, the origins, the keys that are refused.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str], list[str]]] = {
    "a known key": ({"lr": 8}, {}, SCRIPT, []),
    "a typing error": ({"lrr": 8}, {}, SCRIPT, ["config.lrr"]),
    "two of them": ({"lrr": 8, "opt": {"betta": 1}}, {}, SCRIPT, ["config.lrr", "config.opt.betta"]),
    "a typing error beside known keys": ({"lr": 8, "opt": {"nam": "sgd"}}, {}, SCRIPT, ["config.opt.nam"]),
    "the run had the key before": ({"lrr": 8}, {"lrr": 7}, SCRIPT, []),
    "the run had the inner key before": ({"opt": {"x": 8}}, {"opt": {"x": 7}}, SCRIPT, []),
    "an empty mapping of the script takes any keys": ({"extra": {"any": 1}}, {}, SCRIPT, []),
    "a mapping of which the script has named no key": ({"free": {"b": 1}}, {}, SCRIPT, []),
    "a mapping in place of a value": ({"lr": {"warm": 1}}, {}, SCRIPT, []),
    "the script has declared no config": ({"lrr": 8}, {}, JOB, []),
}


@pytest.mark.parametrize("sentence", CASES)
def test_refused(sentence: str) -> None:
    now, before, origins, want = CASES[sentence]
    got = list(find_strangers(now, before, KNOWN, origins))
    assert [error.what.split("`")[1] for error in got] == want
    assert {error.code for error in got} <= {"unknown-key"}


def test_a_script_that_declares_its_config_refuses_strangers_though_the_job_sets_every_key() -> None:
    got = list(find_strangers({"lrr": 8, "free": {"b": 1}}, {}, KNOWN, JOB, declared=True))
    assert [error.what.split("`")[1] for error in got] == ["config.lrr"], "of an inner mapping the origins tell"


def config_of(run: RunBuilder, **more: Any) -> dict[str, Any]:
    return {**run.spec["config"], **more}


def test_the_newest_record_of_rank_0_that_has_a_start_decides(home: Path) -> None:
    run = RunBuilder(Home(home), origins={"config.layers": "script"})
    run.launch(2).end_attempt("failed")
    run.spec["config"]["depth"] = 3
    run.launch(2).end_attempt("failed")
    run.folder.worker_record(2, 0).write_bytes(b"")  # it died before its first event
    check_new_keys(run.folder, {}, config_of(run, depth=4))
    with pytest.raises(SpecError) as caught:
        check_new_keys(run.folder, {}, config_of(run, layer=4))
    assert (caught.value.code, caught.value.exit_code, caught.value.where) == ("unknown-key", 2, "--set")
    assert "`config.layers`" in caught.value.next_step


def test_a_run_without_a_record_refuses_nothing(home: Path) -> None:
    run = RunBuilder(Home(home), origins={"config.layers": "script"})
    check_new_keys(run.folder, {}, config_of(run, layer=4))
