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


# Binary fractions, so that the sums in the golden file are exact.
STEPS = (
    {"compute": 0.03125, "exposed_communication": 0.015625, "data_wait": 0.015625},
    {"compute": 0.046875, "exposed_communication": 0.0078125, "data_wait": 0.0078125},
)


def build(home: Home) -> RunBuilder:
    """A run with everything that can happen: a failure, a resumed attempt, NaN, edits, notes."""
    run = RunBuilder(home, origins={"plan.accumulate": "flag"})
    run.launch(2).train(4).checkpoint().train(2).log({"val/loss": 9.0})
    run.tell(events.Nonfinite(run.clock.advance(0.1), 6, 1, "gradient", "head.weight"), rank=1)
    run.fail("ValueError", "bad batch", rank=1).end_attempt("failed", {"rank": 1, "kind": "ValueError"})
    run.launch(2, from_step=4).train(4, accounts=STEPS).log({"val/loss": float("nan"), "val/accuracy": 0.5})
    run.tell(events.Clock(run.clock.advance(0.1), -0.25, 1e-6, 0.0005, 20), rank=1)
    run.sample({"host/cpu_cores": 1.5, "host/memory_bytes": 4e9}).sample({"worker/cpu_cores": 0.75}, of=1)
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
    "": "accounts exposed_split slowest goodput hardware clocks headerless throughput "
    "id name project status spec plan seed tags steps tokens attempts metrics digests checkpoints environment",
    "attempts": "index started ended outcome failure world roles from_step",
    "metrics": "last min max count",
    "digests": "weights data spec",
    "checkpoints": "step path bytes sha256",
    "accounts": "mean max",
    "goodput": "productive_s total_s ratio lost",
    "hardware": "host workers",
    "throughput": "steps_per_s samples_per_s tokens_per_s mfu",
    "clocks": "offset_s drift bound_s",
    "slowest": "rank busy_s median_s",
}
# Where the keys of interest are those of each item, the name of one.
ITEMS = {"metrics": "val/loss", "accounts": "compute", "clocks": "1"}


@pytest.mark.parametrize("part", STABLE)
def test_the_stable_keys_are_in_the_golden_file(part: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    value = golden[part] if part else golden
    one = value[0] if isinstance(value, list) else value[ITEMS[part]] if part in ITEMS else value
    assert set(STABLE[part].split()) <= set(one)
    if part not in ("", "digests"):
        assert set(STABLE[part].split()) == set(one)


def test_every_second_of_the_golden_run_is_in_one_part() -> None:
    goodput = json.loads(GOLDEN.read_text())["goodput"]
    lost = "start data checkpoint lost_progress recovery hang other"
    assert set(goodput["lost"]) == set(lost.split())
    assert goodput["productive_s"] + sum(goodput["lost"].values()) == pytest.approx(goodput["total_s"])
    assert goodput["lost"]["lost_progress"] == pytest.approx(0.1)  # two steps of 50 ms that were done again


def test_what_nobody_has_measured_is_null_and_not_nothing(home: Path) -> None:
    place = Home(home)
    got = show(place, RunBuilder(place).launch(2).train(3).end().run_id)
    assert [got[key] for key in ("accounts", "exposed_split", "slowest", "hardware")] == [None] * 4
    assert got["throughput"]["mfu"] is None
    assert (got["goodput"]["lost"]["data"], got["goodput"]["lost"]["checkpoint"]) == (None, None)
    assert got["headerless"] == []


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
