"""`gscalar scaling` from the words of the command line to what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gscalar.cli.main import main
from gscalar.model import events
from gscalar.model.spans import Collective, CollectiveKind, pack_collectives
from gscalar.model.timeline import ACCOUNT_NAMES
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, RunBuilder
from gscalar.testing.trainings import Cluster

Run = Callable[..., tuple[int, str, str]]
CLUSTER = Cluster(compute_s=0.1, alpha_s=1e-4, beta_bytes_per_s=1e9)
NUM_STEPS = 24


@pytest.fixture
def gscalar(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["scaling", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def train(run: RunBuilder, num_workers: int) -> None:
    """Record the steps of a made-up training."""
    timeline = CLUSTER.train(num_workers, NUM_STEPS)
    run.launch(num_workers)
    for step in range(NUM_STEPS):
        for rank in range(num_workers):
            begin_s = timeline.begin_s[rank, step]
            if timeline.collectives is not None:
                seen = (timeline.collectives.ready_s, timeline.collectives.start_s, timeline.collectives.end_s)
                rows = [
                    Collective(
                        CollectiveKind.ALL_REDUCE, 0, 3 * step + at, int(num_bytes),
                        *(round((each[rank, step, at] - begin_s) * 1e9) for each in seen),
                    )
                    for at, num_bytes in enumerate(timeline.collectives.num_bytes)
                ]  # fmt: skip
                run.tell(events.Collectives(step + 1, run.clock(), pack_collectives(rows)), rank=rank)
        accounts = timeline.accounts[:, step]
        run.train(1, accounts=[dict(zip(ACCOUNT_NAMES, row.tolist(), strict=True)) for row in accounts])
    run.finish().end()


@pytest.fixture
def place(home: Path) -> Home:
    """Runs of one worker, of two, and of none that did a step."""
    found, clock = Home(home), FakeClock()
    train(RunBuilder(found, "aaaa00000000", spec={"name": "one"}, clock=clock), 1)
    train(RunBuilder(found, "bbbb00000000", spec={"name": "two"}, clock=clock), 2)
    RunBuilder(found, "cccc00000000", spec={"name": "none"}, clock=clock).launch(1).fail().end("failed")
    return found


def told(out: str, workers: int) -> list[str]:
    """Return the words of a row of the table."""
    return next(line.split() for line in out.splitlines() if line.split()[:1] == [str(workers)])


def test_a_run_is_a_table_a_chart_and_what_it_rests_on(gscalar: Run, place: Home) -> None:
    code, out, err = gscalar("two", "--workers", "1..16")
    assert (code, err) == (0, "")
    assert "measured: 2 workers, 22 steps of" in out  # two of 24 warm up
    assert "954 MiB/s, 100 us a hop, measured" in out
    assert told(out, 1)[-1] == "compute"
    rows = [
        line.split() for line in out.splitlines() if line.rstrip().endswith(("compute", "slowest", "communication"))
    ]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16"]
    assert "\nEfficiency\n" in out
    assert ["1", "2", "4", "8", "16"] in [line.split() for line in out.splitlines()]  # the axis
    assert "An efficiency of 80 % holds" in out
    assert "`--link` takes the one between machines" in out


def test_json_has_stable_keys_and_numbers_that_the_simulation_confirms(gscalar: Run, place: Home) -> None:
    code, out, _ = gscalar("two", "--workers", "2,32", "--json")
    assert code == 0
    got = json.loads(out)
    assert list(got) == ["run", "name", "mode", "measured", "link", "points", "notes"]
    assert got["link"]["bytes_per_s"] == pytest.approx(1e9, rel=0.01)
    two, many = got["points"]
    assert two["step_s"]["predicted"] == pytest.approx(got["measured"]["step_s"])
    assert many["step_s"]["predicted"] == pytest.approx(CLUSTER.mean_step_s(32), rel=0.06)
    assert many["step_s"]["low"] < many["step_s"]["predicted"] < many["step_s"]["high"]
    assert sum(many["parts_s"].values()) == pytest.approx(many["step_s"]["predicted"])
    assert (two["samples_per_worker"], many["samples_per_worker"]) == (4, 4)


def test_one_worker_without_a_link_says_that_communication_is_not_known(gscalar: Run, place: Home) -> None:
    code, out, _ = gscalar("one", "--workers", "1..4")
    assert code == 0
    assert "the link is not known" in out
    assert told(out, 4)[1] == "≥"
    assert "no link is given: lower bounds" in out
    (point,) = json.loads(gscalar("one", "--workers", "4", "--json")[1])["points"]
    assert point["parts_s"]["communication"] is None
    assert point["step_s"]["high"] is None


def test_one_worker_with_a_link_exchanges_its_parameters(gscalar: Run, place: Home) -> None:
    code, out, _ = gscalar("one", "--workers", "4", "--link", "1Mbit,10us", "--json")
    assert code == 0
    got = json.loads(out)
    assert got["link"].pop("latency_s") == pytest.approx(1e-5)
    assert got["link"] == {"bytes_per_s": 125_000.0, "spread": 0.0, "measured": False, "algorithm": "ring"}
    # 1000 parameters of 4 bytes, of which a ring of 4 sends 1.5 times as much, over 6 hops.
    assert got["points"][0]["parts_s"]["communication"] == pytest.approx(1.5 * 4000 / 125_000 + 6e-5)


def test_strong_scaling_keeps_the_batch_and_leaves_out_who_would_have_no_sample(gscalar: Run, place: Home) -> None:
    code, out, _ = gscalar("two", "--strong", "--workers", "2..64", "--json")
    assert code == 0
    got = json.loads(out)
    assert got["mode"] == "strong"
    assert [(each["workers"], each["samples_per_worker"]) for each in got["points"]] == [(2, 4), (4, 2), (8, 1)]
    assert any("8 samples" in note for note in got["notes"])


def test_no_number_of_workers_with_a_sample_each_is_still_an_answer(gscalar: Run, place: Home) -> None:
    code, out, _ = gscalar("two", "--strong", "--workers", "64..128")
    assert code == 0
    assert "a step has 8 samples" in out


@pytest.mark.parametrize("words", [("none",), ("none", "--json")])
def test_a_run_without_steps_is_an_error_that_says_so(gscalar: Run, place: Home, words: tuple[str, ...]) -> None:
    code, out, err = gscalar(*words)
    assert (code, out) == (2, "")
    assert "[nothing-to-replay]" in err


@pytest.mark.parametrize("duration_s", [0.0, -0.1])
def test_steps_that_take_no_time_say_nothing(gscalar: Run, place: Home, duration_s: float) -> None:
    run = RunBuilder(place, "dddd00000000", spec={"name": "still"}, clock=FakeClock()).launch(2)
    for number in range(1, 8):
        run.tell(events.Step(number, run.clock(), duration_s, 8.0, 0.0, 0.1, 1.0, 0, 0, b""))
    run.end()
    code, out, err = gscalar("still")
    assert (code, out) == (2, "")
    assert "its steps take no time" in err


def test_an_unknown_run_is_an_error(gscalar: Run, place: Home) -> None:
    code, out, err = gscalar("nobody")
    assert (code, out) == (2, "")
    assert "[run-not-found]" in err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--workers", "many"),
        ("--workers", "64..8"),
        ("--workers", "5..7"),
        ("--workers", "0"),
        ("--workers", "0,8"),
        ("--workers", "-4"),
        ("--workers", "8..16..32"),
        ("--workers", "1,2,"),
        ("--workers", "2000000"),
        ("--workers", ",".join(str(each) for each in range(1, 100))),
        ("--link", "10"),
        ("--link", "fast"),
        ("--link", "0Gbit"),
        ("--link", "10Gbit,"),
        ("--link", "10Gbit,5"),
        ("--link", "-1GB"),
        ("--link", "0.01bit"),
        ("--link", "9" * 310 + "GB"),
        ("--link", "10Gbit," + "9" * 310 + "ms"),
    ],
)
def test_a_malformed_range_or_link_is_wrong_usage_and_is_repeated(
    gscalar: Run, place: Home, option: str, value: str
) -> None:
    code, out, err = gscalar("two", f"{option}={value}")
    assert (code, out) == (2, "")
    assert option in err
    assert value[:20] in err


@pytest.mark.parametrize(
    ("link", "want"),
    [
        ("10Gbit", 1.25e9),
        ("12.5GB", 1.25e10),
        ("400Mbit", 5e7),
        ("1TB,500ns", 1e12),
        ("8bit", 1.0),
        ("10gbit/s", 1.25e9),
        ("8kbps", 1e3),
    ],
)
def test_rates_are_decimal_bits_or_bytes_a_second(gscalar: Run, place: Home, link: str, want: float) -> None:
    got = json.loads(gscalar("two", "--workers", "2", "--link", link, "--json")[1])["link"]
    assert got["bytes_per_s"] == pytest.approx(want)
    assert got["latency_s"] == pytest.approx(5e-7 if link.endswith("ns") else 5e-5)


def test_small_sums_on_the_host_are_not_taken_for_the_gradients(home: Path, gscalar: Run) -> None:
    run = RunBuilder(Home(home), "dddd00000000", spec={"name": "gpu"}).launch(2)
    for step in range(NUM_STEPS):
        for rank in range(2):
            rows = [Collective(CollectiveKind.ALL_REDUCE, 1, step, 64, 40_000_000, 40_000_000, 41_000_000)]
            run.tell(events.Collectives(step + 1, run.clock(), pack_collectives(rows)), rank=rank)
        run.train(1, accounts=[{"compute": 0.05, "exposed_communication": 0.002}])
    run.finish().end()
    got = json.loads(gscalar("gpu", "--workers", "2", "--json")[1])
    # 1000 parameters in the 2 ms that both wait, and not 64 bytes in 1 ms.
    assert got["link"]["bytes_per_s"] == pytest.approx(4000 / 0.002)
