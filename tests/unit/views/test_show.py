"""What `gscalar show --json` gives. The golden file is the form that programs rely on: a key may come, none may go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gscalar.base.canonical import json_text
from gscalar.control.indexer import refresh
from gscalar.model import events
from gscalar.state.catalog import open_catalog
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder
from gscalar.views.describing import iso_time, whole
from gscalar.views.show import run_status, show_run

GOLDEN = Path(__file__).parents[2] / "golden" / "show.json"


def build(home: Home) -> RunBuilder:
    """A run with everything that can happen: a failure, a resumed attempt, NaN, edits, notes."""
    run = RunBuilder(home, origins={"plan.accumulate": "flag"})
    run.launch(2).train(4).checkpoint().train(2).log({"val/loss": 9.0})
    run.tell(events.Nonfinite(run.clock.advance(0.1), 6, 1, "gradient", "head.weight"), rank=1)
    run.fail("ValueError", "bad batch", rank=1).end_attempt("failed", {"rank": 1, "kind": "ValueError"})
    run.launch(2, from_step=4).train(4).log({"val/loss": float("nan"), "val/accuracy": 0.5})
    run.tell(events.Note(run.clock.advance(0.1), "warning", "slow-disk", "The disk is slow."))
    run.tell(events.Dropped(run.clock.advance(0.1), 2, "disk full"), rank=0)
    run.checkpoint().finish().end().edit("e1", tags={"stage": "final"})
    return run


def show(home: Home, run_id: str) -> dict[str, Any]:
    with open_catalog(home) as catalog:
        refresh(home, catalog)
        return show_run(home, catalog, run_id)


def test_the_form_is_the_golden_one(home: Path) -> None:
    place = Home(home)
    got = json_text(show(place, build(place).run_id)).replace(str(home), "HOME") + "\n"
    assert got == GOLDEN.read_text(), "run tests/unit/views/test_show.py as a script to write it anew"


STABLE = {
    "": "id name project status spec plan seed tags steps tokens attempts metrics digests checkpoints environment",
    "attempts": "index started ended outcome failure world from_step",
    "metrics": "last min max count",
    "digests": "weights data spec",
    "checkpoints": "step path bytes sha256",
}


@pytest.mark.parametrize("part", STABLE)
def test_the_stable_keys_are_in_the_golden_file(part: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    value = golden[part] if part else golden
    one = value[0] if isinstance(value, list) else value["val/loss"] if part == "metrics" else value
    assert set(STABLE[part].split()) <= set(one)
    if part in ("attempts", "metrics", "checkpoints"):
        assert set(STABLE[part].split()) == set(one)


def test_digests_have_their_keys_before_anything_is_known(home: Path) -> None:
    place = Home(home)
    got = show(place, RunBuilder(place).run_id)
    assert got["digests"]["weights"] is None
    assert got["digests"]["data"] is None
    assert len(got["digests"]["spec"]) == 64


def test_a_checkpoint_that_was_saved_elsewhere_keeps_its_path(home: Path) -> None:
    place = Home(home)
    run = RunBuilder(place).launch().train(1)
    saved = events.CheckpointSaved(run.clock(), 1, "/elsewhere/step-1", 10, "ab", 0.0, 0.0)
    run.tell(saved).end()
    assert show(place, run.run_id)["checkpoints"][0]["path"] == "/elsewhere/step-1"


def test_the_status_of_a_run_that_is_gone_ends_whoever_waits_for_it(home: Path) -> None:
    with open_catalog(Home(home)) as catalog:
        assert run_status(catalog, "gone") == "interrupted"


TIMES = {
    "a whole second": (1_767_323_045_000_000_000, "2026-01-02T03:04:05.000000Z"),
    "nanoseconds are cut": (1_767_323_045_999_999_999, "2026-01-02T03:04:05.999999Z"),
    "before 1970": (-1_000_000_000, "1969-12-31T23:59:59.000000Z"),
    "no time": (None, None),
}


@pytest.mark.parametrize("sentence", TIMES)
def test_iso_time(sentence: str) -> None:
    time_ns, want = TIMES[sentence]
    assert iso_time(time_ns) == want


@pytest.mark.parametrize(("number", "want"), [(3.0, "3"), (3.5, "3.5"), (float("inf"), "inf")])
def test_counts_are_whole_where_they_are(number: float, want: str) -> None:
    assert str(whole(number)) == want


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = Home(Path(folder))
        GOLDEN.write_text(json_text(show(place, build(place).run_id)).replace(folder, "HOME") + "\n")
